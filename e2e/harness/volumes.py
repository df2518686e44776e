"""Volumes used the way a cluster uses them: requests built as the sidecars and kubelet build them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from e2e.harness.testbed import Testbed
from proto import csi_pb2

GIB = 1 << 30
SINGLE_WRITER = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER


def filesystem(fs_type: str = "ext4", mount_flags: Sequence[str] = ()) -> csi_pb2.VolumeCapability:
    """Return the capability of a volume that one node mounts and writes to."""
    return csi_pb2.VolumeCapability(
        mount=csi_pb2.VolumeCapability.MountVolume(fs_type=fs_type, mount_flags=mount_flags),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=SINGLE_WRITER),
    )


def block() -> csi_pb2.VolumeCapability:
    """Return the capability of a volume that one node uses as a raw device."""
    return csi_pb2.VolumeCapability(
        block=csi_pb2.VolumeCapability.BlockVolume(),
        access_mode=csi_pb2.VolumeCapability.AccessMode(mode=SINGLE_WRITER),
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """A volume that is asked for by name on a test bed, and every request of its life."""

    testbed: Testbed
    name: str
    size_bytes: int = GIB
    capability: csi_pb2.VolumeCapability = field(default_factory=filesystem)

    @property
    def is_block(self) -> bool:
        """Whether it is used as a raw device."""
        return self.capability.HasField("block")

    @property
    def staging_path(self) -> pathlib.Path:
        """Where kubelet stages it."""
        bed = self.testbed
        return bed.block_staging_path(self.name) if self.is_block else bed.staging_path(self.name)

    @property
    def publish_path(self) -> pathlib.Path:
        """Where kubelet publishes it to its pod."""
        bed = self.testbed
        return bed.block_publish_path(self.name) if self.is_block else bed.publish_path(self.name)

    def create(self, parameters: Mapping[str, str] | None = None) -> csi_pb2.CreateVolumeRequest:
        """Return the provisioner's request."""
        return csi_pb2.CreateVolumeRequest(
            name=self.name,
            capacity_range=csi_pb2.CapacityRange(required_bytes=self.size_bytes),
            volume_capabilities=[self.capability],
            parameters=parameters or self.testbed.parameters(),
            secrets=self.testbed.secrets(),
        )

    def delete(self, volume_id: str) -> csi_pb2.DeleteVolumeRequest:
        """Return the provisioner's request."""
        return csi_pb2.DeleteVolumeRequest(volume_id=volume_id, secrets=self.testbed.secrets())

    def expand(self, volume_id: str, size_bytes: int) -> csi_pb2.ControllerExpandVolumeRequest:
        """Return the resizer's request."""
        return csi_pb2.ControllerExpandVolumeRequest(
            volume_id=volume_id,
            capacity_range=csi_pb2.CapacityRange(required_bytes=size_bytes),
            secrets=self.testbed.secrets(),
            volume_capability=self.capability,
        )

    def expand_on_node(self, volume: csi_pb2.Volume, size_bytes: int) -> csi_pb2.NodeExpandVolumeRequest:
        """Return kubelet's request, which carries no secret here."""
        return csi_pb2.NodeExpandVolumeRequest(
            volume_id=volume.volume_id,
            volume_path=str(self.staging_path if not self.is_block else self.publish_path),
            staging_target_path=str(self.staging_path),
            capacity_range=csi_pb2.CapacityRange(required_bytes=size_bytes),
            volume_capability=self.capability,
        )

    def stage(self, volume: csi_pb2.Volume) -> csi_pb2.NodeStageVolumeRequest:
        """Return kubelet's request."""
        return csi_pb2.NodeStageVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(self.staging_path),
            volume_capability=self.capability,
            secrets=self.testbed.secrets(),
            volume_context=volume.volume_context,
        )

    def publish(self, volume: csi_pb2.Volume) -> csi_pb2.NodePublishVolumeRequest:
        """Return kubelet's request."""
        return csi_pb2.NodePublishVolumeRequest(
            volume_id=volume.volume_id,
            staging_target_path=str(self.staging_path),
            target_path=str(self.publish_path),
            volume_capability=self.capability,
            volume_context=volume.volume_context,
        )

    def unpublish(self, volume: csi_pb2.Volume) -> csi_pb2.NodeUnpublishVolumeRequest:
        """Return kubelet's request."""
        return csi_pb2.NodeUnpublishVolumeRequest(
            volume_id=volume.volume_id, target_path=str(self.publish_path)
        )

    def unstage(self, volume: csi_pb2.Volume) -> csi_pb2.NodeUnstageVolumeRequest:
        """Return kubelet's request, which carries no secret."""
        return csi_pb2.NodeUnstageVolumeRequest(
            volume_id=volume.volume_id, staging_target_path=str(self.staging_path)
        )
