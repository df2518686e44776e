"""The memory node under faults: a crash before and after each call, and replies that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from _pytest.mark import ParameterSet

from csi.images import ImageSpec
from csi.memory_images import memory_images
from csi.node.image_watcher import ImageWatcher
from csi.node.memory import MemoryDisks, MemoryHost, MemoryNode
from csi.node.ports import Content, Credentials, MapTarget
from executor.errors import PermanentError, UnavailableError
from omap.faults import CallKind, Crash, Fault, FaultsAt
from omap.memory import MemoryCluster, MemoryStore
from omap.store import Place, StoreUnavailableError

TARGET = MapTarget("volume", Place("test", "rbd"), 1, "csi-vol-volume", "1f", 1 << 30, ())
CREDENTIALS = Credentials("waymark", "key")
STAGING, MOUNT, BLOCK = "/kubelet/staging", "/kubelet/pod/mount", "/kubelet/pod/block"


def stage(node: MemoryNode) -> None:
    """Map, format once, mount, bind, bind the device; each step after a look, as the operations do it."""
    device = node.mapper.find(TARGET.volume) or node.mapper.map(TARGET, CREDENTIALS)
    found = node.file_systems.detect(device.path)
    if found.content is Content.OTHER:  # this test's own remains
        node.file_systems.erase(device.path)
    if found.content is not Content.FILE_SYSTEM:
        node.file_systems.make(device.path, "ext4", [])
    node.mounts.mount(device.path, STAGING, "ext4", ["noatime"])
    node.mounts.bind(STAGING, MOUNT, read_only=True, is_device=False)
    node.mounts.bind(device.path, BLOCK, read_only=False, is_device=True)


def unstage(node: MemoryNode) -> None:
    for target in (BLOCK, MOUNT, STAGING):
        node.mounts.unmount(target)
    node.mapper.unmap(TARGET.volume)


def state(host: MemoryHost) -> tuple[object, ...]:
    return host.mappings, host.mounts, host.folders, host.files, host.disks._contents


def calls_of(work: Callable[[MemoryNode], None], host: MemoryHost) -> int:
    faults = FaultsAt()
    work(MemoryNode(host, faults))
    return len(faults.calls)


def prepared(work: Callable[[MemoryNode], None]) -> MemoryHost:
    host = MemoryHost()
    if work is unstage:
        stage(MemoryNode(host))
    return host


def points() -> Iterator[ParameterSet]:
    for work in (stage, unstage):
        for number in range(1, calls_of(work, prepared(work)) + 1):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                yield pytest.param(work, number, fault, id=f"{work.__name__}-{number}-{fault.value}")


@pytest.mark.parametrize(("work", "number", "fault"), list(points()))
def test_work_that_a_crash_interrupted_is_completed_by_the_next_plugin(
    work: Callable[[MemoryNode], None], number: int, fault: Fault
) -> None:
    undisturbed, host = prepared(work), prepared(work)
    work(MemoryNode(undisturbed))
    doomed = MemoryNode(host, FaultsAt({number: fault}))
    with pytest.raises(Crash):
        work(doomed)
    with pytest.raises(Crash):
        doomed.mapper.find(TARGET.volume)
    work(MemoryNode(host))
    assert state(host) == state(undisturbed)


def test_a_lost_reply_leaves_the_effect() -> None:
    host, faults = MemoryHost(), FaultsAt({2: Fault.LOSE_REPLY})
    with pytest.raises(UnavailableError):
        MemoryNode(host, faults).mapper.map(TARGET, CREDENTIALS)
    assert host.mappings[TARGET.volume].daemon_alive
    assert [call.kind for call in faults.calls] == [CallKind.READ, CallKind.WRITE]


@pytest.mark.parametrize("fault", [Fault.DROP, StoreUnavailableError("the node is slow")])
def test_a_failed_call_leaves_no_effect(fault: Fault | StoreUnavailableError) -> None:
    host = MemoryHost()
    with pytest.raises(UnavailableError):
        MemoryNode(host, FaultsAt({2: fault})).mapper.map(TARGET, CREDENTIALS)
    assert host.mappings == {}


def test_a_reboot_takes_devices_and_mounts_but_not_what_is_on_the_images() -> None:
    host = MemoryHost()
    stage(MemoryNode(host))
    host.reboot()
    node = MemoryNode(host)
    assert node.mapper.find(TARGET.volume) is None
    assert node.mounts.at(STAGING) is None
    device = node.mapper.map(TARGET, CREDENTIALS)
    assert node.file_systems.detect(device.path).kind == "ext4"


def test_two_hosts_see_the_same_image() -> None:
    disks = MemoryDisks()
    stage(MemoryNode(MemoryHost(disks)))
    other = MemoryNode(MemoryHost(disks))
    device = other.mapper.map(TARGET, CREDENTIALS)
    assert other.file_systems.detect(device.path).content is Content.FILE_SYSTEM


def test_the_images_show_what_the_node_does_to_them() -> None:
    cluster, place = MemoryCluster(), Place("test", "rbd")
    images = memory_images(MemoryStore(cluster, place), lambda: None, ())
    images.create(ImageSpec("csi-vol-volume", 1 << 30, features=61))
    target = replace(TARGET, image_id=images.probe("csi-vol-volume").image_id)
    node = MemoryNode(MemoryHost(MemoryDisks(ImageWatcher(cluster, "192.0.2.1:0/1"))))
    device = node.mapper.map(target, CREDENTIALS)
    assert images.probe("csi-vol-volume").watchers == ("192.0.2.1:0/1",)
    assert not images.is_allocated("csi-vol-volume")
    node.file_systems.make(device.path, "ext4", [])
    assert images.is_allocated("csi-vol-volume")
    node.file_systems.erase(device.path)
    assert not images.is_allocated("csi-vol-volume")
    node.mapper.unmap(target.volume)
    assert images.probe("csi-vol-volume").watchers == ()


def test_a_killed_daemon_under_a_mount_still_unmounts_and_unmaps() -> None:
    host = MemoryHost()
    stage(MemoryNode(host))
    host.mappings[TARGET.volume].daemon_alive = False
    node = MemoryNode(host)
    with pytest.raises(PermanentError):
        node.mapper.map(TARGET, CREDENTIALS)
    unstage(node)
    assert host.mappings == {}
    assert host.folders == host.files == set()
