"""An image mapped and mounted as a node plugin does it, by hand."""

from __future__ import annotations

import pathlib
import subprocess
from dataclasses import dataclass

import rbd

from e2e.harness import kernel, processes
from e2e.harness.testbed import Testbed


@dataclass(frozen=True, slots=True)
class Mapped:
    """An image of a volume with this uuid, mapped and mounted."""

    uuid: str
    daemon: int
    staged: pathlib.Path
    published: pathlib.Path


def map_and_mount(bed: Testbed, uuid: str) -> Mapped:
    with bed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
        if uuid not in rbd.RBD().list(ioctx):
            rbd.RBD().create(ioctx, uuid, 1 << 30, old_format=False)
    folder = bed.folder / "run" / "maps" / uuid
    folder.mkdir(parents=True)
    export, pid = folder / "export", folder / "pid"
    export.touch()
    image = f"driver=rbd,node-name=image,pool=rbd,image={uuid},conf={bed.ceph.conf},user=admin,discard=unmap"
    fuse = f"type=fuse,id=export,node-name=image,mountpoint={export},writable=on"
    start = ["qemu-storage-daemon", "--daemonize", "--pidfile", str(pid)]
    run(*start, "--blockdev", image, "--export", fuse)
    loop = run("losetup", "--find", "--show", "--direct-io=on", str(export)).strip()
    run("mkfs.ext4", "-q", loop)
    mapped = Mapped(uuid, int(pid.read_text()), bed.staging_path(uuid), bed.publish_path(uuid))
    mapped.published.mkdir()
    run("mount", loop, str(mapped.staged))
    run("mount", "--bind", str(mapped.staged), str(mapped.published))
    return mapped


def remains(folder: pathlib.Path) -> list[object]:
    found: list[object] = [*kernel.mounts_under(folder), *kernel.loops_under(folder)]
    return found + list(processes.of_folder(folder))


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
