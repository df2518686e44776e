"""Finding, signalling and ending the processes of one test bed, each by its identity, never by a broad name.

Every process that a test bed starts carries its folder in the environment, and so do the children of those.
A child whose parent cleaned the environment is known by its program and by an argument that lies in the
folder.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MARK = "WAYMARK_TESTBED"
"""Environment variable that holds the test bed's folder."""

_PROGRAMS = frozenset({"waymark", "qemu-storage-daemon", "mount", "umount", "losetup", "blkid", "xfs_repair"})
_PROGRAM_PREFIXES = ("mkfs.", "fsck.", "e2fsck", "mke2fs", "mkfs")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    program: str
    arguments: tuple[str, ...]


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits for its parent does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def of_folder(folder: pathlib.Path) -> Iterator[Process]:
    """Yield the live processes of the test bed in `folder`, the caller and its ancestors apart."""
    mark = f"{MARK}={folder}".encode()
    spared = set(_ancestors())
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared or not alive(int(entry.name)):
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue
        process = Process(int(entry.name), _program(words), tuple(words))
        if mark in environment or (_is_ours(process.program) and _mentions(words, folder)):
            yield process


def end(pids: Iterable[int], *, patience_seconds: float) -> None:
    """End processes: SIGTERM, after `patience_seconds` SIGKILL; returns when all are gone.

    Stopped processes are continued, since they could not hear the first signal otherwise.
    """
    descriptors = list(_opened(pids))
    try:
        for how, patience in ((signal.SIGTERM, patience_seconds), (signal.SIGKILL, 10.0)):
            for descriptor in descriptors:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, how)
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            if _await_ends(descriptors, patience):
                break
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def await_end(pid: int, seconds: float) -> bool:
    """Wait until the process has ended; False if it still runs after `seconds`."""
    descriptors = list(_opened([pid]))
    try:
        return _await_ends(descriptors, seconds)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _opened(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield os.pidfd_open(pid)


def _await_ends(descriptors: Iterable[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    for descriptor in descriptors:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
    return True


def _program(words: list[str]) -> str:
    """Name of the program, or of the script when the program is Python."""
    name = pathlib.PurePath(words[0]).name
    if name.startswith("python") and len(words) > 1:
        name = pathlib.PurePath(words[1]).name
    return name


def _is_ours(program: str) -> bool:
    return program in _PROGRAMS or program.startswith(_PROGRAM_PREFIXES)


def _mentions(words: list[str], folder: pathlib.Path) -> bool:
    return any(f"{folder}/" in word for word in words[1:])


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
