"""What the kernel's RBD driver says in sysfs (Documentation/ABI/testing/sysfs-bus-rbd)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

from csi.node.map_file import MappedImage

_NO_SNAPSHOT = "-"


@dataclass(frozen=True, slots=True)
class KernelMap:
    """One mapped image.  `client_address` is what the cluster sees it as; `options` are those of the map."""

    device: str
    fsid: str
    pool_id: int
    image_id: str
    snapshot: str
    size_bytes: int
    read_only: bool
    client_address: str
    options: frozenset[str]

    def is_of(self, image: MappedImage) -> bool:
        """Whether this is a map of the image's head that Waymark made."""
        mine = (self.fsid, self.pool_id, self.image_id) == (image.fsid, image.pool_id, image.image_id)
        return mine and self.snapshot == _NO_SNAPSHOT and "noshare" in self.options


class SysfsRbd:
    """The RBD driver of this kernel."""

    def __init__(self, sysfs: pathlib.Path = pathlib.Path("/sys")) -> None:
        self._bus = sysfs / "bus" / "rbd"
        self._block = sysfs / "block"

    def is_loaded(self) -> bool:
        """Whether the driver is there."""
        return self._bus.is_dir()

    def supported_features(self) -> int:
        """The image features that it can map, as librbd's bits."""
        return int((self._bus / "supported_features").read_text(encoding="ascii"), 16)

    def has_udev(self) -> bool:
        """Whether udev runs here: `rbd` waits for it to name the device, for ever if there is none."""
        return pathlib.Path("/run/udev/control").exists()

    def maps(self) -> Iterator[KernelMap]:
        """Every image that is mapped; one that goes just now is left out."""
        devices = self._bus / "devices"
        for folder in sorted(devices.iterdir()) if devices.is_dir() else ():
            try:
                yield self._map(folder)
            except OSError:
                continue

    def refresh(self, kernel_map: KernelMap) -> None:
        """Have the driver look at the image's header; returns once it has.  OSError if it is not mapped."""
        name = kernel_map.device.removeprefix("/dev/rbd")
        (self._bus / "devices" / name / "refresh").write_text("1", encoding="ascii")

    def _map(self, folder: pathlib.Path) -> KernelMap:
        def told(name: str) -> str:
            return (folder / name).read_text(encoding="utf-8", errors="surrogateescape").strip()

        config = told("config_info").split(" ")  # monitors, options, pool, image, snapshot
        name = f"rbd{folder.name}"
        return KernelMap(
            device=f"/dev/{name}",
            fsid=told("cluster_fsid"),
            pool_id=int(told("pool_id")),
            image_id=told("image_id"),
            snapshot=told("current_snap"),
            size_bytes=int(told("size")),
            read_only=(self._block / name / "ro").read_text(encoding="ascii").strip() == "1",
            client_address=told("client_addr"),
            options=frozenset(config[1].split(",")),
        )
