"""What one host holds of a test bed's volumes: mapper daemons, loops, krbd maps, mounts, kept keys.

As a program it prints that of the host it runs on as JSON, for a bed whose node is another one.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Self

from e2e.harness import kernel, processes

_MAPPER = "qemu-storage-daemon"


@dataclasses.dataclass(frozen=True, slots=True)
class HostContents:
    """`devices` are parts of mapped images, a line each; `mounts` are (volume, path)."""

    devices: frozenset[str]
    mounts: frozenset[tuple[str, str]]
    stage_keys: frozenset[str]

    @classmethod
    def of_this_host(cls, folder: pathlib.Path) -> Self:
        """What this host holds of the test bed in `folder`."""
        return cls(frozenset(devices(folder)), frozenset(mounts(folder)), frozenset(stage_keys(folder)))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What another host printed."""
        told = json.loads(text)
        found = frozenset((str(volume), str(path)) for volume, path in told["mounts"])
        return cls(frozenset(told["devices"]), found, frozenset(told["stage_keys"]))

    def to_json(self) -> str:
        """For `from_json`."""
        return json.dumps({name: sorted(lines) for name, lines in dataclasses.asdict(self).items()})


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


if __name__ == "__main__":
    print(HostContents.of_this_host(pathlib.Path(sys.argv[1])).to_json())
