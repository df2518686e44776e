"""A node in memory: mapper, file systems and mounts without a kernel; product code that drives simulations.

A `MemoryNode` is one plugin process on a `MemoryHost`; after a crash, open another one on the same host.
Each effect is made of the calls that the real tools make one after the other (mapper daemon, then loop
device; folder, then mount), and `Faults` are asked before each of them: a crash before or after any one
leaves every half-made form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from csi.node.memory_host import MemoryDisks, MemoryHost, MemoryProcess
from csi.node.mount_flags import with_defaults
from csi.node.ports import Content, Credentials, Detected, Device, FileSystemUsage, MapTarget, Mount
from executor.errors import InUseError, InvalidError, PreconditionError, UnavailableError
from omap.faults import Faults

__all__ = ["MemoryDisks", "MemoryHost", "MemoryNode"]

GARBAGE = Detected(Content.OTHER)
"""What a mkfs that was interrupted leaves."""

_KNOWN_FLAGS = frozenset(
    {
        *(
            "ro",
            "rw",
            "noatime",
            "nodiratime",
            "relatime",
            "strictatime",
            "sync",
            "dirsync",
            "nodev",
            "nosuid",
            "noexec",
        ),
        *("discard", "nodiscard", "nouuid", "errors=remount-ro"),
    }
)


class MemoryMapper:
    """Stands in for the default mapper, and maps in more steps, as `fuse` does: a daemon, then a device."""

    name = "krbd"

    def __init__(self, node: MemoryProcess) -> None:
        self._node = node

    def find(self, volume: str) -> Device | None:
        """The volume's device if daemon and device are both there."""
        with self._node.look(f"find {volume}"):
            return self._found(volume)

    def map(self, target: MapTarget, credentials: Credentials) -> Device:
        """Map the image; a dead daemon's remains are replaced."""
        del credentials
        host, volume = self._node.host, target.volume
        with self._node.look(f"find {volume}"):
            mapping = host.mappings.get(volume)
            if mapping is not None and (mapping.target.pool_id, mapping.target.image_id) != (
                target.pool_id,
                target.image_id,
            ):
                raise PreconditionError(
                    f"volume {volume} is mapped on this node with image {mapping.target.image_id} of pool "
                    f"{mapping.target.pool_id}, not {target.image_id} of {target.pool_id}; unstage it first"
                )
            device = self._found(volume)
            if device is not None:
                return device
        if mapping is not None and not mapping.daemon_alive:
            self.unmap(volume)
            mapping = None
        if mapping is None:
            with self._node.effect(f"map {volume}: daemon"):
                mapping = host.open(volume, target)
        with self._node.effect(f"map {volume}: device"):
            taken = {each.path for each in host.mappings.values()}
            mapping.path = next(path for path in _device_paths() if path not in taken)
        return Device(mapping.path, volume, target.pool_id, target.image_id, target.read_only)

    def unmap(self, volume: str) -> None:
        """Take device and daemon away, in this order."""
        host = self._node.host
        with self._node.look(f"find {volume}"):
            mapping = host.mappings.get(volume)
        if mapping is None:
            return
        if mapping.path:
            with self._node.effect(f"unmap {volume}: device"):
                targets = [mount.target for mount in host.mounts if mount.source == mapping.path]
                if targets:
                    raise InUseError(f"{mapping.path} of volume {volume} is mounted at {', '.join(targets)}")
                mapping.path = ""
        with self._node.effect(f"unmap {volume}: daemon"):
            host.close(mapping)
            del host.mappings[volume]

    def expand(self, volume: str, size_bytes: int) -> None:
        """Show the image's new size."""
        with self._node.effect(f"expand {volume}"):
            mapping = self._node.host.mappings.get(volume)
            if mapping is None:
                raise UnavailableError(f"volume {volume} is not mapped on this node; stage it again")
            if mapping.target.size_bytes < size_bytes:
                self._node.host.resize(mapping, size_bytes)

    def is_clear(self, volume: str) -> bool:
        """Whether no mapping is there, in whatever form."""
        with self._node.look(f"find {volume}"):
            return volume not in self._node.host.mappings

    def watching(self, volume: str) -> frozenset[str] | None:
        """A daemon does not tell its address."""
        return frozenset() if self.is_clear(volume) else None

    def _found(self, volume: str) -> Device | None:
        mapping = self._node.host.mappings.get(volume)
        if mapping is None or not mapping.daemon_alive or not mapping.path:
            return None
        target = mapping.target
        return Device(mapping.path, volume, target.pool_id, target.image_id, target.read_only)


def _device_paths() -> Iterator[str]:
    number = 0
    while True:
        yield f"/dev/loop{number}"
        number += 1


class MemoryFileSystems:
    """Knows of a device only what kind of content it has."""

    def __init__(self, node: MemoryProcess) -> None:
        self._node = node

    def detect(self, device: str) -> Detected:
        """What is on the image that the device shows."""
        with self._node.look(f"detect {device}"):
            return self._node.host.disks.get(self._shown(device))

    def make(self, device: str, fs_type: str, options: Sequence[str]) -> None:
        """Write garbage, then a file system; a crash in between leaves the garbage."""
        disks = self._node.host.disks
        with self._node.look(f"detect {device}"):
            target = self._shown(device)
            found = disks.get(target)
        if found.content is not Content.EMPTY:
            raise PreconditionError(
                f"{device} carries {found.kind or 'unknown data'} and is not formatted over it"
            )
        if any(not option.startswith("-") for option in options):
            raise InvalidError(f"mkfs.{fs_type} refuses the options {' '.join(options)}")
        with self._node.effect(f"mkfs {device}: begin"):
            disks.put(target, GARBAGE)
        with self._node.effect(f"mkfs {device}: end"):
            disks.put(target, Detected(Content.FILE_SYSTEM, fs_type))

    def grow(self, device: str, mounted_at: str, fs_type: str) -> None:
        """Note how large the file system is now."""
        del mounted_at, fs_type
        with self._node.effect(f"grow {device}"):
            target = self._shown(device)
            self._node.host.disks.grow(target)

    def fills(self, device: str, mounted_at: str, fs_type: str) -> bool:
        """Compare with how large the file system is."""
        del mounted_at, fs_type
        with self._node.look(f"size of the file system on {device}"):
            target = self._shown(device)
            return self._node.host.disks.filled(target) >= target.size_bytes

    def erase(self, device: str) -> None:
        """Discard the whole device."""
        with self._node.effect(f"erase {device}"):
            self._node.host.disks.put(self._shown(device), Detected(Content.EMPTY))

    def _shown(self, device: str) -> MapTarget:
        return self._node.host.mapping_at(device).target


class MemoryMounts:
    """A mount table, folders and files as sets of paths."""

    def __init__(self, node: MemoryProcess) -> None:
        self._node = node

    def at(self, target: str) -> Mount | None:
        """The topmost mount at this path."""
        with self._node.look(f"mount table {target}"):
            return self._at(target)

    def exists(self, target: str) -> bool:
        """Whether a mount, folder or file is at this path."""
        with self._node.look(f"exists {target}"):
            host = self._node.host
            return target in host.folders | host.files or self._at(target) is not None

    def of_device(self, path: str) -> tuple[Mount, ...]:
        """Every mount of this device."""
        with self._node.look(f"mount table {path}"):
            return tuple(mount for mount in self._node.host.mounts if mount.source == path)

    def mount(self, device: str, target: str, fs_type: str, flags: Sequence[str]) -> None:
        """Make the folder, then mount; the same mount again is success."""
        host = self._node.host
        options = with_defaults(fs_type, flags)
        refused = [flag for flag in options if flag not in _KNOWN_FLAGS]
        if refused:
            raise InvalidError(f"mount of {device} as {fs_type} refuses the flags {', '.join(refused)}")
        with self._node.look(f"mount table {target}"):
            mapping = host.mapping_at(device)
            if self._is_there(target, mapping.path, "/"):
                return
        with self._node.effect(f"mount {target}: folder"):
            host.folders.add(target)
        with self._node.effect(f"mount {target}: mount"):
            found = host.disks.get(mapping.target)
            if not mapping.daemon_alive or found != Detected(Content.FILE_SYSTEM, fs_type):
                carried = found.kind or found.content.value
                raise PreconditionError(f"{device} cannot be mounted as {fs_type}: it carries {carried}")
            shown = {*options, "ro" if mapping.target.read_only or "ro" in flags else "rw"}
            host.mounts.append(Mount(target, mapping.path, fs_type, frozenset(shown), "/", mapping.path))

    def bind(self, source: str, target: str, *, read_only: bool, is_device: bool) -> None:
        """Make the folder or file, bind, then make the bind read-only.

        A bind of the same source is completed.
        """
        host = self._node.host
        with self._node.look(f"mount table {target}"):
            below = None if is_device else self._at(source)
            if is_device:
                host.mapping_at(source)
            elif below is None:
                raise PreconditionError(f"{source} is not mounted, and a plain folder is never published")
            device = source if below is None else below.source
            fs_type = "devtmpfs" if below is None else below.fs_type
            root = "/" + source.rpartition("/")[2] if below is None else "/"
            there = self._is_there(target, device, root)
        if not there:
            with self._node.effect(f"bind {target}: {'file' if is_device else 'folder'}"):
                (host.files if is_device else host.folders).add(target)
            with self._node.effect(f"bind {target}: bind"):
                options = frozenset({"rw"}) if below is None else below.options
                host.mounts.append(Mount(target, device, fs_type, options, root, device))
        if read_only:
            with self._node.effect(f"bind {target}: read-only"):
                index = max(number for number, mount in enumerate(host.mounts) if mount.target == target)
                mount = host.mounts[index]
                options = (mount.options - {"rw"}) | {"ro"}
                host.mounts[index] = Mount(target, mount.source, mount.fs_type, options, mount.root, device)

    def unmount(self, target: str) -> None:
        """Unmount all that is at this path, then remove the folder or file."""
        host = self._node.host
        while True:
            with self._node.look(f"mount table {target}"):
                mount = self._at(target)
            if mount is None:
                break
            with self._node.effect(f"unmount {target}: unmount"):
                if target in host.busy:
                    raise InUseError(f"{target} is in use by {host.busy[target]}; end it and repeat the call")
                host.mounts.remove(mount)
        with self._node.effect(f"unmount {target}: remove"):
            inside = sorted(path for path in host.files | host.folders if path.startswith(f"{target}/"))
            if inside:
                raise PreconditionError(f"{target} is not empty: it holds {inside[0]}; move that away")
            host.folders.discard(target)
            host.files.discard(target)

    def usage(self, path: str) -> FileSystemUsage:
        """An empty file system as large as its device."""
        with self._node.look(f"usage {path}"):
            size = self._node.host.mapping_at(path).target.size_bytes
            return FileSystemUsage(size, 0, size, size >> 14, 11, (size >> 14) - 11)

    def device_size(self, path: str) -> int:
        """The size that the device was mapped with."""
        with self._node.look(f"size {path}"):
            return self._node.host.mapping_at(path).target.size_bytes

    def _at(self, target: str) -> Mount | None:
        return next((mount for mount in reversed(self._node.host.mounts) if mount.target == target), None)

    def _is_there(self, target: str, source: str, root: str) -> bool:
        mount = self._at(target)
        if mount is None:
            return False
        if (mount.source, mount.root) != (source, root):
            raise PreconditionError(f"{target} already carries a mount of {mount.source}; unmount that first")
        return True


class MemoryNode(MemoryProcess):
    """One plugin process on a host; `mapper`, `file_systems` and `mounts` are what the operations take."""

    def __init__(self, host: MemoryHost, faults: Faults | None = None) -> None:
        super().__init__(host, faults)
        self.mapper = MemoryMapper(self)
        self.file_systems = MemoryFileSystems(self)
        self.mounts = MemoryMounts(self)
