"""Mapper daemons.

Finding them and ending them, by what the kernel says and never by a remembered process id alone.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
from collections.abc import Callable, Iterator

from csi.node.run import process_state
from executor.errors import UnavailableError

_KILL_SECONDS = 5.0

IsMine = Callable[[tuple[str, ...]], bool]
"""Whether a command line is that of the daemon in question."""


def command_line(pid: int) -> tuple[str, ...]:
    """The arguments a process was started with.

    Empty when it is gone or has ended and waits to be collected.
    """
    try:
        text = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(text).split("\0")[:-1])


def processes(is_mine: IsMine) -> Iterator[int]:
    """Every process with such a command line, half-started ones included."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and is_mine(command_line(int(entry.name))):
            yield int(entry.name)


def end(pid: int, is_mine: IsMine, name: str, *, term_seconds: float) -> None:
    """Ask a daemon to end, kill it when it has not after `term_seconds`; returns when it is gone.

    Raises UnavailableError when even the kill does not end it: it waits inside the kernel.
    """
    try:
        # A descriptor of the process, taken before the last look at its command line: from here on the
        # number can be given to another process without that one being hit.
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not is_mine(command_line(pid)):
            return
        for what, patience in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, _KILL_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, what)
            if _ended(fd, patience):
                return
    finally:
        os.close(fd)
    raise UnavailableError(
        f"{name} (process {pid}, state {process_state(pid)}) does not end, not even when killed; "
        "it waits for the kernel: look at the cluster's health and repeat the call"
    )


def _ended(fd: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))
