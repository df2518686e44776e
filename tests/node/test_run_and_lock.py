"""Commands, their deadlines, and the lock that outlives the plugin in the children that touch a device."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from csi.node import daemons
from csi.node.lock import Held, HeldBy, StateLock
from csi.node.run import Runner
from executor.errors import UnavailableError

if TYPE_CHECKING:
    from tests.node.conftest import HostBench

_ROOT = pathlib.Path(__file__).parents[2]

_PLUGIN = """
import pathlib, sys
from csi.node.lock import Held, StateLock
from csi.node.run import Runner
held = StateLock(pathlib.Path(sys.argv[1])).try_acquire()
assert isinstance(held, Held)
print("locked", flush=True)
Runner(held.fd).run(sys.argv[3:], timeout=600, touches_device=sys.argv[2] == "device")
"""


def plugin(state: pathlib.Path, kind: str, *argv: str) -> subprocess.Popen[bytes]:
    """A process that locks the state directory and runs a command, as a node plugin does."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PLUGIN, str(state), kind, *argv],
        stdout=subprocess.PIPE,
        cwd=_ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def child_of(words: tuple[str, ...]) -> int:
    """The process with this command line, as soon as there is one."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        for pid in daemons.processes(lambda line: line == words):
            return pid
        os.sched_yield()
    raise AssertionError(f"{words} was never started")


def await_end(pid: int) -> None:
    fd = os.pidfd_open(pid)
    assert daemons._ended(fd, 30)
    os.close(fd)


class TestRunner:
    def test_output_and_exit_code_are_returned(self) -> None:
        done = Runner(None).run(["sh", "-c", "cat; echo bad >&2; exit 3"], timeout=10, stdin=b"given")
        assert (done.stdout, done.stderr, done.code) == ("given", "bad\n", 3)
        assert done.words == "bad"

    def test_nothing_of_the_environment_is_handed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CEPH_ARGS", "--keyring /etc/ceph/secret")
        done = Runner(None).run(["env"], timeout=10)
        assert {line.partition("=")[0] for line in done.stdout.splitlines()} <= {"PATH", "LC_ALL", "PWD", "_"}

    def test_a_command_past_its_deadline_is_killed_with_its_children(self, tmp_path: pathlib.Path) -> None:
        held = StateLock(tmp_path).try_acquire()
        assert isinstance(held, Held)
        with pytest.raises(UnavailableError, match=r"sh .*was killed"):
            Runner(held.fd).run(["sh", "-c", "sleep 600 & sleep 600"], timeout=0.2, touches_device=True)
        held.release()
        # No grandchild holds the lock any more, once the kernel has buried it.
        again = StateLock(tmp_path).try_acquire()
        until = time.monotonic() + 30
        while isinstance(again, HeldBy) and time.monotonic() < until:
            again = StateLock(tmp_path).try_acquire()
        assert isinstance(again, Held)
        again.release()

    def test_a_missing_tool_is_named(self) -> None:
        with pytest.raises(UnavailableError, match=r"mkfs\.none is not installed"):
            Runner(None).run(["mkfs.none"], timeout=10)

    def test_only_what_touches_a_device_inherits_the_lock(self, tmp_path: pathlib.Path) -> None:
        held = StateLock(tmp_path).try_acquire()
        assert isinstance(held, Held)
        runner = Runner(held.fd)
        script = ["sh", "-c", "ls -l /proc/self/fd"]
        name = str(tmp_path / "lock")
        assert name in runner.run(script, timeout=10, touches_device=True).stdout
        assert name not in runner.run(script, timeout=10).stdout
        assert name not in runner.start_daemon(script, timeout=10).stdout
        held.release()


class TestStateLock:
    def test_it_is_held_once_and_free_after_release(self, tmp_path: pathlib.Path) -> None:
        held = StateLock(tmp_path / "state").try_acquire()
        assert isinstance(held, Held)
        assert isinstance(StateLock(tmp_path / "state").try_acquire(), HeldBy)
        held.release()
        again = StateLock(tmp_path / "state").try_acquire()
        assert isinstance(again, Held)
        again.release()

    def test_a_living_holder_is_named(self, tmp_path: pathlib.Path) -> None:
        process = plugin(tmp_path, "device", "sleep", "600")
        child = child_of(("sleep", "600"))
        other = StateLock(tmp_path).try_acquire()
        assert isinstance(other, HeldBy)
        assert {process.pid, child} <= {pid for pid, _ in other.processes}
        kill(process)
        os.kill(child, signal.SIGKILL)

    def test_a_killed_plugin_leaves_the_lock_to_a_child_that_touches_a_device(
        self, tmp_path: pathlib.Path
    ) -> None:
        process = plugin(tmp_path, "device", "sleep", "601")
        child = child_of(("sleep", "601"))
        kill(process)
        other = StateLock(tmp_path).try_acquire()
        assert other == HeldBy(((child, "sleep"),))
        assert str(other) == f"sleep (process {child})"
        os.kill(child, signal.SIGKILL)

    def test_a_child_that_touches_none_does_not_keep_it(self, tmp_path: pathlib.Path) -> None:
        process = plugin(tmp_path, "none", "sleep", "602")
        child = child_of(("sleep", "602"))
        kill(process)
        held = StateLock(tmp_path).try_acquire()
        assert isinstance(held, Held)
        held.release()
        os.kill(child, signal.SIGKILL)

    @pytest.mark.ceph
    def test_a_stopped_mkfs_keeps_the_next_plugin_waiting(self, host: HostBench) -> None:
        device = host.mapper.map(host.target(), host.credentials)
        (daemon,) = host.daemons(device.volume)
        os.kill(daemon, signal.SIGSTOP)  # so that mkfs is still at work when it is stopped
        state = host.root / "state"
        words = ("mkfs.ext4", "-q", device.path)
        try:
            process = plugin(state, "device", *words)
            mkfs = child_of(words)
            os.kill(mkfs, signal.SIGSTOP)
        finally:
            os.kill(daemon, signal.SIGCONT)
        kill(process)
        other = StateLock(state).try_acquire()
        assert isinstance(other, HeldBy)
        assert other.processes == ((mkfs, "mkfs.ext4"),)
        os.kill(mkfs, signal.SIGCONT)
        await_end(mkfs)
        held = StateLock(state).try_acquire()
        assert isinstance(held, Held)
        held.release()
