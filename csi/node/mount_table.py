"""The kernel's mount table, `/proc/self/mountinfo`: the one truth about mounts."""

from __future__ import annotations

import os
import pathlib
import re
import stat

from csi.node.ports import Mount

_TABLE = pathlib.Path("/proc/self/mountinfo")

_DEVICE_TREES = frozenset({"devtmpfs", "tmpfs"})
"""File systems that `/dev` may be; a bound device node is a row of one of them with a root other than `/`."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def mount_table() -> tuple[Mount, ...]:
    """Every mount that this process sees, in the order they were made.

    The last row of a target is the topmost.
    """
    text = os.fsdecode(_TABLE.read_bytes())
    return tuple(parse_row(row) for row in text.splitlines())


def parse_row(row: str) -> Mount:
    """One row: `ID PARENT MAJOR:MINOR ROOT TARGET OPTIONS [TAGS...] - TYPE SOURCE SUPER-OPTIONS`."""
    before, _, after = row.partition(" - ")
    _, _, number, root, target, options, *_ = before.split(" ")
    fs_type, source, *rest = after.split(" ")
    every = {*options.split(","), *(rest[0].split(",") if rest else ())}
    # A mount is as writable as the less writable of itself and its file system.
    every = every - {"rw"} if "ro" in every else every
    return Mount(_plain(target), _plain(source), _plain(fs_type), frozenset(every), _plain(root), number)


def _plain(field: str) -> str:
    """The field without the kernel's octal escapes of space, tab, newline and backslash."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), field)


def at(target: str) -> Mount | None:
    """The topmost mount exactly at this path.

    Folders above it may be symlinks, the path itself is not followed.
    """
    folder, name = os.path.split(target)
    real = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118  the table holds paths as text
    rows = [mount for mount in mount_table() if mount.target == real]
    return _of_node(rows[-1]) if rows else None


def of_device(path: str) -> tuple[Mount, ...]:
    """Every mount of a block device, and every bind of its device node.  Empty when the device is gone."""
    number = device_number(path)
    if number is None:
        return ()
    return tuple(mount for mount in map(_of_node, mount_table()) if mount.device_number == number)


def device_number(path: str) -> str | None:
    """A block device's number as `major:minor`; None for anything else, and when it is not there."""
    try:
        status = pathlib.Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISBLK(status.st_mode):
        return None
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _of_node(mount: Mount) -> Mount:
    """The row of a bound block device node told as a mount of that device; any other row as it is."""
    # Only these file systems are looked into: a stat elsewhere might wait for a server that does not answer.
    if mount.fs_type not in _DEVICE_TREES or mount.root == "/":
        return mount
    number = device_number(mount.target)
    if number is None:
        return mount
    return Mount(mount.target, f"/dev{mount.root}", mount.fs_type, mount.options, mount.root, number)
