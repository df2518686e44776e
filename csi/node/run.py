"""Commands of the operating system: the only module that starts processes.

A command is a list of arguments, never a shell's line, and sees nothing of the plugin's environment.  It
has a deadline; past it the whole process group is killed.  A child that changes a device inherits the state
directory's locked descriptor, so that the lock is free only when the last of them has ended: a plugin that
was killed leaves its mkfs behind, and its successor waits for that one instead of working against it.
Daemons outlive the plugin by design and never inherit the lock.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from executor.errors import UnavailableError

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}

_KILL_SECONDS = 5.0
"""How long a killed child may take to vanish.  Longer means that it hangs inside the kernel, on a device."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command that ended left.

    Its output as text and its exit code (negative: the signal that ended it).
    """

    stdout: str
    stderr: str
    code: int

    @property
    def words(self) -> str:
        """What the command said, on one line and short enough for an error text."""
        return " ".join((self.stderr or self.stdout).split())[:400] or f"exit code {self.code}"


class Runner:
    """Runs commands.  `lock_fd` is the descriptor that children inherit when they touch a device."""

    def __init__(self, lock_fd: int | None) -> None:
        self._lock_fd = lock_fd

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        stdin: bytes | None = None,
        touches_device: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> Completed:
        """Run a command to its end, at most `timeout` seconds; any exit code is returned.

        `stdin` is what it reads there; without it, nothing.  It inherits `pass_fds`.

        Raises UnavailableError when the command is not installed, or did not end in time (it is killed then).
        """
        inherited = (self._lock_fd,) if touches_device and self._lock_fd is not None else ()
        return _run(argv, timeout, stdin, (*inherited, *pass_fds))

    def start_daemon(self, argv: Sequence[str], *, timeout: float, pass_fds: Sequence[int] = ()) -> Completed:
        """Start a program that puts itself into the background once it serves; returns when it has done so.

        The daemon inherits `pass_fds` and not the lock.  Raises UnavailableError as `run` does; the caller
        then looks for a daemon that was left half-started, which may have a process group of its own by
        then.
        """
        return _run(argv, timeout, None, pass_fds)


def _run(argv: Sequence[str], timeout: float, given: bytes | None, inherited: Sequence[int]) -> Completed:
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            pass_fds=inherited,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UnavailableError(
            f"{argv[0]} is not installed on this node; install the package that has it"
        ) from None
    with child:
        try:
            stdout, stderr = child.communicate(given, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise _end(child, argv[0], timeout) from None
        except BaseException:
            _kill_group(child.pid)
            raise
    return Completed(stdout.decode(errors="replace"), stderr.decode(errors="replace"), child.returncode)


def _end(child: subprocess.Popen[bytes], name: str, timeout: float) -> UnavailableError:
    """Kill a child that is past its deadline; the error says what became of it."""
    _kill_group(child.pid)
    what = f"{name} (process {child.pid}) did not end within {timeout:g} s"
    try:
        # Not `communicate`: a daemon that put itself into the background may still have the pipes open.
        child.wait(timeout=_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        state = process_state(child.pid)
        # Not waited for any longer.  It keeps the lock if it had it, so nobody else touches its device until
        # the kernel lets go of it.
        child.returncode = -signal.SIGKILL
        return UnavailableError(
            f"{what} and cannot be killed (state {state}): it waits for a device that does not answer; "
            "look at the cluster's health"
        )
    return UnavailableError(f"{what} and was killed; the call can be repeated")


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does (`D`: waits for a device), or `gone`."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
