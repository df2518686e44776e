"""Every crash point, each killed before and after, on a real Ceph: `e2e/crashes [POINT ...]`.

The plugin is started with the point armed, the call is made and dies with it, the plugin is started again,
and the very same call must succeed.  A point that is not reached is a failure: it would prove nothing.  What
was written to a volume must be there after each interrupted call of a node, and at the end, with everything
deleted, the audit must be equal.

With `--kill guest` the node's power is cut at the point, and the node boots.  As kubelet does then, the call
is made again, after the volume was staged anew where the call is for a staged one.  Here the audit must be
equal each time the volume is in use again, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import grpc

from e2e.harness import audit, in_guest
from e2e.harness.ceph import MicroCeph, command
from e2e.harness.client import code_of, retried
from e2e.harness.guest_testbed import temporary_guest_testbed
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import ROOT, Layout, Testbed
from e2e.harness.volumes import GIB, Claim
from e2e.suites import node_crashes
from e2e.suites.calls import create, delete, expand
from e2e.suites.interruption import Call, CrashError, Interruption, PowerCut
from e2e.suites.node_crashes import NodeCrashes

FLAGS = ("--purge-interval", "3600", "--recovery-interval", "1", "--trash-retention", "0")
"""Purges begin only when a controller starts, so that it is known which process makes them."""

PURGE_SECONDS = 20.0
"""For one more image to be gone: a guest with one processor takes its time for many."""

DOOMED = "doomed"
"""A data pool that is removed when a create that needs it is half-way."""

UNDO = (
    "create_volume.undo",
    "create_volume.image.undo",
    "create_volume.tombstone",
    "create_volume.record.remove",
)


class Crashes:
    """One test bed, and a fresh volume for each point."""

    def __init__(self, testbed: Testbed, interruption: Interruption) -> None:
        self._bed = testbed
        self._interruption = interruption
        self._nodes = NodeCrashes(testbed, interruption)
        self._serial = 0

    def at(self, point: str, when: str) -> None:
        """Interrupt a call at a point and see it succeed afterwards.  Raises CrashError."""
        self._serial += 1
        name, armed = f"pvc-{self._serial}", f"{point}:{when}"
        claim, operation = Claim(self._bed, name), point.partition(".")[0]
        if is_of_node(point):
            self._nodes.at(point, when, name)
        elif point in UNDO:
            self._undo(claim, armed)
        elif operation == "create_volume":
            self._interrupted(armed, lambda c: (c.controller.CreateVolume, claim.create()))
            delete(claim, create(claim))
        elif operation == "delete_volume":
            volume = create(claim)
            self._interrupted(armed, lambda c: (c.controller.DeleteVolume, claim.delete(volume.volume_id)))
            delete(claim, volume)
        elif operation == "expand_volume":
            volume = create(claim)
            grown = claim.expand(volume.volume_id, 2 * GIB)
            self._interrupted(armed, lambda c: (c.controller.ControllerExpandVolume, grown))
            if expand(claim, volume, 2 * GIB) != 2 * GIB:
                raise CrashError(f"{name} has not the size that it was expanded to")
            delete(claim, volume)
        elif operation == "purge_volume":
            delete(claim, create(claim))
            self._interruption.arm("controller", armed)
            self._bed.await_end("controller")
            self._bed.restart("controller")
        else:
            raise CrashError(f"{point}: no play leads there")

    def end(self) -> None:
        """Purge all; the audit must be equal and nothing left.  Raises CrashError."""
        self._bed.restart("controller")
        fewest, deadline = self._serial + 1, time.monotonic() + PURGE_SECONDS
        while True:
            final = audit.settled(self._bed, [], 0)
            left = len(final.found["trash"]) + len(final.found["images"])
            if final.is_equal and not left:
                return
            if left < fewest:
                fewest, deadline = left, time.monotonic() + PURGE_SECONDS
            if time.monotonic() > deadline:
                break
            threading.Event().wait(0.5)
        raise CrashError(f"the audit is not equal, or not empty: {final.to_json(brief=True)}")

    def _undo(self, claim: Claim, armed: str) -> None:
        """A create whose data pool goes away half-way fails for good and is taken back."""
        _make_pool(self._bed.ceph, DOOMED)
        request = claim.create({**self._bed.parameters(), "dataPool": DOOMED})
        before = "create_volume.image.apply:before"
        self._interrupted(before, lambda c: (c.controller.CreateVolume, request), again=False)
        _remove_pool(self._bed.ceph, DOOMED)
        self._interrupted(armed, lambda c: (c.controller.CreateVolume, request))
        with self._bed.client() as client:
            try:
                retried(client.controller.CreateVolume, request)
            except grpc.RpcError as error:
                if code_of(error) is grpc.StatusCode.NOT_FOUND:
                    return
                raise
        raise CrashError("a create without its data pool succeeded")

    def _interrupted(self, armed: str, call: Call, *, again: bool = True) -> None:
        self._interruption.during("controller", armed, call, again=again)


def _make_pool(ceph: MicroCeph, pool: str) -> None:
    with ceph.connect() as cluster:
        command(cluster, prefix="osd pool create", pool=pool, pg_num=1)
        command(cluster, prefix="osd pool application enable", pool=pool, app="rbd")


def _remove_pool(ceph: MicroCeph, pool: str) -> None:
    with ceph.connect() as cluster:
        command(cluster, prefix="osd pool delete", pool=pool, pool2=pool, yes_i_really_really_mean_it=True)


def points() -> Iterator[str]:
    """Every crash point, as the product lists them."""
    told = subprocess.run([ROOT / ".venv/bin/waymark", "points"], capture_output=True, check=True, text=True)
    yield from told.stdout.split()


def is_of_node(point: str) -> bool:
    """Whether it is a point of an operation that a node does."""
    return point.partition(".")[0] in node_crashes.OPERATIONS


def run(crashes: Crashes, asked: Sequence[str]) -> int:
    """Interrupt at each point, before and after; the exit code."""
    began, count, problems = time.monotonic(), 0, []
    for point in asked:
        for when in ("before", "after"):
            try:
                crashes.at(point, when)
            except (CrashError, grpc.RpcError, subprocess.CalledProcessError) as error:
                problems.append(f"{point}:{when}: {error}")
            count += 1
        print(f"{count:4} kills, {time.monotonic() - began:5.0f} s: {point}", flush=True)
    try:
        crashes.end()
    except CrashError as error:
        problems.append(str(error))
    print(f"{count} kills at {len(asked)} points, {len(problems)} problems, {time.monotonic() - began:.0f} s")
    for problem in problems:
        print(f"e2e/crashes: {problem}", file=sys.stderr)
    return 1 if problems else 0


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/crashes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("point", nargs="*", help="only these (default: all; in a guest all of the node)")
    parser.add_argument(
        "--kill",
        choices=("plugin", "guest"),
        default="plugin",
        help="what dies: the plugin, or with --node guest the whole node (default: %(default)s)",
    )
    in_guest.add_option(parser)
    asked = parser.parse_args()
    if asked.node == "host":
        if asked.kill == "guest":
            parser.error("--kill guest needs --node guest")
        with temporary_testbed("crashes", Layout(serve_flags=FLAGS)) as testbed:
            return run(Crashes(testbed, Interruption(testbed)), asked.point or list(points()))
    chosen = asked.point or [point for point in points() if is_of_node(point)]
    if asked.kill == "plugin":
        return in_guest.run_again("crashes", chosen)
    if strangers := [point for point in chosen if not is_of_node(point)]:
        parser.error(f"no points of the node: {', '.join(strangers)}")
    with temporary_guest_testbed(Layout(serve_flags=FLAGS)) as guest_bed:
        return run(Crashes(guest_bed, PowerCut(guest_bed)), chosen)


if __name__ == "__main__":
    sys.exit(main())
