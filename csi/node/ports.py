"""What the node operations need from a host: a mapper, file systems, mounts.

The kernel is the truth.  Everything here is asked afresh before each step; remembered `/dev` paths are
hints.  Every method may raise UnavailableError (tool or cluster does not answer in its time); beyond it
only what it names.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from omap.store import Place


@dataclass(frozen=True, slots=True)
class Credentials:
    """A Ceph user and its key.  Never printed: `repr` leaves the key out."""

    user: str
    key: str

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


@dataclass(frozen=True, slots=True)
class MapTarget:
    """The image that a device must show.

    `volume` is the volume's UUID, `image_id` Ceph's own id of the image, `fsid` the cluster's, `features` are
    the image's as librbd's bits.
    """

    volume: str
    place: Place
    pool_id: int
    image_name: str
    image_id: str
    size_bytes: int
    monitors: tuple[str, ...]
    read_only: bool = False
    options: tuple[str, ...] = ()
    fsid: str = ""
    features: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """A mapped image.

    `path` is the block device; `image_id` and `pool_id` are what the kernel (or mapper) says it shows.
    """

    path: str
    volume: str
    pool_id: int
    image_id: str
    read_only: bool = False


class Mapper(Protocol):
    """Makes an image a block device of this host and takes it away again.  One device per volume."""

    @property
    def name(self) -> str:
        """As in the StorageClass parameter `mounter`."""

    def find(self, volume: str) -> Device | None:
        """The volume's device if it is mapped, from the kernel's and the mapper's own state.

        A half-made mapping (a daemon without a loop device, or one left by a killed plugin) is told as
        None; `map` completes and `unmap` removes it.  A device whose identity cannot be told is never
        returned: PreconditionError.
        """

    def map(self, target: MapTarget, credentials: Credentials) -> Device:
        """Map the image; already mapped is success.

        PreconditionError if the device shows another image, or the image is not there or smaller than this
        (it may have become larger meanwhile);
        InUseError if what a dead mapper left is still mounted; InvalidError for an option that is not known;
        DeniedError or UnauthenticatedError for an identity that is refused.
        """

    def is_clear(self, volume: str) -> bool:
        """Whether nothing at all of a mapping of the volume is here, not even a half-made one."""

    def watching(self, volume: str) -> frozenset[str] | None:
        """The client addresses by which this host's own mapping of the volume watches its image.

        None where there is a mapping whose address cannot be told.
        """

    def expand(self, volume: str, size_bytes: int) -> None:
        """Have the volume's device show an image that became `size_bytes` large; shows it already is success.

        The caller asks just before how large the image is: some mappers give it the size that they are told.
        UnavailableError when the device does not get that large, or is not there.
        """

    def unmap(self, volume: str) -> None:
        """Take the volume's device away, whole or half-made.

        Absent is success.  InUseError if it is mounted.
        """


class Content(enum.Enum):
    """What a look at a device found."""

    EMPTY = "empty"
    """Every probed signature area is empty (not proof that nothing is allocated.

    The image backend tells that).
    """
    FILE_SYSTEM = "file system"
    OTHER = "other"
    """Something else: a partition table, LUKS, LVM, swap, RAID, or data that no tool knows."""


@dataclass(frozen=True, slots=True)
class Detected:
    """What is on a device.

    `kind` names it as blkid does (`ext4`, `xfs`, `dos`, `crypto_LUKS`, or "" when unknown).
    """

    content: Content
    kind: str = ""


class FileSystems(Protocol):
    """mkfs and its kin."""

    def detect(self, device: str) -> Detected:
        """Look at a device without changing it."""

    def make(self, device: str, fs_type: str, options: Sequence[str]) -> None:
        """Make a file system on a device that a last look finds empty; anything else is PreconditionError.

        Raises InvalidError naming the options when the tool refuses them.
        """

    def grow(self, device: str, mounted_at: str, fs_type: str) -> None:
        """Let a mounted file system fill its device; one that does is left as it is.

        PreconditionError when it cannot be grown, saying what the tool says.
        """

    def fills(self, device: str, mounted_at: str, fs_type: str) -> bool:
        """Whether a mounted file system is as large as its device lets it be."""

    def erase(self, device: str) -> None:
        """Discard the whole device, so that nothing is allocated: only for the remains of one's own mkfs."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A row of the kernel's mount table.  `source` is the device, also for a bound device node.

    `root` is the path inside the file system for a bind.  `device_number` is the device's (`major:minor`).
    """

    target: str
    source: str
    fs_type: str
    options: frozenset[str]
    root: str = "/"
    device_number: str = ""


@dataclass(frozen=True, slots=True)
class FileSystemUsage:
    """From statvfs: bytes and inodes, total, used and available."""

    total_bytes: int
    used_bytes: int
    available_bytes: int
    total_inodes: int
    used_inodes: int
    available_inodes: int


class Mounts(Protocol):
    """The kernel's mounts, and the folders and files they are put on."""

    def at(self, target: str) -> Mount | None:
        """The topmost mount exactly at this path, from the mount table.

        Never follows a symlink at the end.
        """

    def exists(self, target: str) -> bool:
        """Whether anything is at this path: a mount, a folder, a file or a symlink (not followed)."""

    def of_device(self, path: str) -> tuple[Mount, ...]:
        """Every mount (bind mounts included) of this block device or its device node."""

    def mount(self, device: str, target: str, fs_type: str, flags: Sequence[str]) -> None:
        """Mount a file system; makes the folder.  The same mount already there is success.

        InvalidError when the kernel or tool refuses the flags, naming them; PreconditionError when the
        device's file system cannot be mounted, saying what to run, or when something else is mounted at the
        target.
        """

    def bind(self, source: str, target: str, *, read_only: bool, is_device: bool) -> None:
        """Bind a folder, or a device node onto a file that it makes (`is_device`).

        A bind of the same source already there is success, made read-only if that is missing.
        PreconditionError when the source is no mount point (a plain folder is never published) or no
        device, or when something else is mounted at the target.
        """

    def unmount(self, target: str) -> None:
        """Unmount whatever is at this path and remove the (then empty) folder or file; absent is success.

        InUseError naming processes when it is busy.  Never removes anything that is not empty:
        PreconditionError.
        """

    def usage(self, path: str) -> FileSystemUsage:
        """Room on the file system mounted at this path."""

    def device_size(self, path: str) -> int:
        """Size in bytes of a block device (or a device node bound to this path).

        PreconditionError when there is none.
        """
