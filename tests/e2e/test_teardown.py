from __future__ import annotations

import os
import signal

import pytest

from e2e.harness import teardown
from e2e.harness.testbed import Testbed
from tests.e2e.mapped import map_and_mount, remains

pytestmark = pytest.mark.ceph

UUID = "0c1d2e3f-0000-4000-8000-000000000001"


def test_a_mounted_volume_is_taken_away(bed: Testbed) -> None:
    mapped = map_and_mount(bed, UUID)
    assert len(remains(bed.folder)) == 5  # daemon, export, loop, two mounts

    teardown.down(bed)

    assert remains(bed.folder) == []
    assert not bed.folder.exists()
    assert not mapped.staged.exists()


def test_a_second_time_there_is_nothing_to_do(bed: Testbed) -> None:
    teardown.down(bed)

    teardown.down(bed)

    assert not bed.folder.exists()


def test_stopped_daemons_do_not_hold_it_up(bed: Testbed) -> None:
    mapped = map_and_mount(bed, UUID)
    os.kill(mapped.daemon, signal.SIGSTOP)
    bed.ceph.pause("all")

    teardown.down(bed)

    assert remains(bed.folder) == []


def test_a_killed_storage_daemon_leaves_nothing(bed: Testbed) -> None:
    mapped = map_and_mount(bed, UUID)
    os.kill(mapped.daemon, signal.SIGKILL)

    teardown.down(bed)

    assert remains(bed.folder) == []


def test_a_dead_cluster_leaves_nothing(bed: Testbed) -> None:
    mapped = map_and_mount(bed, UUID)
    (mapped.published / "file").write_bytes(b"not on the disk yet")
    bed.ceph.kill()

    teardown.down(bed)

    assert remains(bed.folder) == []


def test_the_files_of_others_are_kept(bed: Testbed) -> None:
    note = bed.folder / "note.txt"
    note.write_text("mine")

    teardown.down(bed)

    assert [path.name for path in bed.folder.iterdir()] == ["note.txt"]
