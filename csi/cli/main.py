"""`waymark`: where the command line begins.

Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import csi

_OURS = ("csi", "executor", "omap", "proto")


def main() -> None:
    """Run the command that the arguments name."""
    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that waits inside Ceph's library cannot be ended, and must not keep the process from ending.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command; the exit code."""
    foreign = foreign_packages()
    if foreign:
        print(f"waymark: {foreign[0]}", file=sys.stderr)
        return 1
    # Only now: what these import must be ours.
    from csi.cli import commands  # noqa: PLC0415  see above

    return commands.run(arguments)


def foreign_packages() -> list[str]:
    """What stands in our packages' places: other projects install `proto` and `executor` too."""
    home = pathlib.Path(csi.__file__).resolve().parent.parent
    complaints = []
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        origin = pathlib.Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent.parent != home:
            complaints.append(
                f"the package {name!r} at {origin or 'no place'} is not Waymark's, which is in {home};"
                " uninstall the other one, or install Waymark into an environment of its own"
            )
    return complaints
