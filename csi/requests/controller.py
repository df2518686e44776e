"""Requests of the Controller service."""

from __future__ import annotations

from collections.abc import Iterable

from csi import handles, identities, parameters
from csi.commands import CreateVolume, DeleteVolume, ExpandVolume, Segments, Topology, ValidateVolume
from csi.handles import HandleError, VolumeHandle
from csi.requests import capabilities, capacity, fields
from csi.requests.capabilities import UnservedError
from executor.errors import InvalidError
from proto import csi_pb2


def create_volume(request: csi_pb2.CreateVolumeRequest) -> CreateVolume:
    """Check a CreateVolume.  Raises InvalidError, OutOfRangeError, UnauthenticatedError."""
    fields.check_sizes(request)
    name = fields.name("name", request.name)
    asked = capabilities.several("volume_capabilities", request.volume_capabilities)
    if request.HasField("volume_content_source"):
        raise InvalidError("volume_content_source is not supported: a new volume is empty")
    if request.mutable_parameters:
        keys = ", ".join(sorted(request.mutable_parameters))
        raise InvalidError(f"mutable_parameters are not supported, but the request has: {keys}")
    class_parameters = parameters.parse(request.parameters)
    chosen = capacity.choose(request.capacity_range, class_parameters.features)
    first = asked[0]
    return CreateVolume(
        name=name,
        required_bytes=chosen.required_bytes,
        limit_bytes=chosen.limit_bytes,
        size_bytes=chosen.size_bytes,
        access=first.access,
        fs_type=(first.fs_type or class_parameters.fs_type) if first.access == "mount" else "",
        mount_flags=first.mount_flags,
        access_modes=tuple(dict.fromkeys(capability.mode for capability in asked)),
        parameters=class_parameters,
        topology=Topology(
            requisite=_segments(request.accessibility_requirements.requisite),
            preferred=_segments(request.accessibility_requirements.preferred),
        ),
        credentials=identities.from_secrets(request.secrets),
        metadata=parameters.metadata(request.parameters),
    )


def delete_volume(request: csi_pb2.DeleteVolumeRequest) -> DeleteVolume:
    """Check a DeleteVolume.  Raises InvalidError, UnauthenticatedError."""
    fields.check_sizes(request)
    volume_id = fields.present("volume_id", request.volume_id)
    try:
        handle: VolumeHandle | None = handles.decode(volume_id)
    except HandleError:
        # Whatever has this id, we did not make it; the caller wants it gone, and for all we can tell it is.
        return DeleteVolume(volume_id, None)
    return DeleteVolume(volume_id, handle, identities.from_secrets(request.secrets))


def expand_volume(request: csi_pb2.ControllerExpandVolumeRequest) -> ExpandVolume:
    """Check a ControllerExpandVolume.

    Raises InvalidError, HandleError, OutOfRangeError, UnauthenticatedError.
    """
    fields.check_sizes(request)
    volume_id = fields.present("volume_id", request.volume_id)
    asked = capacity.grown(request.capacity_range)
    if request.HasField("volume_capability"):
        capabilities.one("volume_capability", request.volume_capability)
    return ExpandVolume(
        volume_id=volume_id,
        handle=handles.decode(volume_id),
        size_bytes=asked.size_bytes,
        limit_bytes=asked.limit_bytes,
        credentials=identities.from_secrets(request.secrets),
    )


def validate_volume(request: csi_pb2.ValidateVolumeCapabilitiesRequest) -> ValidateVolume:
    """Check a ValidateVolumeCapabilities.  Raises InvalidError, HandleError, UnauthenticatedError."""
    fields.check_sizes(request)
    volume_id = fields.present("volume_id", request.volume_id)
    if not request.volume_capabilities:
        raise InvalidError("volume_capabilities is missing from the request")
    handle = handles.decode(volume_id)
    credentials = identities.from_secrets(request.secrets)
    context = dict(request.volume_context)
    # A well-formed wish that cannot be served is an answer, not an error.
    try:
        asked = capabilities.several("volume_capabilities", request.volume_capabilities)
    except UnservedError as error:
        return ValidateVolume(volume_id, handle, (), str(error), None, context, credentials)
    if request.mutable_parameters:
        refusal = "mutable_parameters are not supported"
        return ValidateVolume(volume_id, handle, asked, refusal, None, context, credentials)
    try:
        class_parameters = parameters.parse(request.parameters) if request.parameters else None
    except InvalidError as error:
        return ValidateVolume(volume_id, handle, asked, str(error), None, context, credentials)
    return ValidateVolume(volume_id, handle, asked, "", class_parameters, context, credentials)


def _segments(topologies: Iterable[csi_pb2.Topology]) -> tuple[Segments, ...]:
    return tuple(tuple(sorted(topology.segments.items())) for topology in topologies)
