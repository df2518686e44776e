"""What operations may rely on, whether the node is in memory or this host."""

from __future__ import annotations

import pathlib
import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from csi.node.mkfs_options import mkfs_options
from csi.node.ports import Content, Detected, Device
from executor.errors import (
    InUseError,
    InvalidError,
    PermanentError,
    PreconditionError,
    UnavailableError,
)

if TYPE_CHECKING:
    from tests.node.conftest import Bench

MIB = 1 << 20


def mapped(node: Bench) -> Device:
    return node.mapper.map(node.target(), node.credentials)


def formatted(node: Bench, fs_type: str = "ext4", size_bytes: int = 64 * MIB) -> Device:
    device = node.mapper.map(node.target(size_bytes=size_bytes), node.credentials)
    node.file_systems.make(device.path, fs_type, mkfs_options(fs_type, ""))
    return device


def staged(node: Bench) -> tuple[Device, str]:
    device = formatted(node)
    staging = str(node.kubelet / "staging")
    node.mounts.mount(device.path, staging, "ext4", [])
    return device, staging


class TestMapper:
    def test_what_was_never_mapped_is_not_found_and_its_unmap_succeeds(self, node: Bench) -> None:
        volume = str(uuid.uuid4())
        assert node.mapper.find(volume) is None
        node.mapper.unmap(volume)

    def test_a_mapped_image_is_found_with_its_identity(self, node: Bench) -> None:
        target = node.target()
        device = node.mapper.map(target, node.credentials)
        assert device == Device(device.path, target.volume, target.pool_id, target.image_id)
        assert node.mapper.find(target.volume) == device
        assert node.mounts.device_size(device.path) == target.size_bytes

    def test_mapping_again_gives_the_same_device(self, node: Bench) -> None:
        target = node.target()
        assert node.mapper.map(target, node.credentials) == node.mapper.map(target, node.credentials)

    def test_a_restarted_plugin_finds_what_its_predecessor_mapped(self, node: Bench) -> None:
        target = node.target()
        device = node.mapper.map(target, node.credentials)
        node.restart()
        assert node.mapper.find(target.volume) == device

    def test_two_volumes_have_two_devices(self, node: Bench) -> None:
        assert mapped(node).path != mapped(node).path

    def test_another_image_under_the_same_volume_is_refused(self, node: Bench) -> None:
        target, other = node.target(), node.target()
        node.mapper.map(target, node.credentials)
        wrong = replace(other, volume=target.volume)
        with pytest.raises(PreconditionError, match=other.image_id):
            node.mapper.map(wrong, node.credentials)

    def test_after_unmap_nothing_is_found_and_unmap_may_be_repeated(self, node: Bench) -> None:
        device = mapped(node)
        node.mapper.unmap(device.volume)
        assert node.mapper.find(device.volume) is None
        node.mapper.unmap(device.volume)

    def test_a_mounted_device_is_not_unmapped(self, node: Bench) -> None:
        device, staging = staged(node)
        with pytest.raises(InUseError, match=staging):
            node.mapper.unmap(device.volume)
        assert node.mapper.find(device.volume) == device

    def test_a_device_whose_node_is_bound_is_not_unmapped(self, node: Bench) -> None:
        device, target = mapped(node), str(node.kubelet / "block")
        node.mounts.bind(device.path, target, read_only=False, is_device=True)
        with pytest.raises(InUseError, match=target):
            node.mapper.unmap(device.volume)

    def test_a_daemon_without_a_device_is_half_made_and_completed(self, node: Bench) -> None:
        target = node.target()
        node.mapper.map(target, node.credentials)
        node.lose_device(target.volume)
        assert node.mapper.find(target.volume) is None
        device = node.mapper.map(target, node.credentials)
        assert node.mapper.find(target.volume) == device

    def test_a_daemon_without_a_device_is_unmapped(self, node: Bench) -> None:
        device = mapped(node)
        node.lose_device(device.volume)
        node.mapper.unmap(device.volume)
        assert node.mapper.find(device.volume) is None

    def test_a_killed_daemon_is_half_made_and_replaced(self, node: Bench) -> None:
        target = node.target()
        node.mapper.map(target, node.credentials)
        node.kill_daemon(target.volume)
        assert node.mapper.find(target.volume) is None
        node.mapper.map(target, node.credentials)
        assert node.mapper.find(target.volume) is not None

    def test_a_daemon_killed_under_a_mount_is_replaced_only_after_the_unmount(self, node: Bench) -> None:
        target = node.target()
        device = node.mapper.map(target, node.credentials)
        node.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
        staging = str(node.kubelet / "staging")
        node.mounts.mount(device.path, staging, "ext4", [])
        node.kill_daemon(target.volume)
        with pytest.raises(InUseError, match=staging):
            node.mapper.map(target, node.credentials)
        node.mounts.unmount(staging)
        node.mapper.unmap(target.volume)
        assert node.mapper.find(target.volume) is None

    def test_a_read_only_map_says_so(self, node: Bench) -> None:
        target = node.target(read_only=True)
        assert node.mapper.map(target, node.credentials).read_only
        found = node.mapper.find(target.volume)
        assert found is not None
        assert found.read_only


class TestExpansion:
    def test_a_device_and_its_file_system_grow_while_mounted(self, node: Bench) -> None:
        target = node.target(size_bytes=320 * MIB)
        device = node.mapper.map(target, node.credentials)
        node.file_systems.make(device.path, "xfs", mkfs_options("xfs", ""))
        staging = str(node.kubelet / "staging")
        node.mounts.mount(device.path, staging, "xfs", [])
        assert node.file_systems.fills(device.path, staging, "xfs")

        node.resize(target, 640 * MIB)
        node.mapper.expand(target.volume, 640 * MIB)
        assert node.mounts.device_size(device.path) == 640 * MIB
        assert not node.file_systems.fills(device.path, staging, "xfs")
        for _ in range(2):
            node.file_systems.grow(device.path, staging, "xfs")
            assert node.file_systems.fills(device.path, staging, "xfs")
        assert node.mounts.usage(staging).total_bytes > 500 * MIB
        node.mapper.expand(target.volume, 640 * MIB)
        node.mounts.unmount(staging)

    def test_what_is_not_mapped_does_not_grow(self, node: Bench) -> None:
        with pytest.raises(UnavailableError, match="not mapped"):
            node.mapper.expand(str(uuid.uuid4()), 640 * MIB)

    def test_an_ext4_tells_whether_it_fills_its_device(self, node: Bench) -> None:
        device, staging = staged(node)
        assert node.file_systems.fills(device.path, staging, "ext4")


class TestFileSystems:
    def test_a_fresh_image_is_empty(self, node: Bench) -> None:
        assert node.file_systems.detect(mapped(node).path) == Detected(Content.EMPTY)

    def test_what_was_made_is_detected(self, node: Bench) -> None:
        assert node.file_systems.detect(formatted(node).path) == Detected(Content.FILE_SYSTEM, "ext4")

    def test_nothing_is_made_over_a_file_system(self, node: Bench) -> None:
        device = formatted(node)
        with pytest.raises(PreconditionError, match="ext4"):
            node.file_systems.make(device.path, "xfs", mkfs_options("xfs", ""))
        assert node.file_systems.detect(device.path) == Detected(Content.FILE_SYSTEM, "ext4")

    def test_nothing_is_made_over_data_that_no_tool_knows(self, node: Bench) -> None:
        device = mapped(node)
        node.put_garbage(device.path)
        assert node.file_systems.detect(device.path).content is Content.OTHER
        with pytest.raises(PreconditionError):
            node.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))

    def test_an_erased_device_is_empty_and_can_be_formatted(self, node: Bench) -> None:
        device = formatted(node)
        node.file_systems.erase(device.path)
        assert node.file_systems.detect(device.path) == Detected(Content.EMPTY)
        node.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))

    def test_options_that_the_tool_refuses_are_named(self, node: Bench) -> None:
        with pytest.raises(InvalidError, match="nonsense"):
            node.file_systems.make(mapped(node).path, "ext4", ["nonsense", "more"])


class TestMounts:
    def test_what_is_at_a_path(self, node: Bench) -> None:
        device, staging = staged(node)
        node.mounts.bind(device.path, str(node.kubelet / "block"), read_only=False, is_device=True)
        assert node.mounts.exists(staging)
        assert node.mounts.exists(str(node.kubelet / "block"))
        assert not node.mounts.exists(str(node.kubelet / "nothing"))
        node.mounts.unmount(staging)
        assert not node.mounts.exists(staging)

    def test_a_path_without_a_mount(self, node: Bench) -> None:
        assert node.mounts.at(str(node.kubelet / "nothing")) is None
        node.mounts.unmount(str(node.kubelet / "nothing"))

    def test_a_mount_is_seen_at_its_path_and_by_its_device(self, node: Bench) -> None:
        device, staging = staged(node)
        mount = node.mounts.at(staging)
        assert mount is not None
        assert (mount.source, mount.fs_type, mount.root) == (device.path, "ext4", "/")
        assert {"rw", "errors=remount-ro"} <= mount.options
        assert node.mounts.of_device(device.path) == (mount,)
        assert node.mounts.usage(staging).total_bytes > 0

    def test_mounting_again_adds_nothing(self, node: Bench) -> None:
        device, staging = staged(node)
        node.mounts.mount(device.path, staging, "ext4", [])
        assert len(node.mounts.of_device(device.path)) == 1

    def test_another_device_at_the_same_path_is_refused(self, node: Bench) -> None:
        device, staging = staged(node)
        with pytest.raises(PreconditionError, match=device.path):
            node.mounts.mount(formatted(node).path, staging, "ext4", [])

    def test_flags_are_honoured(self, node: Bench) -> None:
        device, target = formatted(node), str(node.kubelet / "flagged")
        node.mounts.mount(device.path, target, "ext4", ["noatime", "ro"])
        mount = node.mounts.at(target)
        assert mount is not None
        assert {"noatime", "ro"} <= mount.options
        assert "rw" not in mount.options

    @pytest.mark.parametrize("flag", ["nonsense=1", "bind", "loop", "X-mount.mkdir", "ro,remount", ""])
    def test_refused_flags_are_named_and_nothing_is_mounted(self, node: Bench, flag: str) -> None:
        device, target = formatted(node), str(node.kubelet / "flagged")
        with pytest.raises(InvalidError, match=re.escape(repr(flag) if flag == "" else flag)):
            node.mounts.mount(device.path, target, "ext4", [flag])
        assert node.mounts.at(target) is None

    def test_a_device_without_a_file_system_is_not_mounted(self, node: Bench) -> None:
        with pytest.raises(PermanentError, match="cannot be mounted"):
            node.mounts.mount(mapped(node).path, str(node.kubelet / "staging"), "ext4", [])

    def test_unmount_takes_the_folder_along(self, node: Bench) -> None:
        device, staging = staged(node)
        node.mounts.unmount(staging)
        assert node.mounts.at(staging) is None
        assert node.mounts.of_device(device.path) == ()
        assert not pathlib.Path(staging).exists()
        node.mounts.unmount(staging)

    def test_a_busy_mount_is_kept_and_its_user_named(self, node: Bench) -> None:
        _, staging = staged(node)
        with node.user_of(staging) as user, pytest.raises(InUseError, match=user):
            node.mounts.unmount(staging)
        assert node.mounts.at(staging) is not None
        node.mounts.unmount(staging)

    def test_a_folder_that_holds_something_is_never_removed(self, node: Bench) -> None:
        _, staging = staged(node)
        node.mounts.unmount(staging)
        folder = pathlib.Path(staging)
        folder.mkdir()
        node.put_file(folder / "precious")
        with pytest.raises(PreconditionError, match="precious"):
            node.mounts.unmount(staging)


class TestBinds:
    def test_a_bind_shows_the_device_of_its_source(self, node: Bench) -> None:
        device, staging = staged(node)
        target = str(node.kubelet / "pod" / "mount")
        node.mounts.bind(staging, target, read_only=False, is_device=False)
        mount = node.mounts.at(target)
        assert mount is not None
        assert mount.source == device.path
        assert {each.target for each in node.mounts.of_device(device.path)} == {staging, target}
        node.mounts.unmount(target)
        assert [each.target for each in node.mounts.of_device(device.path)] == [staging]

    def test_binding_again_adds_nothing_and_may_add_read_only(self, node: Bench) -> None:
        device, staging = staged(node)
        target = str(node.kubelet / "mount")
        for read_only in (False, False, True, True):
            node.mounts.bind(staging, target, read_only=read_only, is_device=False)
            mount = node.mounts.at(target)
            assert mount is not None
            assert ("ro" in mount.options, "rw" in mount.options) == (read_only, not read_only)
        assert len(node.mounts.of_device(device.path)) == 2
        below = node.mounts.at(staging)
        assert below is not None
        assert "rw" in below.options

    def test_a_plain_folder_is_never_bound(self, node: Bench) -> None:
        plain = node.kubelet / "plain"
        plain.mkdir()
        with pytest.raises(PreconditionError, match="not mounted"):
            node.mounts.bind(str(plain), str(node.kubelet / "mount"), read_only=False, is_device=False)
        assert node.mounts.at(str(node.kubelet / "mount")) is None

    def test_a_bind_over_another_mount_is_refused(self, node: Bench) -> None:
        _, staging = staged(node)
        other, target = formatted(node), str(node.kubelet / "mount")
        node.mounts.mount(other.path, target, "ext4", [])
        with pytest.raises(PreconditionError, match=other.path):
            node.mounts.bind(staging, target, read_only=False, is_device=False)

    def test_a_device_node_is_bound_onto_a_file(self, node: Bench) -> None:
        device, target = mapped(node), str(node.kubelet / "pod" / "block")
        for _ in range(2):
            node.mounts.bind(device.path, target, read_only=False, is_device=True)
        mounts = node.mounts.of_device(device.path)
        assert [(mount.target, mount.source) for mount in mounts] == [(target, device.path)]
        assert node.mounts.at(target) == mounts[0]
        assert node.mounts.device_size(target) == node.mounts.device_size(device.path)
        node.mounts.unmount(target)
        assert node.mounts.of_device(device.path) == ()

    def test_what_is_no_device_is_not_bound_as_one(self, node: Bench) -> None:
        with pytest.raises(PreconditionError, match="no block device"):
            node.mounts.bind("/dev/null", str(node.kubelet / "block"), read_only=False, is_device=True)
