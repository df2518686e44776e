"""Results as protobuf, for the CSI services."""

from __future__ import annotations

from csi.node.ports import FileSystemUsage
from csi.services.ports import CreatedVolume, DeviceUsage
from proto import csi_pb2

_Unit = csi_pb2.VolumeUsage


def created(volume: CreatedVolume) -> csi_pb2.CreateVolumeResponse:
    """The answer to a CreateVolume."""
    return csi_pb2.CreateVolumeResponse(
        volume=csi_pb2.Volume(
            volume_id=volume.volume_id,
            capacity_bytes=volume.size_bytes,
            volume_context=dict(volume.volume_context),
        )
    )


def validated(
    request: csi_pb2.ValidateVolumeCapabilitiesRequest, refusal: str
) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
    """The answer to a ValidateVolumeCapabilities: all that was asked is confirmed, or nothing is."""
    if refusal:
        return csi_pb2.ValidateVolumeCapabilitiesResponse(message=refusal)
    return csi_pb2.ValidateVolumeCapabilitiesResponse(
        confirmed=csi_pb2.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
            mutable_parameters=request.mutable_parameters,
        )
    )


def usage(found: FileSystemUsage | DeviceUsage) -> csi_pb2.NodeGetVolumeStatsResponse:
    """The answer to a NodeGetVolumeStats."""
    if isinstance(found, DeviceUsage):
        rows = [csi_pb2.VolumeUsage(unit=_Unit.BYTES, total=found.total_bytes)]
    else:
        rows = [
            csi_pb2.VolumeUsage(
                unit=_Unit.BYTES,
                total=found.total_bytes,
                used=found.used_bytes,
                available=found.available_bytes,
            ),
            csi_pb2.VolumeUsage(
                unit=_Unit.INODES,
                total=found.total_inodes,
                used=found.used_inodes,
                available=found.available_inodes,
            ),
        ]
    return csi_pb2.NodeGetVolumeStatsResponse(usage=rows)
