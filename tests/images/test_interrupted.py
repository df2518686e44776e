"""Image calls interrupted at every point in memory, and by kills of real processes on a real Ceph."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import textwrap

import pytest
import rados

from csi.image_backend import Images
from csi.images import ImageCondition, ImageSpec
from csi.memory_images import write_data
from csi.memory_session import MemorySession
from csi.session import DriverSession
from e2e.harness.ceph import MicroCeph
from omap.faults import Crash, Decision, Fault, FaultsAt
from omap.memory import MemoryCluster
from omap.store import Place, StoreUnavailableError
from tests.images.rigs import FEATURES, MIB, CephRig

PLACE = Place("memory", "rbd")
NAME = "csi-vol-1"
KILLS = 12


def settle(images: Images) -> str | None:
    """Bring the name to absent or whole, as a resumed operation does; the whole image's id."""
    probe = images.probe(NAME)
    if probe.condition is ImageCondition.HALF_MADE:
        images.repair(NAME)
        probe = images.probe(NAME)
    return probe.image_id or None


def make_and_remove(images: Images, cluster: MemoryCluster) -> None:
    if settle(images) is None:
        images.create(ImageSpec(NAME, 64 * MIB, FEATURES))
    image_id = images.probe(NAME).image_id
    write_data(cluster, PLACE, image_id)
    images.remove(NAME)


def make_and_purge(images: Images, cluster: MemoryCluster, known: list[str]) -> None:
    """Like a create and a delete: the delete knows the image's id, as its record does."""
    if not known:
        image_id = settle(images)
        if image_id is None:
            images.create(ImageSpec(NAME, 64 * MIB, FEATURES))
            image_id = images.probe(NAME).image_id
        write_data(cluster, PLACE, image_id)
        known.append(image_id)
    images.trash(NAME, known[0], 0)
    images.purge(known[0])


def left(cluster: MemoryCluster) -> list[str]:
    """Objects of images, and entries of the directory and of the trash."""
    return [
        f"{name} {key}"
        for name, keys in cluster.contents(PLACE).items()
        for key in (keys if name in {"rbd_directory", "rbd_trash"} else {"": b""})
    ]


@pytest.mark.parametrize(
    "fault",
    [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.DROP, Fault.LOSE_REPLY, Fault.APPLY_LATE],
    ids=lambda fault: fault.value,
)
@pytest.mark.parametrize("purged", [False, True], ids=["removed", "trashed and purged"])
def test_every_interruption_is_finished_by_the_next_process(fault: Fault, purged: bool) -> None:
    for call in itertools.count(1):
        cluster = MemoryCluster()
        known: list[str] = []

        def work(session: MemorySession, cluster: MemoryCluster = cluster, known: list[str] = known) -> None:
            images = session.images(PLACE)
            make_and_purge(images, cluster, known) if purged else make_and_remove(images, cluster)

        faults = FaultsAt({call: fault})
        first = MemorySession(cluster, client="1", faults=faults)
        with contextlib.suppress(Crash, ValueError):  # only writes can be lost: a read refuses to be
            work(first)
        assert first.process.dead or faults.calls[-1].number != call or faults.calls[-1].write is None
        second = MemorySession(cluster, client="2")
        second.fence(first.addresses)
        cluster.deliver_late()
        work(second)
        assert left(cluster) == [], f"{fault.value} at call {call}"
        if len(faults.calls) < call:
            break
    assert call > 20


def test_a_cluster_that_is_away_passes_and_leaves_nothing_final() -> None:
    decisions: dict[int, Decision] = {3: StoreUnavailableError("away")}
    session = MemorySession(MemoryCluster(), faults=FaultsAt(decisions))
    images = session.images(PLACE)
    with pytest.raises(Exception, match="away"):
        images.create(ImageSpec(NAME, 64 * MIB, FEATURES))
    assert settle(images) is None
    images.create(ImageSpec(NAME, 64 * MIB, FEATURES))


def test_the_dead_do_nothing_any_more() -> None:
    cluster = MemoryCluster()
    session = MemorySession(cluster, faults=FaultsAt({1: Fault.CRASH_AFTER}))
    with pytest.raises(Crash):
        session.fence(["192.0.2.1:0/1"])
    assert cluster.fenced() == {"192.0.2.1:0/1"}
    with pytest.raises(Crash):
        session.images(PLACE).create(ImageSpec(NAME, 64 * MIB, FEATURES))
    with pytest.raises(Crash):
        session.store(PLACE).read("x")
    assert left(cluster) == []


CHILD = textwrap.dedent(
    """
    import concurrent.futures, itertools, os, sys
    from csi.ceph.sessions import CephSessions
    from csi.clusters import ClusterConfig
    from csi.images import ImageSpec
    from csi.node.ports import Credentials
    from omap.store import Place

    session = CephSessions().open(ClusterConfig("micro", (sys.argv[1],)), Credentials(sys.argv[2], input()))
    images = session.images(Place("micro", "rbd2"))
    print(*session.addresses, flush=True)

    def work(worker):
        for number in itertools.count():
            name = f"{sys.argv[3]}-{worker}-{number}"
            os.write(1, f"begin {name}\\n".encode())
            images.create(ImageSpec(name, 64 << 20, 61))
            image_id = images.probe(name).image_id
            os.write(1, f"made {name} {image_id}\\n".encode())
            images.trash(name, image_id, 0)
            images.purge(image_id)
            os.write(1, f"end {name}\\n".encode())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, worker) for worker in range(4)]:
            future.result()
    """
)


@pytest.mark.ceph
@pytest.mark.parametrize("kill", range(KILLS))
def test_what_a_killed_process_left_is_finished(
    ceph: MicroCeph, ceph_session: DriverSession, admin: rados.Rados, kill: int
) -> None:
    """SIGKILL at an arbitrary moment of four threads that create, trash and purge."""
    lines_before_kill = random.Random(kill).randrange(8, 40)
    command = [sys.executable, "-c", CHILD, ceph.monitors, ceph.user, f"kill-{kill}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(ceph.key + "\n")
        child.stdin.flush()
        addresses = child.stdout.readline().split()
        lines = [child.stdout.readline() for _ in range(lines_before_kill)]
        child.kill()
        lines += [line for line in child.stdout if line.endswith("\n")]
    ids: dict[str, str | None] = {}
    for what, name, *told in (line.split() for line in lines):
        ids[name] = told[0] if told else (None if what == "begin" else ids[name])

    ceph_session.fence(addresses)
    ceph_session.barrier()
    images = ceph_session.images(Place("micro", "rbd2"))
    rig = CephRig(ceph, ceph_session, admin, Place("micro", "rbd2"), None)
    for name, known in ids.items():
        if known is None:
            if images.probe(name).condition is ImageCondition.HALF_MADE:
                images.repair(name)
            if images.probe(name).condition is ImageCondition.ABSENT:
                images.create(ImageSpec(name, 64 * MIB, FEATURES))
        image_id = known or images.probe(name).image_id
        images.trash(name, image_id, 0)
        images.purge(image_id)
        assert rig.parts(name, image_id) == frozenset()

    assert set(rig.objects_of("rbd_")) <= {"rbd_info", "rbd_directory", "rbd_trash"}
    assert images.trash_entries() == ()
