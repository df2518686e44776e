"""The rows of `e2e/inputs`: single requests that are wrong or odd, and what must come of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from e2e.harness.client import Client, retried
from e2e.harness.testbed import CLUSTER_ID, Testbed
from e2e.harness.volumes import GIB, Claim, filesystem
from proto import csi_pb2

MIB = 1 << 20
MOST = 256_000_000 * 4 * MIB
ABSENT_ID = f"0001-000b-{CLUSTER_ID}-0000000000000001-00000000-0000-4000-8000-000000000000"
ODD_IDS = ("x", "../../etc/passwd", "0001-zz", "0001-0024-" + "a" * 40, "ünïcode", "i" * 128)


class InputError(Exception):
    """Something was not as it must be."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is asked, what must come."""

    what: str
    call: Callable[[], object]
    code: str
    words: tuple[str, ...] = ()


class Table:
    """All rows, against the plugins of one test bed."""

    def __init__(self, testbed: Testbed, controller: Client, node: Client) -> None:
        self._bed = testbed
        self._controller = controller.controller
        self._node = node.node

    def rows(self) -> list[Row]:
        """Every row, in order: some prepare what the next one asks about."""
        return [*self._names(), *self._ids(), *self._parameters(), *self._sizes(), *self._paths()]

    def create(self, name: str, **parameters: str) -> Callable[[], object]:
        """A CreateVolume under a name, with parameters beside the usual ones."""
        request = Claim(self._bed, "pvc").create({**self._bed.parameters(), **parameters})
        request.name = name
        return lambda: self._controller.CreateVolume(request, timeout=30)

    def _names(self) -> Iterator[Row]:
        yield Row("no name", self.create(""), "INVALID_ARGUMENT", ("name",))
        yield Row("129 bytes of name", self.create("n" * 129), "INVALID_ARGUMENT", ("129", "128"))
        yield Row("a name with a control character", self.create("a\x01b"), "INVALID_ARGUMENT", ("control",))
        for name in ("n" * 128, "../../etc/passwd", "a/b", "name/x", "ünï çode", " ", "%2F", "open/x"):
            yield Row(f"the name {name[:20]!r}", self.create(name), "OK")

    def _ids(self) -> Iterator[Row]:
        staging, target = str(self._bed.staging_path("odd")), str(self._bed.publish_path("odd"))
        capability = filesystem()
        calls: dict[str, Callable[[str], object]] = {
            "ValidateVolumeCapabilities": lambda i: self._controller.ValidateVolumeCapabilities(
                csi_pb2.ValidateVolumeCapabilitiesRequest(volume_id=i, volume_capabilities=[capability]),
                timeout=30,
            ),
            "NodeStageVolume": lambda i: self._node.NodeStageVolume(
                csi_pb2.NodeStageVolumeRequest(
                    volume_id=i,
                    staging_target_path=staging,
                    volume_capability=capability,
                    secrets=self._bed.secrets(),
                ),
                timeout=30,
            ),
            "NodeUnstageVolume": lambda i: self._node.NodeUnstageVolume(
                csi_pb2.NodeUnstageVolumeRequest(volume_id=i, staging_target_path=staging), timeout=30
            ),
            "NodePublishVolume": lambda i: self._node.NodePublishVolume(
                csi_pb2.NodePublishVolumeRequest(
                    volume_id=i, staging_target_path=staging, target_path=target, volume_capability=capability
                ),
                timeout=30,
            ),
            "NodeUnpublishVolume": lambda i: self._node.NodeUnpublishVolume(
                csi_pb2.NodeUnpublishVolumeRequest(volume_id=i, target_path=target), timeout=30
            ),
            "NodeGetVolumeStats": lambda i: self._node.NodeGetVolumeStats(
                csi_pb2.NodeGetVolumeStatsRequest(volume_id=i, volume_path=target), timeout=30
            ),
        }
        for method, call in calls.items():
            yield Row(f"{method} without an id", partial(call, ""), "INVALID_ARGUMENT", ("volume_id",))
            yield Row(f"{method}, 129 bytes", partial(call, "i" * 129), "INVALID_ARGUMENT", ("129", "128"))
            for odd in ODD_IDS:
                yield Row(f"{method} {odd[:12]!r}", partial(call, odd), "NOT_FOUND", ("volume",))
        for odd in (*ODD_IDS, ABSENT_ID):
            request = csi_pb2.DeleteVolumeRequest(volume_id=odd, secrets=self._bed.secrets())
            yield Row(
                f"delete of {odd[:12]!r}",
                partial(self._controller.DeleteVolume, request, timeout=30),
                "OK",
            )
        yield Row(
            "stage of an absent volume",
            lambda: calls["NodeStageVolume"](ABSENT_ID),
            "NOT_FOUND",
            ("not there",),
        )
        yield Row("unstage of an absent volume", lambda: calls["NodeUnstageVolume"](ABSENT_ID), "OK")

    def _parameters(self) -> Iterator[Row]:
        yield Row(
            "an unknown parameter", self.create("p", colour="blue"), "INVALID_ARGUMENT", ("colour", "known")
        )
        yield Row("an absent pool", self.create("p", pool="nowhere"), "NOT_FOUND", ("nowhere", "pool"))
        yield Row("an absent data pool", self.create("p", dataPool="nowhere"), "NOT_FOUND", ("nowhere",))
        yield Row(
            "an erasure-coded pool", self.create("p", pool="ec"), "FAILED_PRECONDITION", ("ec", "dataPool")
        )
        yield Row(
            "an unknown mounter", self.create("p", mounter="x"), "INVALID_ARGUMENT", ("mounter", "krbd")
        )
        yield Row(
            "an unknown feature", self.create("p", imageFeatures="x"), "INVALID_ARGUMENT", ("imageFeatures",)
        )
        options = self.create("p", mkfsOptions="-J device=/dev/sda")
        yield Row("mkfs options for another device", options, "INVALID_ARGUMENT", ("mkfsOptions",))
        yield Row(
            "an unknown cluster",
            self.create("p", clusterID="x"),
            "FAILED_PRECONDITION",
            ("clusterID", "add"),
        )

    def _sizes(self) -> Iterator[Row]:
        def sized(required: int, limit: int, name: str = "sized") -> Callable[[], object]:
            request = Claim(self._bed, name).create()
            request.capacity_range.required_bytes, request.capacity_range.limit_bytes = required, limit
            return lambda: self._controller.CreateVolume(request, timeout=30)

        yield Row("limit < required", sized(2 * GIB, GIB), "OUT_OF_RANGE", ("limit",))
        yield Row("a limit between two steps", sized(GIB + 1, GIB + 2), "OUT_OF_RANGE", ("1 MiB",))
        yield Row("2^63 - 1 bytes", sized(2**63 - 1, 0), "OUT_OF_RANGE", ("more",))
        yield Row("more than 256,000,000 objects", sized(MOST + MIB, 0), "OUT_OF_RANGE", ("objects",))
        yield Row("a negative size", sized(-1, 0), "INVALID_ARGUMENT", ("negative",))

        def size_of(required: int, name: str, size: int) -> Callable[[], object]:
            def call() -> object:
                request = Claim(self._bed, name).create()
                request.capacity_range.required_bytes = required
                made = self._controller.CreateVolume(request, timeout=30).volume
                if made.capacity_bytes != size:
                    raise InputError(f"{required} bytes gave {made.capacity_bytes}, expected {size}")
                return made

            return call

        yield Row("no range", size_of(0, "no-range", GIB), "OK")
        yield Row("one byte more than a step", size_of(GIB + 1, "odd-size", GIB + MIB), "OK")

    def _paths(self) -> Iterator[Row]:
        claim = Claim(self._bed, "paths")
        volume = retried(self._controller.CreateVolume, claim.create()).volume
        link = self._bed.kubelet / "pods" / "link"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/etc")

        def stage(path: str) -> Callable[[], object]:
            request = claim.stage(volume)
            request.staging_target_path = path
            return lambda: self._node.NodeStageVolume(request, timeout=30)

        outside = (
            "/etc/waymark",
            str(self._bed.kubelet / "pods" / ".." / ".." / "x"),
            "relative/path",
            f"{link}/x",
        )
        for path in outside:
            yield Row(f"stage at {path[-24:]}", stage(path), "INVALID_ARGUMENT", ("staging_target_path",))
        publish = claim.publish(volume)
        not_staged = partial(self._node.NodePublishVolume, publish, timeout=30)
        yield Row("publish without a stage", not_staged, "FAILED_PRECONDITION", ("not staged", "stage it"))
        bare = claim.publish(volume)
        bare.staging_target_path = ""
        no_path = partial(self._node.NodePublishVolume, bare, timeout=30)
        yield Row("publish without a staging path", no_path, "FAILED_PRECONDITION", ("staging_target_path",))
        yield Row(
            "nothing was bound",
            lambda: _expect(not claim.publish_path.exists(), "a plain folder is bound"),
            "OK",
        )


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise InputError(otherwise)
