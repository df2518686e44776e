"""A command in a guest that has the kernel's own RBD driver: `e2e/guest COMMAND [ARG ...]`.

The guest has one processor, this host's files and a micro Ceph that is made for it here and reached over a
bridge in a network namespace of its own.  A test bed that is made in the guest uses that cluster and the
mapper `krbd`.  When the command ends, so do guest, cluster and namespace.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from e2e.harness import network, processes
from e2e.harness.ceph import MicroCeph
from e2e.harness.ceph_conf import Settings
from e2e.harness.guest import Guest
from e2e.harness.interrupts import interrupts_clean_up
from e2e.harness.network import Network
from e2e.harness.testbed import MOUNTER, ROOT, SHARED_CEPH

WATCH_SECONDS = 10
"""The power of guests is cut here, and their watches should not hold up what comes after for long.

The kernel's client tells of itself every 5 seconds: with fewer here, the watches of the living would end too.
"""


@contextlib.contextmanager
def guest_beside_ceph() -> Iterator[Guest]:
    """Yield a running guest whose test beds use a cluster made here.

    Call it before there are other threads: they would not be in its network.
    """
    folder = pathlib.Path(tempfile.mkdtemp(prefix="waymark-guest-"))
    wires, ceph = Network(folder), MicroCeph(folder / "ceph")
    guest = Guest(folder / "guest", wires, shares=(folder,))
    with interrupts_clean_up():
        try:
            wires.create()
            wires.enter()
            os.environ[processes.MARK] = str(folder)
            settings = Settings(address=network.HOST_ADDRESS, msgr1=True, watch_timeout_seconds=WATCH_SECONDS)
            ceph.start(settings)
            os.environ.update({SHARED_CEPH: str(ceph.folder), MOUNTER: "krbd"})
            guest.start()
            yield guest
        finally:
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            guest.kill()
            ceph.destroy()
            wires.remove()
            shutil.rmtree(folder, ignore_errors=True)
            signal.signal(signal.SIGINT, interrupt)


def run(command: Sequence[str]) -> int:
    """Run a command of this repository, or any other, in a guest; its exit code."""
    os.environ["GUEST_ENVIRONMENT"] = f"{SHARED_CEPH} {MOUNTER} TERM COLUMNS"
    with guest_beside_ceph() as guest:
        try:
            return subprocess.run(guest.command(command), check=False).returncode
        except KeyboardInterrupt:
            return 130


def add_option(parser: argparse.ArgumentParser) -> None:
    """Let the caller of a script choose where it runs."""
    parser.add_argument(
        "--node",
        choices=("host", "guest"),
        default="host",
        help="run here with the mapper fuse, or in a guest on the kernel's RBD driver (default: %(default)s)",
    )


def run_again(script: str, words: Sequence[str]) -> int:
    """Run one of this folder's scripts in a guest, with these arguments; its exit code."""
    return run([str(ROOT / "e2e" / script), *words])


def main() -> int:
    """Run from the command line; the command's exit code."""
    parser = argparse.ArgumentParser(prog="e2e/guest", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="with its arguments")
    command = parser.parse_args().command
    if not command:
        parser.error("no COMMAND is given")
    path = pathlib.Path(command[0])
    return run([str(path.resolve()) if path.exists() else command[0], *command[1:]])


if __name__ == "__main__":
    sys.exit(main())
