"""Every crash point, each killed before and after, on a real Ceph: `e2e/crashes [POINT ...]`.

The plugin is started with the point armed, the call is made and dies with it, the plugin is started again,
and the very same call must succeed.  A point that is not reached is a failure: it would prove nothing.  What
was written to a volume must be there after each interrupted call of a node, and at the end, with everything
deleted, the audit must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from e2e.harness import audit, in_guest
from e2e.harness.ceph import MicroCeph, command
from e2e.harness.client import Client, code_of, retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import ROOT, Layout, Testbed, TestbedError
from e2e.harness.volumes import GIB, Claim, filesystem
from proto import csi_pb2

VARIABLE = "WAYMARK_CRASH_AT"
FLAGS = ("--purge-interval", "3600", "--recovery-interval", "1", "--trash-retention", "0")
"""Purges begin only when a controller starts, so that it is known which process makes them."""

USED = frozenset({"unpublish_volume", "unstage_volume", "node_expand_volume"})
"""Operations whose volume holds data before they begin."""

NODE_OPERATIONS = frozenset({"stage_volume", "publish_volume", *USED})

REACH_SECONDS = 20.0
PURGE_SECONDS = 20.0

DOOMED = "doomed"
"""A data pool that is removed when a create that needs it is half-way."""

UNDO = (
    "create_volume.undo",
    "create_volume.image.undo",
    "create_volume.tombstone",
    "create_volume.record.remove",
)


class CrashError(Exception):
    """Something was not as it must be after a crash."""


class Crashes:
    """One test bed, and a fresh volume for each point."""

    def __init__(self, testbed: Testbed) -> None:
        self._bed = testbed
        self._serial = 0

    def at(self, point: str, when: str) -> None:
        """Kill a plugin at a point and see its call succeed afterwards.  Raises CrashError."""
        self._serial += 1
        claim = Claim(self._bed, f"pvc-{self._serial}")
        armed = f"{point}:{when}"
        operation = point.partition(".")[0]
        if point in UNDO:
            self._undo(claim, armed)
        elif ".undo" in point:
            self._node_undo(operation, claim, armed)
        elif operation == "create_volume":
            self._interrupted(
                "controller", armed, lambda c: c.controller.CreateVolume(claim.create(), timeout=20)
            )
            self._delete(claim, self._create(claim))
        elif operation == "delete_volume":
            volume = self._create(claim)
            request = claim.delete(volume.volume_id)
            self._interrupted("controller", armed, lambda c: c.controller.DeleteVolume(request, timeout=20))
            self._delete(claim, volume)
        elif operation == "expand_volume":
            volume = self._create(claim)
            grown = claim.expand(volume.volume_id, 2 * GIB)
            self._interrupted(
                "controller", armed, lambda c: c.controller.ControllerExpandVolume(grown, timeout=20)
            )
            self._expand(claim, volume)
            self._delete(claim, volume)
        elif operation == "purge_volume":
            self._delete(claim, self._create(claim))
            self._restart("controller", armed)
            self._bed.await_end("controller")
            self._bed.restart("controller")
        elif operation == "node_expand_volume":
            self._node(operation, Claim(self._bed, claim.name, capability=filesystem("xfs")), armed)
        else:
            self._node(operation, claim, armed)

    def end(self) -> None:
        """Purge all; the audit must be equal and nothing left.  Raises CrashError."""
        self._bed.restart("controller")
        deadline = time.monotonic() + PURGE_SECONDS
        while True:
            final = audit.settled(self._bed, [], 10)
            is_empty = not final.found["trash"] and not final.found["images"]
            if final.is_equal and is_empty:
                return
            if time.monotonic() > deadline:
                break
            threading.Event().wait(0.5)
        raise CrashError(f"the audit is not equal, or not empty: {final.to_json(brief=True)}")

    def _undo(self, claim: Claim, armed: str) -> None:
        """A create whose data pool goes away half-way fails for good and is taken back."""
        _make_pool(self._bed.ceph, DOOMED)
        request = claim.create({**self._bed.parameters(), "dataPool": DOOMED})
        before = "create_volume.image.apply:before"
        self._interrupted(
            "controller", before, lambda c: c.controller.CreateVolume(request, timeout=20), again=False
        )
        _remove_pool(self._bed.ceph, DOOMED)
        self._interrupted("controller", armed, lambda c: c.controller.CreateVolume(request, timeout=20))
        with self._bed.client() as client:
            try:
                retried(client.controller.CreateVolume, request)
            except grpc.RpcError as error:
                if code_of(error) is grpc.StatusCode.NOT_FOUND:
                    return
                raise
        raise CrashError(f"{armed}: a create without its data pool succeeded")

    def _node_undo(self, operation: str, claim: Claim, armed: str) -> None:
        """A stage whose mkfs or mount is refused, or a publish onto a foreign mount, is taken back."""
        if ".map.undo.intent" in armed:
            self._refused_mkfs(claim, armed)
            return
        volume = self._create(claim)
        bad = Claim(self._bed, claim.name, capability=filesystem("ext4", ("no-such-flag",)))
        refused, expected = bad, grpc.StatusCode.INVALID_ARGUMENT
        target = claim.publish_path
        if operation == "node_expand_volume":
            self._refused_growth(Claim(self._bed, claim.name, capability=filesystem("xfs")), volume, armed)
            return
        if operation == "publish_volume":
            refused, expected = claim, grpc.StatusCode.FAILED_PRECONDITION
            with self._bed.client("node") as node:
                retried(node.node.NodeStageVolume, claim.stage(volume))
            target.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(target)], check=True)
        self._interrupted("node", armed, lambda client: _call(operation, client, refused, volume, 20.0))
        with self._bed.client("node") as node:
            try:
                _call(operation, node, refused, volume, None)
                raise CrashError(f"{armed}: what must be refused succeeded")
            except grpc.RpcError as error:
                if code_of(error) is not expected:
                    raise
            if operation == "publish_volume":
                subprocess.run(["umount", str(target)], check=True)
            retried(node.node.NodeStageVolume, claim.stage(volume))
            retried(node.node.NodePublishVolume, claim.publish(volume))
            retried(node.node.NodeUnpublishVolume, claim.unpublish(volume))
            retried(node.node.NodeUnstageVolume, claim.unstage(volume))
        self._delete(claim, volume)

    def _refused_growth(self, claim: Claim, volume: csi_pb2.Volume, armed: str) -> None:
        """A file system that is mounted read-only does not grow until it is writable again."""
        self._delete(claim, volume)
        claim = Claim(self._bed, f"{claim.name}-xfs", capability=claim.capability)
        volume = self._create(claim)
        with self._bed.client("node") as node:
            retried(node.node.NodeStageVolume, claim.stage(volume))
        self._expand(claim, volume)
        staged = str(claim.staging_path)
        subprocess.run(["mount", "-o", "remount,ro", staged], check=True)
        self._interrupted("node", armed, lambda c: _call("node_expand_volume", c, claim, volume, 20.0))
        with self._bed.client("node") as node:
            try:
                _call("node_expand_volume", node, claim, volume, None)
                raise CrashError(f"{armed}: a read-only file system grew")
            except grpc.RpcError as error:
                if code_of(error) is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise
            subprocess.run(["mount", "-o", "remount,rw", staged], check=True)
            _call("node_expand_volume", node, claim, volume, None)
            self._must_be_full(claim, armed)
            retried(node.node.NodeUnstageVolume, claim.unstage(volume))
        self._delete(claim, volume)

    def _refused_mkfs(self, claim: Claim, armed: str) -> None:
        """The intent to make a file system is taken back where others see it, before the device goes."""
        request = claim.create({**self._bed.parameters(), "mkfsOptions": "-O no_such_feature"})
        with self._bed.client() as client:
            volume = retried(client.controller.CreateVolume, request).volume
        self._interrupted("node", armed, lambda client: _call("stage_volume", client, claim, volume, 20.0))
        with self._bed.client("node") as node:
            try:
                _call("stage_volume", node, claim, volume, None)
                raise CrashError(f"{armed}: a stage whose mkfs is refused succeeded")
            except grpc.RpcError as error:
                if code_of(error) is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
            retried(node.node.NodeUnstageVolume, claim.unstage(volume))
        self._delete(claim, volume)

    def _node(self, operation: str, claim: Claim, armed: str) -> None:
        volume = self._create(claim)
        with self._bed.client("node") as node:
            if operation != "stage_volume":
                retried(node.node.NodeStageVolume, claim.stage(volume))
            if operation in USED:
                retried(node.node.NodePublishVolume, claim.publish(volume))
                (claim.publish_path / "data").write_bytes(_DATA)
                os.sync()
            if operation == "unstage_volume":
                retried(node.node.NodeUnpublishVolume, claim.unpublish(volume))
        if operation == "node_expand_volume":
            self._expand(claim, volume)
        self._interrupted("node", armed, lambda client: _call(operation, client, claim, volume, 20.0))
        with self._bed.client("node") as node:
            _call(operation, node, claim, volume, None)
            if operation == "node_expand_volume":
                self._must_be_full(claim, armed)
            retried(node.node.NodeStageVolume, claim.stage(volume))
            retried(node.node.NodePublishVolume, claim.publish(volume))
            file = claim.publish_path / "data"
            if operation in USED and file.read_bytes() != _DATA:
                raise CrashError(f"{armed}: the data of {claim.name} changed")
            file.write_bytes(_DATA)
            retried(node.node.NodeUnpublishVolume, claim.unpublish(volume))
            retried(node.node.NodeUnstageVolume, claim.unstage(volume))
        self._delete(claim, volume)

    def _expand(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        with self._bed.client() as client:
            grown = retried(client.controller.ControllerExpandVolume, claim.expand(volume.volume_id, 2 * GIB))
        if grown.capacity_bytes != 2 * GIB:
            raise CrashError(f"{claim.name} has {grown.capacity_bytes} bytes after its expansion")

    def _must_be_full(self, claim: Claim, armed: str) -> None:
        found = os.statvfs(claim.staging_path)
        if found.f_blocks * found.f_frsize < 1.8 * GIB:
            raise CrashError(f"{armed}: the file system of {claim.name} did not grow")

    def _interrupted(
        self, plugin: str, armed: str, call: Callable[[Client], object], *, again: bool = True
    ) -> None:
        """Make a call in which the plugin dies; start the plugin again."""
        self._restart(plugin, armed)
        deadline = time.monotonic() + REACH_SECONDS
        with self._bed.client(plugin) as client:
            while self._bed.pid(plugin) is not None:
                # A caller that comes while recovery looks at the volume is asked to come again.
                with contextlib.suppress(grpc.RpcError):
                    call(client)
                    raise CrashError(f"{armed}: the call succeeded; the point was not reached")
                if time.monotonic() > deadline:
                    raise CrashError(f"{armed}: the point was not reached in {REACH_SECONDS:g} s")
                threading.Event().wait(0.05)
        self._bed.await_end(plugin)
        if again:
            self._bed.restart(plugin)

    def _restart(self, plugin: str, armed: str) -> None:
        os.environ[VARIABLE] = armed
        try:
            self._bed.restart(plugin)
        except TestbedError:
            if self._bed.pid(plugin) is not None:
                raise
            # Recovery begins at once, and may reach the point before the first Probe is answered.
        finally:
            del os.environ[VARIABLE]

    def _create(self, claim: Claim) -> csi_pb2.Volume:
        with self._bed.client() as client:
            return retried(client.controller.CreateVolume, claim.create()).volume

    def _delete(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        with self._bed.client() as client:
            retried(client.controller.DeleteVolume, claim.delete(volume.volume_id))


_DATA = hashlib.sha256(b"a volume's data").digest() * 4096


def _call(
    operation: str, client: Client, claim: Claim, volume: csi_pb2.Volume, once_seconds: float | None
) -> None:
    """Make a node's call: once within so many seconds, or with retries until it succeeds."""
    calls: dict[str, tuple[Callable[..., object], object]] = {
        "stage_volume": (client.node.NodeStageVolume, claim.stage(volume)),
        "publish_volume": (client.node.NodePublishVolume, claim.publish(volume)),
        "unpublish_volume": (client.node.NodeUnpublishVolume, claim.unpublish(volume)),
        "unstage_volume": (client.node.NodeUnstageVolume, claim.unstage(volume)),
        "node_expand_volume": (client.node.NodeExpandVolume, claim.expand_on_node(volume, 2 * GIB)),
    }
    method, request = calls[operation]
    if once_seconds is None:
        retried(method, request)
    else:
        method(request, timeout=once_seconds)


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
    return point.partition(".")[0] in NODE_OPERATIONS


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/crashes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("point", nargs="*", help="only these (default: all of e2e/points)")
    in_guest.add_option(parser)
    asked = parser.parse_args()
    if asked.node == "guest":
        return in_guest.run_again("crashes", asked.point or [p for p in points() if is_of_node(p)])
    began, kills, problems = time.monotonic(), 0, []
    with temporary_testbed("crashes", Layout(serve_flags=FLAGS)) as testbed:
        crashes = Crashes(testbed)
        for point in asked.point or points():
            for when in ("before", "after"):
                try:
                    crashes.at(point, when)
                except (CrashError, grpc.RpcError) as error:
                    problems.append(f"{point}:{when}: {error}")
                kills += 1
            print(f"{kills:4} kills, {time.monotonic() - began:5.0f} s: {point}", flush=True)
        try:
            crashes.end()
        except CrashError as error:
            problems.append(str(error))
    print(f"{kills} kills at {kills // 2} points, {len(problems)} problems, {time.monotonic() - began:.0f} s")
    for problem in problems:
        print(f"e2e/crashes: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
