"""A test bed's folder without plugins: the cluster, and the files that the audit and the teardown read."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.harness.temporary import folder_for
from e2e.harness.testbed import Layout, Testbed


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with folder_for("bed") as testbed:
        (testbed.folder / "testbed.json").write_text(json.dumps({"controllers": 1, "serve_flags": []}))
        testbed.ceph.start()
        assert testbed.layout == Layout()
        yield testbed
