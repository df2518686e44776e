"""Fixtures for all tests: the real Ceph that a test asks for by naming `ceph`."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from e2e.harness.ceph import MicroCeph


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MicroCeph]:
    """A micro Ceph of the whole session's, up in about a second at first use and destroyed at the end.

    Tests must not assume that pools are empty, only that their own names are theirs.
    """
    cluster = MicroCeph(pathlib.Path(tmp_path_factory.mktemp("ceph")) / "cluster")
    before = signal.signal(signal.SIGTERM, _interrupt)  # an ended run must not leave daemons behind
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()
        signal.signal(signal.SIGTERM, before)
