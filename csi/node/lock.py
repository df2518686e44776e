"""The lock of a node plugin's state directory: one plugin at a time, none beside a child that uses a device.

`flock` belongs to the open file, not to a process: children inherit it with the descriptor, and the kernel
frees it when the last of them has ended.  That is the whole proof that nothing of a dead predecessor still
works on a device.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import stat
from dataclasses import dataclass

_NAME = "lock"


@dataclass(frozen=True, slots=True)
class Held:
    """The lock is ours.  `fd` is the descriptor that children may inherit; it is open until `release`."""

    fd: int

    def release(self) -> None:
        """Close the descriptor; children that inherited it still hold the lock."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class HeldBy:
    """Others hold the lock: (process id, name of its program) of each, as far as this process may see."""

    processes: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        if not self.processes:
            return "a process that cannot be seen from here"
        return ", ".join(f"{name} (process {pid})" for pid, name in self.processes)


class StateLock:
    """The lock of one state directory, which is made if it is not there."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._path = directory / _NAME

    def try_acquire(self) -> Held | HeldBy:
        """Take the lock if it is free; never waits."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return HeldBy(processes_holding(self._path))
        except BaseException:
            os.close(fd)
            raise
        return Held(fd)


def processes_holding(path: pathlib.Path) -> tuple[tuple[int, str], ...]:
    """Every other process that has this file or device open, with its program's name.

    Only open files of the same name, and for a device those below `/dev`, are looked at: a look at any
    other might hang on a file system that does not answer.
    """
    wanted = path.stat()
    found: list[tuple[int, str]] = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # A process that ends while it is looked at, or is not ours to look at, is no holder that can be
        # named.
        with contextlib.suppress(OSError):
            if any(_is_same(link, path.name, wanted) for link in (entry / "fd").iterdir()):
                found.append((int(entry.name), program_name(int(entry.name))))
    return tuple(sorted(found))


def _is_same(link: pathlib.Path, name: str, wanted: os.stat_result) -> bool:
    shown = str(link.readlink())
    if wanted.st_rdev:
        if not (shown.startswith("/dev/") or shown.endswith(f"/{name}")):
            return False
        seen = link.stat()
        return seen.st_rdev == wanted.st_rdev and stat.S_ISBLK(seen.st_mode)
    if not shown.endswith(f"/{name}"):
        return False
    seen = link.stat()
    return (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)


def program_name(pid: int) -> str:
    """The name of the program that a process runs.  Raises OSError when it is gone."""
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return pathlib.PurePath(words[0].decode(errors="replace")).name or "?"
