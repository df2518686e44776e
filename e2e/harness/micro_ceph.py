"""The command line `e2e/micro-ceph`."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import rados

from e2e.harness import ceph
from e2e.harness.ceph import CephError, MicroCeph
from e2e.harness.ceph_conf import Settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="micro-ceph", description=ceph.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    help_texts = {
        "start": "make the cluster, or start it again with its data",
        "stop": "clean stop, data kept",
        "kill": "SIGKILL (all, mon, osd, osd.N)",
        "pause": "SIGSTOP (osd, osd.N, mon, all)",
        "resume": "SIGCONT",
        "status": "one line a daemon; 1 unless all run",
        "destroy": "SIGKILL all and remove DIR",
    }
    defaults = {"kill": "all", "pause": "osd", "resume": "all"}
    for name, text in help_texts.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("dir", type=pathlib.Path, metavar="DIR")
        if name in defaults:
            command.add_argument("what", nargs="?", default=defaults[name], help="(%(default)s)")
        if name == "start":
            for option, meaning in {
                "osds": "how many, 1 to 3",
                "osd_size_bytes": "size of each one's sparse file",
                "port": "first of 40; 0 looks for a free block",
                "watch_timeout_seconds": "until a dead client's lock is given up",
            }.items():
                standard = getattr(Settings(), option)
                flag = "--" + option.replace("_", "-")
                command.add_argument(flag, type=int, default=standard, help=f"{meaning} (%(default)s)")
            command.add_argument("--address", default=Settings().address, help="what the daemons announce")
            command.add_argument("--msgr1", action="store_true", help="for a plain `rbd map` of the kernel")
            command.add_argument("--nosync", action="store_true", help="preload libeatmydata")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = vars(_parser().parse_args(argv))
    command, cluster = arguments.pop("command"), MicroCeph(arguments.pop("dir"))
    try:
        if command == "start":
            cluster.start(Settings(**arguments))
        elif command == "status":
            daemons = list(cluster.status())
            for name, pid in daemons:
                print(f"{name} {'down' if pid is None else f'pid {pid}'}")
            return int(any(pid is None for _, pid in daemons))
        else:
            getattr(cluster, command)(**arguments)
    except (CephError, rados.Error) as error:
        print(f"micro-ceph: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
