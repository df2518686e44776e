"""A test bed whose node is a guest: its power can be cut, and kubelet's tree and the state outlive that.

Cluster, controller and the program that tests them are on this host; the node plugin, its kernel and all that
it maps and mounts are in the guest.  The bed's folder lies in a share, so that the guest finds there what a
node keeps on its disk; `run/` alone is a tmpfs of the guest's own.  The socket of the node plugin is the
guest's too, and is reached through one that socat serves here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
from collections.abc import Iterator

from e2e.harness import processes
from e2e.harness.ceph_conf import Settings
from e2e.harness.guest import Guest
from e2e.harness.host_contents import HostContents
from e2e.harness.in_guest import guest_beside_ceph
from e2e.harness.temporary import taken_down
from e2e.harness.testbed import ROOT, Layout, Testbed

_NODE = "node"
_PORT = 1023
_CRASH_AT = "WAYMARK_CRASH_AT"
_PASSED_ON = "GUEST_ENVIRONMENT"
_WRITE_PID = ("sh", "-c", 'echo $$ >"$0" && exec "$@"')


class GuestTestbed(Testbed):
    """The test bed in one folder, with its node in a guest that runs already."""

    def __init__(self, folder: pathlib.Path, guest: Guest) -> None:
        super().__init__(folder)
        self._guest = guest
        self._run = self.folder / "run"
        self._forward: subprocess.Popen[bytes] | None = None

    def up(self, layout: Layout | None = None, settings: Settings | None = None) -> None:
        """Start every plugin; returns once each answers Probe."""
        self._run.mkdir(parents=True)
        self._furnish()
        super().up(layout, settings)

    def cut_power(self) -> None:
        """The node is gone from one moment to the next, and nothing that it had in memory was written."""
        self._guest.kill()
        if (pid := self.pid(_NODE)) is not None:  # it would notice by itself after some seconds
            processes.end([pid], patience_seconds=0)
            self._reap(pid)
        self._end_forward()

    def boot(self) -> None:
        """The node comes back without its plugin, its volumes and what was in memory."""
        self._guest.start()
        self._furnish()

    def is_stopped(self, name: str) -> bool:
        """Whether the node plugin was stopped by SIGSTOP."""
        assert name == _NODE
        shown = self._guest.run(
            "sh", "-c", 'cat "/proc/$(cat "$0")/status"', str(self._pid_file), check=False
        )
        return "\nState:\tT " in shown

    def endpoint(self, name: str) -> pathlib.Path:
        """Path of the socket where a plugin itself makes it."""
        return self._run / "node.socket" if name == _NODE else super().endpoint(name)

    def on_node(self, *command: str) -> str:
        """Run a command in the guest and return its output.  Raises CalledProcessError."""
        return self._guest.run(*command)

    def held_by_node(self) -> HostContents:
        """What the guest holds of volumes."""
        program = [str(ROOT / "e2e/python"), "-m", "e2e.harness.host_contents", str(self.folder)]
        held = HostContents.from_json(self.on_node(*program))
        volumes = frozenset(mount for mount in held.mounts if mount[1] != str(self._run))
        return dataclasses.replace(held, mounts=volumes)

    @property
    def _pid_file(self) -> pathlib.Path:
        return self._run / "node.pid"

    def _serve_command(self, name: str) -> list[str]:
        words = super()._serve_command(name)
        return self._guest.command([*_WRITE_PID, str(self._pid_file), *words]) if name == _NODE else words

    def _furnish(self) -> None:
        """Give a guest that has just started what this bed's node has beside its disk."""
        self._guest.run("mount", "-t", "tmpfs", "tmpfs", str(self._run))
        address = self._guest.address.partition("/")[0]
        inside = [f"TCP-LISTEN:{_PORT},bind={address},reuseaddr,fork", f"UNIX-CONNECT:{self.endpoint(_NODE)}"]
        self._guest.run("sh", "-c", 'socat "$@" </dev/null >/dev/null 2>&1 &', "sh", *inside)
        outside = f"UNIX-LISTEN:{self.socket(_NODE)},fork,unlink-early,mode=0600"
        self._forward = subprocess.Popen(
            ["socat", outside, f"TCP:{address}:{_PORT}"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, processes.MARK: str(self.folder)},
            start_new_session=True,
        )

    def _end_forward(self) -> None:
        """Its children, one a connection, would keep those to a guest that is gone."""
        if self._forward is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._forward.pid, signal.SIGKILL)
            self._forward.wait()
            self._forward = None


@contextlib.contextmanager
def temporary_guest_testbed(layout: Layout) -> Iterator[GuestTestbed]:
    """Yield a test bed that is up, its node in a guest; call it before there are other threads."""
    os.environ[_PASSED_ON] = f"{_CRASH_AT} {processes.MARK}"
    with guest_beside_ceph() as guest:
        testbed = GuestTestbed(guest.folder.with_name("bed"), guest)
        with taken_down(testbed):
            testbed.up(layout)
            yield testbed
