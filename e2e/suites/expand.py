"""Volumes that become larger, in use and not, on the kernel's own RBD driver: `e2e/expand`.

ext4, xfs and raw devices are expanded while something writes to them, then while they are on no node; what
was written stays, the room is there, and asking again changes nothing.  Wrong requests have their codes.  It
runs in a guest: a host may forbid its root to grow a mounted ext4.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import grpc

from e2e.harness import audit, in_guest
from e2e.harness.client import Client, code_of, retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import ROOT, Testbed
from e2e.harness.volumes import GIB, Claim, block, filesystem
from proto import csi_pb2

INSIDE = "WAYMARK_EXPAND_INSIDE"
_DATA = os.urandom(1 << 20)
_SHARE_FOR_DATA = 0.9
"""At least so much of a volume is room for data, whatever the file system keeps for itself."""


class ExpandError(Exception):
    """Something is not as it must be after an expansion."""


class Writer(threading.Thread):
    """Writes and syncs without end, as a pod would.  `problem` is what went wrong."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._ended = threading.Event()
        self.problem = ""
        self.written = 0

    def run(self) -> None:
        """Write until told to stop."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY)
            while not self._ended.is_set():
                os.pwrite(descriptor, _DATA, 16 << 20)
                os.fsync(descriptor)
                self.written += 1
            os.close(descriptor)
        except OSError as error:
            self.problem = str(error)

    def end(self) -> None:
        """Stop; raises ExpandError if a write failed, or none was made."""
        self._ended.set()
        self.join()
        if self.problem or not self.written:
            raise ExpandError(f"writing to {self._path} failed: {self.problem or 'nothing was written'}")


class Expansion:
    """One volume that is expanded in every way."""

    def __init__(self, testbed: Testbed, kind: str) -> None:
        capability = block() if kind == "block" else filesystem(kind)
        self._claim = Claim(testbed, f"pvc-{kind}", capability=capability)
        self._kind = kind
        self._bed = testbed

    def run(self) -> None:
        """Expand it in use, then at rest, then delete it."""
        claim = self._claim
        with self._bed.client() as controller, self._bed.client("node") as node:
            volume = retried(controller.controller.CreateVolume, claim.create()).volume
            self._attach(node, volume)
            file = claim.publish_path if claim.is_block else claim.publish_path / "data"
            with file.open("r+b" if claim.is_block else "w+b") as stream:
                stream.write(_DATA)
                if not claim.is_block:
                    stream.truncate(32 << 20)
            os.sync()
            writer = Writer(file)
            writer.start()
            began = time.monotonic()
            self._expand(controller, node, volume, 3 * GIB)
            took = time.monotonic() - began
            writer.end()
            self._check(3 * GIB, file)
            self._expand(controller, node, volume, 2 * GIB, has=3 * GIB)
            self._detach(node, volume)

            retried(controller.controller.ControllerExpandVolume, claim.expand(volume.volume_id, 4 * GIB))
            self._attach(node, volume)
            grown = retried(node.node.NodeExpandVolume, claim.expand_on_node(volume, 4 * GIB))
            if grown.capacity_bytes != 4 * GIB:
                raise ExpandError(f"{self._kind}: the node tells {grown.capacity_bytes} bytes")
            self._check(4 * GIB, file)
            self._detach(node, volume)
            retried(controller.controller.DeleteVolume, claim.delete(volume.volume_id))
        print(f"{self._kind}: 1 to 3 GiB in use in {took:.1f} s, {writer.written} writes; 4 GiB at rest")

    def _attach(self, node: Client, volume: csi_pb2.Volume) -> None:
        retried(node.node.NodeStageVolume, self._claim.stage(volume))
        retried(node.node.NodePublishVolume, self._claim.publish(volume))

    def _detach(self, node: Client, volume: csi_pb2.Volume) -> None:
        retried(node.node.NodeUnpublishVolume, self._claim.unpublish(volume))
        retried(node.node.NodeUnstageVolume, self._claim.unstage(volume))

    def _expand(
        self, controller: Client, node: Client, volume: csi_pb2.Volume, size: int, *, has: int = 0
    ) -> None:
        has = has or size
        grown = retried(
            controller.controller.ControllerExpandVolume, self._claim.expand(volume.volume_id, size)
        )
        if grown.capacity_bytes != has or not grown.node_expansion_required:
            raise ExpandError(f"{self._kind}: asked for {size} bytes, the controller tells {grown}")
        told = retried(node.node.NodeExpandVolume, self._claim.expand_on_node(volume, size))
        if told.capacity_bytes != has:
            raise ExpandError(f"{self._kind}: asked for {size} bytes, the node tells {told}")

    def _check(self, size: int, file: pathlib.Path) -> None:
        if self._claim.is_block:
            done = subprocess.run(
                ["blockdev", "--getsize64", str(file)], capture_output=True, text=True, check=True
            )
            room, least = int(done.stdout), size
        else:
            found = os.statvfs(self._claim.publish_path)
            room, least = found.f_blocks * found.f_frsize, int(size * _SHARE_FOR_DATA)
        if room < least:
            raise ExpandError(f"{self._kind}: {room} bytes of room in a volume of {size}")
        with file.open("rb") as stream:
            if stream.read(len(_DATA)) != _DATA:
                raise ExpandError(f"{self._kind}: the data changed")


def refusals(testbed: Testbed) -> None:
    """Wrong requests.  Raises ExpandError."""
    claim = Claim(testbed, "pvc-refusals")
    with testbed.client() as client, testbed.client("node") as node:
        volume = retried(client.controller.CreateVolume, claim.create()).volume
        absent = f"{volume.volume_id[:-12]}{'f' * 12}"
        limited = claim.expand(volume.volume_id, 0)
        limited.capacity_range.limit_bytes = 1 << 20
        expand = client.controller.ControllerExpandVolume
        rows: list[tuple[str, Callable[..., object], object, str]] = [
            ("no range", expand, claim.expand(volume.volume_id, 0), "INVALID_ARGUMENT"),
            ("a limit below its size", expand, limited, "OUT_OF_RANGE"),
            ("too many objects", expand, claim.expand(volume.volume_id, 2**60), "OUT_OF_RANGE"),
            ("an absent volume", expand, claim.expand(absent, 2 * GIB), "NOT_FOUND"),
            ("no handle", expand, claim.expand("what", 2 * GIB), "NOT_FOUND"),
            ("not staged", node.node.NodeExpandVolume, claim.expand_on_node(volume, GIB), "NOT_FOUND"),
        ]
        for what, method, request, code in rows:
            try:
                method(request, timeout=20)
            except grpc.RpcError as error:
                if code_of(error).name == code:
                    continue
                raise ExpandError(f"{what}: {code_of(error).name} where {code} is right") from error
            raise ExpandError(f"{what} was not refused")
        retried(client.controller.DeleteVolume, claim.delete(volume.volume_id))
    print(f"{len(rows)} wrong requests: each its code")


def nothing_left(testbed: Testbed) -> None:
    """All is deleted.  Raises ExpandError."""
    final = audit.settled(testbed, [])
    if not final.is_equal:
        raise ExpandError(f"the audit is not equal: {final.to_json(brief=True)}")


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/expand", description=(__doc__ or "").partition("\n\n")[2])
    parser.parse_args()
    if INSIDE not in os.environ:
        return in_guest.run(["/usr/bin/env", f"{INSIDE}=1", str(ROOT / "e2e/expand")])
    with temporary_testbed("expand") as testbed:
        try:
            for kind in ("ext4", "xfs", "block"):
                Expansion(testbed, kind).run()
            refusals(testbed)
            nothing_left(testbed)
        except ExpandError as error:
            print(f"e2e/expand: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
