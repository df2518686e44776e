"""Looking at a device, making a file system on it, and discarding it.

Nothing is ever formatted over something: `make` looks again just before, and what blkid cannot name but is
not zero counts as somebody's data.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from csi.node import mount_table
from csi.node.file_system_sizes import ext4_fills, xfs_fills
from csi.node.ports import Content, Detected
from csi.node.run import Runner
from executor.errors import InvalidError, PreconditionError, UnavailableError

_LOOK_SECONDS = 30.0
_MAKE_SECONDS = 300.0
_ERASE_SECONDS = 300.0
_GROW_SECONDS = 120.0

_LASTING = ("Permission denied", "Operation not permitted", "Read-only file system", "e2fsck", "cleaning")
"""What a tool says that will not let a file system grow, however often it is asked."""

_AREA_BYTES = 1 << 20
"""How much of a device's beginning and end must be zero for it to count as empty."""

_SECTOR_BYTES = 512

_NOTHING_FOUND = 2
"""blkid's exit code when it knows no signature on the device; also used for a device that cannot be read."""

_AMBIVALENT = 8
"""blkid's exit code when several signatures contradict each other."""


class HostFileSystems:
    """blkid, mkfs and blkdiscard of this node."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def detect(self, device: str) -> Detected:
        """Probe the device itself, past any cache.

        Signatures first, then whether beginning and end are zero.
        """
        done = self._runner.run(["blkid", "-p", "-o", "export", "--", device], timeout=_LOOK_SECONDS)
        if done.code == _AMBIVALENT:
            return Detected(Content.OTHER)
        if done.code == _NOTHING_FOUND:
            empty = all(self._is_zero(device, offset) for offset in _areas(_size(device)))
            return Detected(Content.EMPTY if empty else Content.OTHER)
        if done.code:
            raise UnavailableError(f"blkid cannot look at {device}: {done.words}")
        found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        if found.get("USAGE") == "filesystem":
            return Detected(Content.FILE_SYSTEM, found.get("TYPE", ""))
        return Detected(Content.OTHER, found.get("TYPE") or found.get("PTTYPE", ""))

    def make(self, device: str, fs_type: str, options: Sequence[str]) -> None:
        """Run `mkfs.<fs_type>` with these options (`mkfs_options` checks and completes them)."""
        found = self.detect(device)
        if found.content is not Content.EMPTY:
            carried = (
                f"{found.content.value} {found.kind}".strip() if found.kind else "data that no tool knows"
            )
            raise PreconditionError(f"{device} carries {carried} and is never formatted over it")
        mkfs = f"mkfs.{fs_type}"
        quiet = ["-q"]
        done = self._runner.run(
            [mkfs, *quiet, *options, "--", device], timeout=_MAKE_SECONDS, touches_device=True
        )
        if not done.code:
            return
        if "Input/output error" in done.words or "No space left" in done.words:
            raise UnavailableError(f"{mkfs} could not write to {device}: {done.words}")
        raise InvalidError(f"{mkfs} refuses {device} with the options {' '.join(options)}: {done.words}")

    def grow(self, device: str, mounted_at: str, fs_type: str) -> None:
        """Run resize2fs or xfs_growfs."""
        argv = ["xfs_growfs", "-d", mounted_at] if fs_type == "xfs" else ["resize2fs", device]
        done = self._runner.run(argv, timeout=_GROW_SECONDS, touches_device=True)
        if not done.code:
            return
        what = f"the {fs_type} on {device}, mounted at {mounted_at}, cannot be grown: {done.words}"
        # kubelet does not ask again for what a volume in use cannot do, so only what lasts is told as such.
        if any(words in done.stderr for words in _LASTING):
            raise PreconditionError(
                f"{what}; growing needs a healthy file system that is mounted for writing, and a plugin "
                "with the capability CAP_SYS_RESOURCE"
            )
        raise UnavailableError(f"{what}; it is tried again")

    def fills(self, device: str, mounted_at: str, fs_type: str) -> bool:
        """Compare the blocks that the file system counts with those of the device."""
        is_xfs = fs_type == "xfs"
        argv = ["xfs_info", mounted_at] if is_xfs else ["dumpe2fs", "-h", device]
        done = self._runner.run(argv, timeout=_LOOK_SECONDS)
        if done.code:
            raise UnavailableError(f"{argv[0]} does not tell the size of {argv[-1]}: {done.words}")
        try:
            return (xfs_fills if is_xfs else ext4_fills)(done.stdout, _size(device))
        except ValueError as error:
            raise UnavailableError(f"{argv[0]} does not tell the size of {argv[-1]}: {error}") from None

    def erase(self, device: str) -> None:
        """Discard the whole device.  A device that is in use (mounted) is refused: PreconditionError."""
        done = self._runner.run(["blkdiscard", "--", device], timeout=_ERASE_SECONDS, touches_device=True)
        if done.code and "busy" in done.words:
            raise PreconditionError(f"{device} is in use and is not discarded: {done.words}")
        if done.code:
            raise UnavailableError(f"{device} could not be discarded: {done.words}")

    def _is_zero(self, device: str, offset: int) -> bool:
        # A process of its own reads, because a read of a device that does not answer can only be ended with
        # it.
        argv = [
            "dd",
            f"if={device}",
            f"bs={_AREA_BYTES}",
            "count=1",
            "iflag=skip_bytes",
            f"skip={offset}",
            "status=none",
        ]
        done = self._runner.run(argv, timeout=_LOOK_SECONDS)
        if done.code:
            raise UnavailableError(f"{device} cannot be read: {done.stderr.strip()}")
        return not done.stdout.strip("\0")


def _areas(size: int) -> tuple[int, ...]:
    """Where the areas to look at begin: the device's beginning and, unless it is that small, its end."""
    return (0,) if size <= _AREA_BYTES else (0, size - _AREA_BYTES)


def _size(device: str) -> int:
    number = mount_table.device_number(device)
    if number is None:
        raise PreconditionError(f"{device} is no block device of this node")
    return int(pathlib.Path(f"/sys/dev/block/{number}/size").read_text(encoding="ascii")) * _SECTOR_BYTES
