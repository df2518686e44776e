"""Requests of the Node service."""

from __future__ import annotations

from csi import identities
from csi.commands import (
    NodeExpandVolume,
    PublishVolume,
    StageVolume,
    UnpublishVolume,
    UnstageVolume,
    VolumeStats,
)
from csi.requests import capabilities, capacity, fields
from executor.errors import InvalidError, PreconditionError
from proto import csi_pb2


def stage_volume(request: csi_pb2.NodeStageVolumeRequest) -> StageVolume:
    """Check a NodeStageVolume.  Raises InvalidError, HandleError, UnauthenticatedError."""
    fields.check_sizes(request)
    fields.present("volume_id", request.volume_id)
    staging_path = fields.path("staging_target_path", request.staging_target_path)
    _check_capability(request)
    return StageVolume(
        volume_id=request.volume_id,
        handle=fields.handle("volume_id", request.volume_id),
        staging_path=staging_path,
        capability=capabilities.one("volume_capability", request.volume_capability),
        volume_context=dict(request.volume_context),
        publish_context=dict(request.publish_context),
        credentials=identities.from_secrets(request.secrets),
    )


def unstage_volume(request: csi_pb2.NodeUnstageVolumeRequest) -> UnstageVolume:
    """Check a NodeUnstageVolume.  Raises InvalidError, HandleError."""
    fields.check_sizes(request)
    fields.present("volume_id", request.volume_id)
    staging_path = fields.path("staging_target_path", request.staging_target_path)
    return UnstageVolume(request.volume_id, fields.handle("volume_id", request.volume_id), staging_path)


def publish_volume(request: csi_pb2.NodePublishVolumeRequest) -> PublishVolume:
    """Check a NodePublishVolume.

    Raises InvalidError, HandleError, UnauthenticatedError; PreconditionError without a staging path, because
    this driver announces that volumes are staged.
    """
    fields.check_sizes(request)
    fields.present("volume_id", request.volume_id)
    target_path = fields.path("target_path", request.target_path)
    _check_capability(request)
    if not request.staging_target_path:
        raise PreconditionError("staging_target_path is missing: a volume is staged before it is published")
    return PublishVolume(
        volume_id=request.volume_id,
        handle=fields.handle("volume_id", request.volume_id),
        staging_path=fields.path("staging_target_path", request.staging_target_path),
        target_path=target_path,
        capability=capabilities.one("volume_capability", request.volume_capability),
        readonly=request.readonly,
        volume_context=dict(request.volume_context),
        publish_context=dict(request.publish_context),
        credentials=identities.from_secrets(request.secrets),
    )


def unpublish_volume(request: csi_pb2.NodeUnpublishVolumeRequest) -> UnpublishVolume:
    """Check a NodeUnpublishVolume.  Raises InvalidError, HandleError."""
    fields.check_sizes(request)
    fields.present("volume_id", request.volume_id)
    target_path = fields.path("target_path", request.target_path)
    return UnpublishVolume(request.volume_id, fields.handle("volume_id", request.volume_id), target_path)


def expand_volume(request: csi_pb2.NodeExpandVolumeRequest) -> NodeExpandVolume:
    """Check a NodeExpandVolume.  Raises InvalidError, HandleError, UnauthenticatedError."""
    fields.check_sizes(request)
    fields.present("volume_id", request.volume_id)
    # As for the stats: at a path that is not absolute nothing is mounted.
    volume_path = fields.present("volume_path", request.volume_path)
    if request.HasField("volume_capability"):
        capabilities.one("volume_capability", request.volume_capability)
    size = capacity.grown(request.capacity_range).size_bytes if request.HasField("capacity_range") else 0
    return NodeExpandVolume(
        request.volume_id,
        fields.handle("volume_id", request.volume_id),
        volume_path,
        size,
        identities.from_secrets(request.secrets),
    )


def volume_stats(request: csi_pb2.NodeGetVolumeStatsRequest) -> VolumeStats:
    """Check a NodeGetVolumeStats.  Raises InvalidError, HandleError."""
    fields.check_sizes(request)
    fields.present("volume_id", request.volume_id)
    # Not held to be absolute: nothing is mounted at a path that is not, and so it is simply not found.
    volume_path = fields.present("volume_path", request.volume_path)
    handle = fields.handle("volume_id", request.volume_id)
    return VolumeStats(request.volume_id, handle, volume_path, request.staging_target_path)


def _check_capability(request: csi_pb2.NodeStageVolumeRequest | csi_pb2.NodePublishVolumeRequest) -> None:
    if not request.HasField("volume_capability"):
        raise InvalidError("volume_capability is missing from the request")
