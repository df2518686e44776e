"""The leak audit of a test bed: `e2e/audit DIR`.

Prints, as JSON, what there should be (`expected`), what there is (`found`) and the `difference`: `missing`
and `unexpected` lines by section. The exit status is 1 unless both are empty. What is at work settles within
moments (an `open/` mark goes a second after its call), so an unequal audit looks again until `--settle`
seconds are over.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import rados

from e2e.harness import audit_model, cluster_contents
from e2e.harness.audit_model import Facts
from e2e.harness.ceph import CephError
from e2e.harness.testbed import NODE_ID, Testbed

SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Audit:
    """Both sides, by section."""

    expected: Facts
    found: Facts

    @property
    def missing(self) -> Facts:
        """What should be there and is not."""
        return _less(self.expected, self.found)

    @property
    def unexpected(self) -> Facts:
        """What is there and should not be."""
        return _less(self.found, self.expected)

    @property
    def is_equal(self) -> bool:
        """Whether nothing is missing and nothing too much."""
        return not self.missing and not self.unexpected

    def to_json(self, *, brief: bool) -> str:
        """Render the audit; `brief` counts the lines of both sides instead of listing them."""
        shown = _counted if brief else _listed
        difference = {"missing": _listed(self.missing), "unexpected": _listed(self.unexpected)}
        document = {"expected": shown(self.expected), "found": shown(self.found), "difference": difference}
        return json.dumps(document, indent=1)


def take(testbed: Testbed, handles: Iterable[str] | None = None) -> Audit:
    """Look once. `handles` are the volumes that should be live; None takes the directory's word for it."""
    contents = cluster_contents.read(testbed.ceph)
    found, expected = audit_model.found_facts(contents), audit_model.expected_facts(contents, handles)
    staged = audit_model.staged(contents, NODE_ID)
    held = testbed.held_by_node()
    found["devices"] = set(held.devices)
    expected["devices"] = audit_model.expected_devices(contents, NODE_ID)
    found["mounts"] = _mount_lines(held.mounts)
    expected["mounts"] = _mount_lines(audit_model.expected_mounts(contents, NODE_ID))
    found["stage keys"] = set(held.stage_keys)
    expected["stage keys"] = staged
    return Audit(expected, found)


def settled(testbed: Testbed, handles: Sequence[str] | None = None, seconds: float = SETTLE_SECONDS) -> Audit:
    """Look until both sides are equal, for at most `seconds`; return the last look."""
    deadline = time.monotonic() + seconds
    while True:
        audit = take(testbed, handles)
        if audit.is_equal or time.monotonic() > deadline:
            return audit
        time.sleep(0.2)


def _mount_lines(mounts: Iterable[tuple[str, str]]) -> set[str]:
    return {f"{volume} at {path}" for volume, path in mounts}


def _less(facts: Facts, others: Facts) -> Facts:
    return {section: rest for section, lines in facts.items() if (rest := lines - others.get(section, set()))}


def _listed(facts: Facts) -> dict[str, list[str]]:
    return {section: sorted(lines) for section, lines in sorted(facts.items())}


def _counted(facts: Facts) -> dict[str, int]:
    return {section: len(lines) for section, lines in sorted(facts.items())}


def main(argv: Sequence[str]) -> int:
    """Print the audit; returns the exit status."""
    parser = argparse.ArgumentParser(prog="e2e/audit", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("dir", type=pathlib.Path, metavar="DIR")
    parser.add_argument(
        "--brief", action="store_true", help="count what is expected and found, list the difference"
    )
    parser.add_argument(
        "--settle", type=float, default=SETTLE_SECONDS, metavar="SECONDS", help="(%(default)s)"
    )
    parser.add_argument(
        "--expect",
        type=pathlib.Path,
        metavar="FILE",
        help="volume handles that should be live, one a line, and no others; else those the directory names",
    )
    arguments = parser.parse_args(argv)
    try:
        handles = arguments.expect.read_text().split() if arguments.expect else None
        audit = settled(Testbed(arguments.dir), handles, arguments.settle)
    except (OSError, CephError, rados.Error) as error:
        print(f"e2e/audit: {error}", file=sys.stderr)
        return 2
    print(audit.to_json(brief=arguments.brief))
    return 0 if audit.is_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
