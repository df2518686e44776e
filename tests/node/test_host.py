"""What only a real host shows: processes, the kernel's answers, what other tools wrote."""

from __future__ import annotations

import hashlib
import os
import pathlib
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from csi.node.fuse import FuseMapper
from csi.node.map_folder import MapFolder
from csi.node.mkfs_options import mkfs_options
from csi.node.ports import Content, Credentials, Detected, Device
from csi.node.run import Runner
from executor.errors import (
    DeniedError,
    InUseError,
    InvalidError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from tests.node.conftest import HostBench

pytestmark = pytest.mark.ceph

MIB = 1 << 20


def tool(host: HostBench, *argv: str) -> None:
    done = host.runner.run(argv, timeout=30)
    assert done.code == 0, done


def mapped(host: HostBench, size_bytes: int = 64 * MIB) -> Device:
    return host.mapper.map(host.target(size_bytes=size_bytes), host.credentials)


def nothing_is_left(host: HostBench, volume: str) -> bool:
    folder = MapFolder(host.run_dir.resolve() / "maps" / volume)
    return not folder.path.exists() and not folder.is_mounted() and not host.daemons(volume)


class TestFuseMapper:
    @pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
    def test_data_outlives_unmap_and_map(self, host: HostBench, fs_type: str) -> None:
        target, staging = host.target(size_bytes=320 * MIB), host.kubelet / "staging"
        device = host.mapper.map(target, host.credentials)
        host.file_systems.make(device.path, fs_type, mkfs_options(fs_type, ""))
        host.mounts.mount(device.path, str(staging), fs_type, [])
        data = os.urandom(3 * MIB)
        (staging / "data").write_bytes(data)
        host.mounts.unmount(str(staging))
        host.mapper.unmap(target.volume)
        assert nothing_is_left(host, target.volume)
        device = host.mapper.map(target, host.credentials)
        host.mounts.mount(device.path, str(staging), fs_type, [])
        assert hashlib.sha256((staging / "data").read_bytes()).digest() == hashlib.sha256(data).digest()

    def test_an_image_of_a_namespace_is_mapped(self, host: HostBench) -> None:
        target = host.target(namespace="ns1", size_bytes=16 * MIB)
        device = host.mapper.map(target, host.credentials)
        assert host.mounts.device_size(device.path) == 16 * MIB

    def test_a_read_only_map_takes_no_writes(self, host: HostBench) -> None:
        device = host.mapper.map(host.target(read_only=True), host.credentials)
        assert pathlib.Path("/sys/block", pathlib.Path(device.path).name, "ro").read_text().strip() == "1"
        with pytest.raises(PermissionError), pathlib.Path(device.path).open("r+b", buffering=0) as file:
            file.write(bytes(512))

    def test_the_key_is_in_no_argument_environment_or_file(self, host: HostBench) -> None:
        device = mapped(host)
        key = host.credentials.key.encode()
        (daemon,) = host.daemons(device.volume)
        proc = pathlib.Path(f"/proc/{daemon}")
        assert key not in proc.joinpath("cmdline").read_bytes() + proc.joinpath("environ").read_bytes()
        folder = MapFolder(host.run_dir.resolve() / "maps" / device.volume)
        for path in folder.path.iterdir():
            assert path == folder.export or key not in path.read_bytes()

    def test_the_daemon_does_not_inherit_the_lock(self, host: HostBench) -> None:
        lock = os.open(host.root / "lock", os.O_CREAT | os.O_RDWR)
        mapper = FuseMapper(host.run_dir, Runner(lock))
        device = mapper.map(host.target(), host.credentials)
        (daemon,) = host.daemons(device.volume)
        opened = {str(link.readlink()) for link in pathlib.Path(f"/proc/{daemon}/fd").iterdir()}
        assert str(host.root / "lock") not in opened
        os.close(lock)

    def test_an_image_that_is_not_there_leaves_nothing(self, host: HostBench) -> None:
        target = replace(host.target(), image_name="no-such-image")
        with pytest.raises(PreconditionError, match="no-such-image"):
            host.mapper.map(target, host.credentials)
        assert nothing_is_left(host, target.volume)

    def test_an_image_of_another_size_is_not_kept_mapped(self, host: HostBench) -> None:
        target = replace(host.target(), size_bytes=65 * MIB)
        with pytest.raises(PreconditionError, match=str(65 * MIB)):
            host.mapper.map(target, host.credentials)
        assert nothing_is_left(host, target.volume)

    def test_an_image_that_became_larger_while_it_was_to_be_mapped_is_mapped(self, host: HostBench) -> None:
        target = host.target()
        host.resize(target, 65 * MIB)
        device = host.mapper.map(target, host.credentials)
        assert host.mounts.device_size(device.path) == 65 * MIB

    def test_a_device_that_is_large_enough_leaves_the_image_alone(self, host: HostBench) -> None:
        target = host.target()
        device = host.mapper.map(target, host.credentials)
        host.mapper.expand(target.volume, 32 * MIB)
        host.mapper.unmap(target.volume)
        assert host.mapper.map(target, host.credentials).path == device.path
        assert host.mounts.device_size(device.path) == 64 * MIB

    def test_a_daemon_that_never_serves_leaves_nothing(self, host: HostBench) -> None:
        target = host.target()
        impatient = FuseMapper(host.run_dir, host.runner, map_seconds=0.5)
        host.ceph.pause("osd")
        try:
            with pytest.raises(UnavailableError, match=target.image_name):
                impatient.map(target, host.credentials)
            assert nothing_is_left(host, target.volume)
        finally:
            host.ceph.resume("osd")
        host.mapper.map(target, host.credentials)

    def test_a_wrong_key_leaves_nothing_and_is_not_told(self, host: HostBench) -> None:
        target = host.target()
        wrong = Credentials("waymark", "AQBXJlBlAAAAABAAb3duIGtleSBub3QgdGhlIG9uZQ==")
        impatient = FuseMapper(host.run_dir, host.runner, map_seconds=1)
        with pytest.raises((UnavailableError, DeniedError)) as caught:
            impatient.map(target, wrong)
        assert wrong.key not in str(caught.value)
        assert nothing_is_left(host, target.volume)

    def test_a_key_of_any_length_is_answered(self, host: HostBench) -> None:
        with pytest.raises(UnauthenticatedError):
            host.mapper.map(host.target(), Credentials("waymark", "k" * (1 << 20)))

    def test_map_options_are_refused_by_name(self, host: HostBench) -> None:
        with pytest.raises(InvalidError, match="lock_on_read"):
            host.mapper.map(replace(host.target(), options=("lock_on_read",)), host.credentials)

    def test_a_stopped_daemon_is_killed_by_unmap(self, host: HostBench) -> None:
        device = mapped(host)
        (daemon,) = host.daemons(device.volume)
        host.lose_device(device.volume)
        os.kill(daemon, signal.SIGSTOP)
        mapper = FuseMapper(host.run_dir, host.runner, term_seconds=0.1)
        mapper.unmap(device.volume)
        assert nothing_is_left(host, device.volume)

    def test_remains_of_before_a_reboot_are_replaced(self, host: HostBench) -> None:
        target = host.target()
        folder = MapFolder(host.run_dir.resolve() / "maps" / target.volume)
        folder.path.mkdir(parents=True)
        folder.pid_file.write_text(f"{os.getpid()}\n")
        folder.export.touch()
        assert host.mapper.find(target.volume) is None
        assert host.mapper.map(target, host.credentials) == host.mapper.find(target.volume)

    def test_a_device_without_an_identity_is_not_told_as_anybodys(self, host: HostBench) -> None:
        device = mapped(host)
        (host.run_dir / "maps" / device.volume / "identity.json").unlink()
        with pytest.raises(PreconditionError, match=device.path):
            host.mapper.find(device.volume)
        host.mapper.unmap(device.volume)
        assert nothing_is_left(host, device.volume)

    def test_a_device_kept_open_is_told_with_its_user(self, host: HostBench) -> None:
        device = mapped(host)
        with host.user_of(device.path) as user, pytest.raises(InUseError, match=user):
            host.mapper.unmap(device.volume)
        host.mapper.unmap(device.volume)
        assert nothing_is_left(host, device.volume)


class TestFileSystems:
    def test_a_file_system_that_is_mounted_read_only_does_not_grow_and_the_text_says_why(
        self, host: HostBench
    ) -> None:
        target, staging = host.target(size_bytes=320 * MIB), str(host.kubelet / "staging")
        device = host.mapper.map(target, host.credentials)
        host.file_systems.make(device.path, "xfs", mkfs_options("xfs", ""))
        host.mounts.mount(device.path, staging, "xfs", ["ro"])
        host.resize(target, 640 * MIB)
        host.mapper.expand(target.volume, 640 * MIB)
        with pytest.raises(PreconditionError, match=f"{staging}.*Read-only.*mounted for writing"):
            host.file_systems.grow(device.path, staging, "xfs")
        assert not host.file_systems.fills(device.path, staging, "xfs")

    def test_a_partition_table_is_somebodys(self, host: HostBench) -> None:
        device = mapped(host)
        table = bytearray(512)
        table[446:462] = (
            bytes([0, 0, 2, 0, 0x83, 0, 3, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
        )
        table[510:512] = b"\x55\xaa"
        with pathlib.Path(device.path).open("r+b") as file:
            file.write(table)
        assert host.file_systems.detect(device.path) == Detected(Content.OTHER, "dos")

    def test_swap_space_is_somebodys(self, host: HostBench) -> None:
        device = mapped(host)
        tool(host, "mkswap", device.path)
        assert host.file_systems.detect(device.path) == Detected(Content.OTHER, "swap")

    def test_a_luks_header_is_somebodys(self, host: HostBench) -> None:
        device = mapped(host)
        with pathlib.Path(device.path).open("r+b") as file:
            file.write(b"LUKS\xba\xbe\x00\x01".ljust(592, b"\1"))
        found = host.file_systems.detect(device.path)
        assert found == Detected(Content.OTHER, "crypto_LUKS")
        with pytest.raises(PreconditionError, match="crypto_LUKS"):
            host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))

    def test_data_at_the_very_end_is_somebodys(self, host: HostBench) -> None:
        device = mapped(host)
        with pathlib.Path(device.path).open("r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"end")
        assert host.file_systems.detect(device.path) == Detected(Content.OTHER)

    def test_a_mounted_device_is_neither_erased_nor_formatted(self, host: HostBench) -> None:
        device = mapped(host)
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
        host.mounts.mount(device.path, str(host.kubelet / "staging"), "ext4", [])
        with pytest.raises(PreconditionError, match="in use"):
            host.file_systems.erase(device.path)
        with pytest.raises(PreconditionError, match="ext4"):
            host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))

    def test_an_xfs_that_is_too_small_is_explained(self, host: HostBench) -> None:
        with pytest.raises(InvalidError, match="300MB"):
            host.file_systems.make(mapped(host).path, "xfs", mkfs_options("xfs", ""))

    def test_options_reach_the_tool(self, host: HostBench) -> None:
        device = mapped(host)
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", "-L 'my label' -m1"))
        done = host.runner.run(["blkid", "-p", "-o", "value", "-s", "LABEL", device.path], timeout=10)
        assert done.stdout.strip() == "my label"


class TestMounts:
    def test_a_damaged_file_system_is_not_mounted(self, host: HostBench) -> None:
        device = mapped(host)
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
        with pathlib.Path(device.path).open("r+b") as file:
            file.seek(1024 + 32)
            file.write(b"\xff" * 16)
        with pytest.raises(PreconditionError, match="fsck"):
            host.mounts.mount(device.path, str(host.kubelet / "staging"), "ext4", [])

    def test_symlinks_are_not_followed(self, host: HostBench) -> None:
        device = mapped(host)
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
        elsewhere, link = host.root / "elsewhere", host.kubelet / "link"
        elsewhere.mkdir()
        link.symlink_to(elsewhere)
        with pytest.raises(InvalidError, match="symlink"):
            host.mounts.mount(device.path, str(link), "ext4", [])
        host.mounts.mount(device.path, str(elsewhere), "ext4", [])
        assert host.mounts.at(str(link)) is None
        with pytest.raises(PreconditionError):
            host.mounts.unmount(str(link))
        assert host.mounts.at(str(elsewhere)) is not None

    def test_odd_names_are_found_in_the_table(self, host: HostBench) -> None:
        device, target = mapped(host), host.kubelet / "a b\\c\n#d"
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
        host.mounts.mount(device.path, str(target), "ext4", [])
        assert host.mounts.at(str(target)) is not None
        host.mounts.unmount(str(target))
        assert not target.exists()

    def test_mounts_upon_each_other_are_all_taken_away(self, host: HostBench) -> None:
        device, target = mapped(host), host.kubelet / "stack"
        host.file_systems.make(device.path, "ext4", mkfs_options("ext4", ""))
        host.mounts.mount(device.path, str(target), "ext4", [])
        tool(host, "mount", "--bind", str(target), str(target))
        host.mounts.unmount(str(target))
        assert not target.exists()
        assert host.mounts.of_device(device.path) == ()

    def test_a_folder_where_a_device_belongs_is_refused(self, host: HostBench) -> None:
        target = host.kubelet / "block"
        target.mkdir()
        with pytest.raises(PreconditionError, match="folder"):
            host.mounts.bind(mapped(host).path, str(target), read_only=False, is_device=True)

    def test_a_file_that_holds_something_is_never_removed(self, host: HostBench) -> None:
        host.put_file(host.kubelet / "file")
        with pytest.raises(PreconditionError):
            host.mounts.unmount(str(host.kubelet / "file"))
