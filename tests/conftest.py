"""Fixtures for all tests: the real Ceph that a test asks for by naming `ceph`."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from e2e.harness.ceph import MicroCeph
from e2e.harness.interrupts import interrupts_clean_up


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroCeph]:
    """A micro Ceph of the whole session's, up in about a second at first use and destroyed at the end.

    Tests must not assume that pools are empty, only that their own names are theirs.
    """
    cluster = MicroCeph(pathlib.Path(tmp_path_factory.mktemp("ceph")) / "cluster")
    with interrupts_clean_up():
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.destroy()
