"""A node for each contract test: in memory, and this very host on a real Ceph (root, FUSE, loop)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import rbd

from csi.node import daemons, mount_table
from csi.node.filesystems import HostFileSystems
from csi.node.fuse import FuseMapper
from csi.node.map_folder import MapFolder
from csi.node.memory import MemoryHost, MemoryNode
from csi.node.mounts import HostMounts
from csi.node.ports import Content, Credentials, Detected, FileSystems, Mapper, MapTarget, Mounts
from csi.node.run import Runner
from e2e.harness.ceph import MicroCeph
from omap.store import Place

MIB = 1 << 20
SIZE = 64 * MIB


@dataclass
class MemoryBench:
    """A node in memory with what tests do to it from outside."""

    kubelet: pathlib.Path
    host: MemoryHost = field(default_factory=MemoryHost)
    credentials: Credentials = field(default_factory=lambda: Credentials("waymark", "bm90IGEga2V5"))
    images: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        node = MemoryNode(self.host)
        self.mapper: Mapper = node.mapper
        self.file_systems: FileSystems = node.file_systems
        self.mounts: Mounts = node.mounts

    def target(self, *, size_bytes: int = SIZE, read_only: bool = False) -> MapTarget:
        self.images += 1
        volume = str(uuid.uuid4())
        place = Place("test", "rbd")
        return MapTarget(volume, place, 1, f"csi-vol-{volume}", f"{self.images:x}", size_bytes, (), read_only)

    def read_only(self, target: MapTarget) -> MapTarget:
        return replace(target, read_only=True)

    def resize(self, target: MapTarget, size_bytes: int) -> None:
        """Nobody looks at the image's own size here."""

    def kill_daemon(self, volume: str) -> None:
        self.host.mappings[volume].daemon_alive = False

    def lose_device(self, volume: str) -> None:
        self.host.mappings[volume].path = ""

    def put_garbage(self, device: str) -> None:
        target = self.host.mapping_at(device).target
        self.host.disks.put(target, Detected(Content.OTHER))

    @contextlib.contextmanager
    def user_of(self, target: str) -> Iterator[str]:
        self.host.busy[target] = "sleeper (process 42)"
        yield "process 42"
        del self.host.busy[target]

    def put_file(self, path: pathlib.Path) -> None:
        self.host.files.add(str(path))


@dataclass
class HostBench:
    """This host, its runner and a run directory of the test's own."""

    ceph: MicroCeph
    root: pathlib.Path
    kubelet: pathlib.Path
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run_dir = self.root / "run"
        secrets = json.loads(self.ceph.secrets_file.read_text())
        self.credentials = Credentials(secrets["userID"], secrets["userKey"])
        self.restart()

    def restart(self, runner: Runner | None = None) -> None:
        self.runner = runner or Runner(None)
        self.host_mapper = FuseMapper(self.run_dir, self.runner)
        self.mapper: Mapper = self.host_mapper
        self.file_systems: FileSystems = HostFileSystems(self.runner)
        self.mounts: Mounts = HostMounts(self.runner)

    def target(self, *, size_bytes: int = SIZE, read_only: bool = False, namespace: str = "") -> MapTarget:
        volume = str(uuid.uuid4())
        name = f"csi-vol-{volume}"
        with self.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
            ioctx.set_namespace(namespace)
            rbd.RBD().create(ioctx, name, size_bytes)
            with rbd.Image(ioctx, name, read_only=True) as image:
                image_id = image.id()
            pool_id = ioctx.get_pool_id()
        self.made.append(name)
        monitors = (json.loads((self.ceph.folder / "cluster.json").read_text())["monitors"],)
        place = Place("test", "rbd", namespace)
        return MapTarget(volume, place, pool_id, name, image_id, size_bytes, monitors, read_only)

    def read_only(self, target: MapTarget) -> MapTarget:
        return replace(target, read_only=True)

    def resize(self, target: MapTarget, size_bytes: int) -> None:
        with (
            self.ceph.connect() as cluster,
            cluster.open_ioctx(target.place.pool) as ioctx,
            rbd.Image(ioctx, target.image_name) as image,
        ):
            image.resize(size_bytes)

    def daemons(self, volume: str) -> list[int]:
        folder = MapFolder(self.run_dir.resolve() / "maps" / volume)
        return list(daemons.processes(folder.is_daemon))

    def kill_daemon(self, volume: str) -> None:
        for pid in self.daemons(volume):
            fd = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            daemons._ended(fd, 10)
            os.close(fd)

    def lose_device(self, volume: str) -> None:
        device = self.mapper.find(volume)
        assert device is not None
        done = self.runner.run(["losetup", "--detach", device.path], timeout=10)
        assert done.code == 0, done

    def put_garbage(self, device: str) -> None:
        with pathlib.Path(device).open("r+b", buffering=0) as file:
            file.write(b"somebody's data".ljust(4096, b"\0"))
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def user_of(self, target: str) -> Iterator[str]:
        fd = os.open(target, os.O_RDONLY)
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                os.dup2(fd, 0)
                os.execvp("tail", ["tail", "-f", "/dev/null"])
            os._exit(1)
        os.close(fd)
        try:
            yield f"process {pid}"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def put_file(self, path: pathlib.Path) -> None:
        path.write_text("somebody's")

    def clean(self) -> None:
        """Take away all that the test left, whatever it found."""
        self.restart()
        above = f"{os.path.realpath(self.root)}/"
        for mount in reversed(mount_table.mount_table()):
            if mount.target.startswith(above) and not mount.fs_type.startswith("fuse"):
                self.runner.run(["umount", "--", mount.target], timeout=30)
        for volume in self.host_mapper.volumes():
            self.kill_daemon(volume)
            self.host_mapper.unmap(volume)


Bench = MemoryBench | HostBench


@pytest.fixture
def kubelet(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "kubelet"
    folder.mkdir()
    return folder


@pytest.fixture
def host(ceph: MicroCeph, tmp_path: pathlib.Path, kubelet: pathlib.Path) -> Iterator[HostBench]:
    bench = HostBench(ceph, tmp_path, kubelet)
    yield bench
    bench.clean()


@pytest.fixture(params=["memory", pytest.param("host", marks=pytest.mark.ceph)])
def node(request: pytest.FixtureRequest, kubelet: pathlib.Path) -> Bench:
    if request.param == "memory":
        return MemoryBench(kubelet)
    bench = request.getfixturevalue("host")
    assert isinstance(bench, HostBench)
    return bench
