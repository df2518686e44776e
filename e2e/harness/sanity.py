"""csi-sanity on a real Ceph, once with file systems and once with raw devices: `e2e/sanity [KIND ...]`.

Nothing is left out: no spec is skipped by name or pattern. csi-sanity itself leaves out specs of
capabilities that the driver does not announce; any other reason to skip counts as a failure, and so does a
number of passed specs below the one in `e2e/sanity.tsv`, which is raised by hand when more run. At the end
the audit must be equal, with no volume left.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.harness import audit, ceph_keys, in_guest
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import ROOT, Testbed

SANITY = ROOT / ".venv/bin/csi-sanity"
LEAST_FILE = ROOT / "e2e/sanity.tsv"
ACCESS = {"filesystem": "mount", "block": "block"}
RUN_SECONDS = 600
_LACKS = ("not supported", "does not have single node multi writer capability")
"""How csi-sanity says that a spec is for a capability which the driver does not announce."""
_SECRETS = ("CreateVolume", "DeleteVolume", "ControllerValidateVolumeCapabilities", "NodeStageVolume")


@dataclass(frozen=True, slots=True)
class Result:
    """What one run of csi-sanity told."""

    passed: int
    failed: tuple[str, ...]
    skipped: Mapping[str, int]
    """How many for each reason."""

    @property
    def odd_skips(self) -> list[str]:
        """Reasons that are not the lack of a capability."""
        return [reason for reason in self.skipped if not any(words in reason for words in _LACKS)]


def run(testbed: Testbed, kind: str) -> Result:
    """Run every spec of csi-sanity for one kind of access."""
    secrets = testbed.folder / "sanity-secrets.json"
    named = {f"{call}Secret": testbed.secrets() for call in _SECRETS}
    ceph_keys.write_private(secrets, json.dumps(named))  # JSON is YAML, which csi-sanity reads
    report = testbed.folder / "sanity-report.json"
    report.unlink(missing_ok=True)
    parents = testbed.staging_path("sanity").parent, testbed.publish_path("sanity").parent
    flags = {
        "csi.endpoint": f"unix://{testbed.socket('node')}",
        "csi.controllerendpoint": f"unix://{testbed.socket('controller')}",
        "csi.stagingdir": parents[0] / "sanity-stage",  # made anew for each spec
        "csi.mountdir": parents[1] / "sanity-mount",
        "csi.secrets": secrets,
        "csi.testvolumeparameters": testbed.parameters_file,
        "csi.testvolumesize": 1 << 30,
        "csi.testvolumeaccesstype": ACCESS[kind],
        "ginkgo.json-report": report,
        "ginkgo.no-color": "true",
        "ginkgo.timeout": f"{RUN_SECONDS}s",
    }
    log = testbed.folder / "log" / f"sanity-{kind}.log"
    with log.open("wb") as output:
        command = [str(SANITY), *(f"--{name}={value}" for name, value in flags.items())]
        subprocess.run(command, stdout=output, stderr=output, timeout=RUN_SECONDS + 60, check=False)
    secrets.unlink()
    if not report.exists():
        raise SystemExit(f"csi-sanity wrote no report; its output ends:\n{testbed.log_tail(log.stem, 40)}")
    result = _read(json.loads(report.read_text()))
    report.unlink()
    if result.failed:
        print(testbed.log_tail(log.stem, 200))
    return result


def _read(document: list[dict[str, Any]]) -> Result:
    specs = [spec for suite in document for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It"]
    states = collections.Counter(spec["State"] for spec in specs)
    reasons = collections.Counter(
        spec.get("Failure", {}).get("Message", "no reason given")
        for spec in specs
        if spec["State"] == "skipped"
    )
    # What csi-sanity's own authors left pending it never runs, whatever a driver can.
    failed = (_name(spec) for spec in specs if spec["State"] not in {"passed", "skipped", "pending"})
    return Result(states["passed"], tuple(failed), dict(reasons))


def _name(spec: Mapping[str, Any]) -> str:
    return " ".join([*spec["ContainerHierarchyTexts"], spec["LeafNodeText"]])


def _least() -> dict[str, int]:
    rows = (line.split("\t") for line in LEAST_FILE.read_text().splitlines() if not line.startswith("#"))
    return {kind: int(number) for kind, number in rows}


def _complaints(kind: str, result: Result, least: int) -> Iterator[str]:
    for name in result.failed:
        yield f"{kind}: failed: {name}"
    for reason in result.odd_skips:
        yield f"{kind}: {result.skipped[reason]} skipped because: {reason}"
    if result.passed < least:
        yield f"{kind}: {result.passed} passed, there were {least} before"


def main(argv: Sequence[str]) -> int:
    """Run both kinds, or those that are named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="e2e/sanity", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("kind", nargs="*", metavar="KIND", help="filesystem, block (default: both)")
    in_guest.add_option(parser)
    asked = parser.parse_args(argv)
    kinds = asked.kind or list(ACCESS)
    if not set(kinds) <= set(ACCESS):
        parser.error(f"a KIND is one of {', '.join(ACCESS)}")
    if asked.node == "guest":
        return in_guest.run_again("sanity", kinds)
    if not SANITY.exists():
        print("e2e/sanity: csi-sanity is not there; e2e/setup go builds it", file=sys.stderr)
        return 2
    complaints: list[str] = []
    with temporary_testbed("sanity") as testbed:
        for kind in kinds:
            result = run(testbed, kind)
            skipped = sum(result.skipped.values())
            print(
                f"{kind}: {result.passed} passed, {len(result.failed)} failed,"
                f" {skipped} of capabilities that are not announced",
                flush=True,
            )
            complaints += _complaints(kind, result, _least()[kind])
        last = audit.settled(testbed, [])
        if not last.is_equal:
            complaints.append(f"the audit is not equal:\n{last.to_json(brief=True)}")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
