"""The sidecars' and kubelet's calls for a claim, each made until it succeeds or fails finally."""

from __future__ import annotations

from e2e.harness.client import Client, retried
from e2e.harness.volumes import Claim
from proto import csi_pb2


def create(claim: Claim, parameters: dict[str, str] | None = None) -> csi_pb2.Volume:
    """As the provisioner does."""
    with claim.testbed.client() as client:
        return retried(client.controller.CreateVolume, claim.create(parameters)).volume


def delete(claim: Claim, volume: csi_pb2.Volume) -> None:
    """As the provisioner does."""
    with claim.testbed.client() as client:
        retried(client.controller.DeleteVolume, claim.delete(volume.volume_id))


def expand(claim: Claim, volume: csi_pb2.Volume, size_bytes: int) -> int:
    """As the resizer does; the size that the volume then has."""
    with claim.testbed.client() as client:
        request = claim.expand(volume.volume_id, size_bytes)
        return retried(client.controller.ControllerExpandVolume, request).capacity_bytes


def stage(node: Client, claim: Claim, volume: csi_pb2.Volume) -> None:
    """As kubelet does."""
    retried(node.node.NodeStageVolume, claim.stage(volume))


def publish(node: Client, claim: Claim, volume: csi_pb2.Volume) -> None:
    """As kubelet does."""
    retried(node.node.NodePublishVolume, claim.publish(volume))


def unpublish(node: Client, claim: Claim, volume: csi_pb2.Volume) -> None:
    """As kubelet does."""
    retried(node.node.NodeUnpublishVolume, claim.unpublish(volume))


def unstage(node: Client, claim: Claim, volume: csi_pb2.Volume) -> None:
    """As kubelet does."""
    retried(node.node.NodeUnstageVolume, claim.unstage(volume))
