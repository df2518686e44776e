"""The crash points of a node's operations: a fresh volume for each, used until its call is interrupted."""

from __future__ import annotations

import hashlib
import subprocess

import grpc

from e2e.harness import audit
from e2e.harness.client import Client, code_of, retried
from e2e.harness.testbed import Testbed
from e2e.harness.volumes import GIB, Claim, filesystem
from e2e.suites.calls import create, delete, expand, publish, stage, unpublish, unstage
from e2e.suites.interruption import Call, CrashError, Interruption, Method
from proto import csi_pb2

USED = frozenset({"unpublish_volume", "unstage_volume", "node_expand_volume"})
"""Operations whose volume holds data before they begin."""

OPERATIONS = frozenset({"stage_volume", "publish_volume", *USED})

_OF_STAGED = frozenset({"publish_volume", "node_expand_volume"})
"""Operations that kubelet asks for only where the volume is staged."""

_DATA = hashlib.sha256(b"a volume's data").digest() * 4096


class NodeCrashes:
    """One test bed, whose node is interrupted."""

    def __init__(self, testbed: Testbed, interruption: Interruption) -> None:
        self._bed = testbed
        self._interruption = interruption
        self._data = testbed.folder / "data"
        self._data.write_bytes(_DATA)

    def at(self, point: str, when: str, name: str) -> None:
        """Interrupt a call at a point and see it succeed afterwards.  Raises CrashError."""
        operation, armed = point.partition(".")[0], f"{point}:{when}"
        xfs = Claim(self._bed, name, capability=filesystem("xfs"))  # it grows by being told to, unlike ext4
        claim = xfs if operation == "node_expand_volume" else Claim(self._bed, name)
        if point.endswith(".map.undo.intent"):
            self._refused_mkfs(claim, armed)
        elif ".undo" not in point:
            self._completed(operation, claim, armed)
        elif operation == "stage_volume":
            self._refused_mount(claim, armed)
        elif operation == "publish_volume":
            self._refused_target(claim, armed)
        else:
            self._refused_growth(claim, armed)

    def _completed(self, operation: str, claim: Claim, armed: str) -> None:
        """What was interrupted is finished, and the volume's data are those that were written before."""
        volume = create(claim)
        with self._bed.client("node") as node:
            if operation != "stage_volume":
                stage(node, claim, volume)
            if operation in USED:
                publish(node, claim, volume)
                self._write(claim)
            if operation == "unstage_volume":
                unpublish(node, claim, volume)
        if operation == "node_expand_volume":
            self._expand(claim, volume)
        self._interruption.during("node", armed, _call(operation, claim, volume))
        with self._bed.client("node") as node:
            self._stage_if_gone(operation, node, claim, volume)
            _until_answered(node, _call(operation, claim, volume))
            if operation == "node_expand_volume":
                self._must_be_full(claim)
            stage(node, claim, volume)
            publish(node, claim, volume)
            if self._interruption.cuts_power:
                self._must_agree()
            if operation in USED:
                self._must_hold_data(claim)
            self._write(claim)
            unpublish(node, claim, volume)
            unstage(node, claim, volume)
        delete(claim, volume)

    def _refused_mount(self, claim: Claim, armed: str) -> None:
        """A stage whose mount is refused is taken back."""
        volume = create(claim)
        bad = Claim(self._bed, claim.name, capability=filesystem("ext4", ("no-such-flag",)))
        self._interruption.during("node", armed, _call("stage_volume", bad, volume))
        with self._bed.client("node") as node:
            _must_be_refused(node, _call("stage_volume", bad, volume), grpc.StatusCode.INVALID_ARGUMENT)
            self._use_once(node, claim, volume)
        delete(claim, volume)

    def _refused_mkfs(self, claim: Claim, armed: str) -> None:
        """The intent to make a file system is taken back where others see it, before the device goes."""
        volume = create(claim, {**self._bed.parameters(), "mkfsOptions": "-O no_such_feature"})
        call = _call("stage_volume", claim, volume)
        self._interruption.during("node", armed, call)
        with self._bed.client("node") as node:
            _must_be_refused(node, call, grpc.StatusCode.INVALID_ARGUMENT)
            unstage(node, claim, volume)
        delete(claim, volume)

    def _refused_target(self, claim: Claim, armed: str) -> None:
        """A publish onto a foreign mount is taken back, which a power cut takes away besides."""
        volume = create(claim)
        call, target = _call("publish_volume", claim, volume), str(claim.publish_path)
        with self._bed.client("node") as node:
            stage(node, claim, volume)
        self._bed.on_node("mkdir", target)
        self._bed.on_node("mount", "-t", "tmpfs", "tmpfs", target)
        self._interruption.during("node", armed, call)
        with self._bed.client("node") as node:
            if not self._interruption.cuts_power:
                _must_be_refused(node, call, grpc.StatusCode.FAILED_PRECONDITION)
                self._bed.on_node("umount", target)
            self._use_once(node, claim, volume)
        delete(claim, volume)

    def _refused_growth(self, claim: Claim, armed: str) -> None:
        """A file system that is mounted read-only does not grow until it is writable again."""
        volume = create(claim)
        call, staged = _call("node_expand_volume", claim, volume), str(claim.staging_path)
        with self._bed.client("node") as node:
            stage(node, claim, volume)
        self._expand(claim, volume)
        self._bed.on_node("mount", "-o", "remount,ro", staged)
        self._interruption.during("node", armed, call)
        with self._bed.client("node") as node:
            if self._interruption.cuts_power:
                stage(node, claim, volume)
            else:
                _must_be_refused(node, call, grpc.StatusCode.FAILED_PRECONDITION)
                self._bed.on_node("mount", "-o", "remount,rw", staged)
            _until_answered(node, call)
            self._must_be_full(claim)
            unstage(node, claim, volume)
        delete(claim, volume)

    def _stage_if_gone(self, operation: str, node: Client, claim: Claim, volume: csi_pb2.Volume) -> None:
        """After a power cut kubelet stages what is to be published or has grown."""
        if self._interruption.cuts_power and operation in _OF_STAGED:
            stage(node, claim, volume)

    def _use_once(self, node: Client, claim: Claim, volume: csi_pb2.Volume) -> None:
        stage(node, claim, volume)
        publish(node, claim, volume)
        unpublish(node, claim, volume)
        unstage(node, claim, volume)

    def _write(self, claim: Claim) -> None:
        file = str(claim.publish_path / "data")
        self._bed.on_node("dd", f"if={self._data}", f"of={file}", "bs=64K", "conv=fsync", "status=none")

    def _must_hold_data(self, claim: Claim) -> None:
        try:
            self._bed.on_node("cmp", str(self._data), str(claim.publish_path / "data"))
        except subprocess.CalledProcessError as error:
            raise CrashError(f"the data of {claim.name} changed: {error.stdout}{error.stderr}") from None

    def _must_be_full(self, claim: Claim) -> None:
        found = self._bed.on_node("stat", "--file-system", "--format=%b %S", str(claim.staging_path)).split()
        if int(found[0]) * int(found[1]) < 1.8 * GIB:
            raise CrashError(f"the file system of {claim.name} did not grow")

    def _must_agree(self) -> None:
        """Kernel state, record and data are those of volumes in use."""
        seen = audit.settled(self._bed)
        if not seen.is_equal or not seen.found["mounts"]:
            raise CrashError(f"the audit is not equal in between: {seen.to_json(brief=True)}")

    def _expand(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        if (size := expand(claim, volume, 2 * GIB)) != 2 * GIB:
            raise CrashError(f"{claim.name} has {size} bytes after its expansion")


def _call(operation: str, claim: Claim, volume: csi_pb2.Volume) -> Call:
    def call(client: Client) -> tuple[Method, object]:
        calls: dict[str, tuple[Method, object]] = {
            "stage_volume": (client.node.NodeStageVolume, claim.stage(volume)),
            "publish_volume": (client.node.NodePublishVolume, claim.publish(volume)),
            "unpublish_volume": (client.node.NodeUnpublishVolume, claim.unpublish(volume)),
            "unstage_volume": (client.node.NodeUnstageVolume, claim.unstage(volume)),
            "node_expand_volume": (client.node.NodeExpandVolume, claim.expand_on_node(volume, 2 * GIB)),
        }
        return calls[operation]

    return call


def _until_answered(node: Client, call: Call) -> None:
    method, request = call(node)
    retried(method, request)


def _must_be_refused(node: Client, call: Call, expected: grpc.StatusCode) -> None:
    try:
        _until_answered(node, call)
    except grpc.RpcError as error:
        if code_of(error) is not expected:
            raise
    else:
        raise CrashError("what must be refused succeeded")
