"""What one host holds of a test bed's volumes: mapper daemons, loops, krbd maps, mounts, kept keys."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

from e2e.harness import kernel, processes

_MAPPER = "qemu-storage-daemon"


def devices(folder: pathlib.Path) -> Iterator[str]:
    """Yield a line for each part of a mapped image, by the uuid of its volume."""
    maps = folder / "run" / "maps"
    for process in processes.of_folder(folder):
        if process.program == _MAPPER:
            volumes = [
                path.parent.name for path in map(pathlib.Path, process.arguments) if path.name == "pid"
            ]
            yield f"{volumes[0] if volumes else f'pid {process.pid}'}: storage daemon"
    for backing in kernel.loops_under(folder).values():
        yield f"{backing.parent.name}: loop device"
    for mount in kernel.mounts_under(folder):
        if mount.fs_type.startswith("fuse"):
            yield f"{mount.target.parent.name}: export"
    for path in maps.glob("*"):
        yield f"{path.name}: folder"
    for volume in kernel.rbd_maps().values():
        yield f"{volume}: krbd map"
    for path in (folder / "run" / "krbd").glob("*"):
        yield f"{path.stem}: krbd file"


def mounts(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield volume and path of every mount of a volume or of its device node."""
    volumes = {loop: backing.parent.name for loop, backing in kernel.loops_under(folder).items()}
    volumes |= kernel.rbd_maps()
    for mount in kernel.mounts_under(folder):
        if mount.fs_type.startswith("fuse"):
            continue
        device = mount.source if mount.source in volumes else f"/dev{mount.root}"
        yield volumes.get(device, f"{mount.fs_type} {mount.source}"), str(mount.target)


def stage_keys(folder: pathlib.Path) -> Iterator[str]:
    """Yield the name of every file in which a stage's secret is kept."""
    for path in (folder / "run" / "keys").glob("*"):
        yield path.name
