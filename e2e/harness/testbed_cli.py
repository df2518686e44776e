"""The command lines `e2e/up`, `e2e/restart` and `e2e/down`."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

import rados

from e2e.harness import teardown
from e2e.harness.ceph import CephError
from e2e.harness.interrupts import interrupts_clean_up
from e2e.harness.testbed import Layout, Testbed, TestbedError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="e2e")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser(
        "up",
        help="start cluster, controller and node plugin; writes DIR/env",
        epilog="Everything after -- is handed to each `waymark serve`. WAYMARK_CRASH_AT is passed on.",
    )
    restart = commands.add_parser("restart", help="start again what was killed, with the flags of up")
    down = commands.add_parser("down", help="end all that up started, and remove what it wrote")
    for command in (up, restart, down):
        command.add_argument("dir", type=pathlib.Path, metavar="DIR")
    up.add_argument(
        "--controllers", type=int, default=1, metavar="N", help="how many controllers (%(default)s)"
    )
    up.add_argument("--journal-pool", default=Layout().journal_pool, help="'' for none (%(default)s)")
    up.add_argument("--namespace", default=Layout().namespace, help="RADOS namespace of all volumes")
    restart.add_argument("process", metavar="controller|node|controller-N")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    own, serve_flags = _split(argv)
    arguments = _parser().parse_args(own)
    testbed = Testbed(arguments.dir)
    try:
        if arguments.command == "up":
            up(
                testbed,
                Layout(arguments.controllers, arguments.journal_pool, arguments.namespace, serve_flags),
            )
        elif arguments.command == "restart":
            testbed.restart(arguments.process)
        else:
            teardown.down(testbed)
    except (TestbedError, CephError, rados.Error) as error:
        print(f"e2e/{arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def up(testbed: Testbed, layout: Layout) -> None:
    """Start everything, or, when that fails or is interrupted, leave nothing."""
    existed = (testbed.folder / "testbed.json").exists()
    with interrupts_clean_up():
        try:
            testbed.up(layout)
        except BaseException:
            if not existed:
                teardown.down(testbed)
            raise


def _split(argv: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Split the words after `--` off."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], tuple(words[at + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
