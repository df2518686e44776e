"""Loop devices, found by their backing file in sysfs."""

from __future__ import annotations

import pathlib
import time

from csi.node import mount_table
from csi.node.lock import processes_holding
from csi.node.run import Runner
from executor.errors import InUseError, UnavailableError

_SECONDS = 30.0

_DETACH_SECONDS = 1.0
"""A look at a fresh block device by the system (udev) may keep it open for this moment."""

_POLL_SECONDS = 0.02


class Loops:
    """The loop devices of this host."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def backed_by(self, file: pathlib.Path) -> tuple[str, ...]:
        """Devices that show this file, lowest number first.  The file itself is not touched."""
        found = []
        for block in pathlib.Path("/sys/block").glob("loop*"):
            try:
                backing = (block / "loop" / "backing_file").read_text(
                    encoding="utf-8", errors="surrogateescape"
                )
            except OSError:
                continue  # a device without a backing file, or one that loses it just now
            if backing.removesuffix("\n") == str(file):
                found.append(block.name)
        return tuple(f"/dev/{name}" for name in sorted(found, key=lambda name: (len(name), name)))

    def attach(self, file: pathlib.Path, *, read_only: bool) -> str:
        """Make a loop device of the file, past the page cache of the file's own file system."""
        flags = ["--find", "--show", "--nooverlap", "--direct-io=on", *(["--read-only"] if read_only else [])]
        done = self._runner.run(["losetup", *flags, "--", str(file)], timeout=_SECONDS, touches_device=True)
        if done.code:
            raise UnavailableError(f"no loop device could be made of {file}: {done.words}")
        return done.stdout.strip()

    def detach(self, device: str, file: pathlib.Path) -> None:
        """Take the device off its file.  InUseError when something mounts it or keeps it open."""
        mounts = mount_table.of_device(device)
        if mounts:
            raise InUseError(f"{device} is mounted at {', '.join(mount.target for mount in mounts)}")
        done = self._runner.run(["losetup", "--detach", device], timeout=_SECONDS, touches_device=True)
        until = time.monotonic() + _DETACH_SECONDS
        # The kernel lets go of the file when the last user closes the device, and not before.
        while device in self.backed_by(file):
            if time.monotonic() > until:
                users = ", ".join(
                    f"{name} (process {pid})" for pid, name in processes_holding(pathlib.Path(device))
                )
                raise InUseError(f"{device} is kept open by {users or 'an unseen process'}; {done.words}")
            time.sleep(_POLL_SECONDS)
