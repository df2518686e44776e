"""The Controller service."""

from __future__ import annotations

import grpc

from csi.deadlines import deadline
from csi.requests import controller as requests
from csi.services import render
from csi.services.ports import ControllerOperations
from csi.services.unoffered import unoffered
from executor.ports import Clock
from proto import csi_pb2, csi_pb2_grpc

_RPC = csi_pb2.ControllerServiceCapability.RPC

CAPABILITIES = (_RPC.CREATE_DELETE_VOLUME, _RPC.EXPAND_VOLUME)


class Controller(csi_pb2_grpc.ControllerServicer):
    """Makes and deletes volumes."""

    def __init__(self, operations: ControllerOperations, clock: Clock) -> None:
        """Serve with these operations; `clock` is the one that their deadlines are told in."""
        self._operations = operations
        self._clock = clock

    def CreateVolume(
        self, request: csi_pb2.CreateVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.CreateVolumeResponse:
        """Make a volume."""
        command = requests.create_volume(request)
        created = self._operations.create_volume(command, deadline(context, self._clock))
        return render.created(created)

    def DeleteVolume(
        self, request: csi_pb2.DeleteVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.DeleteVolumeResponse:
        """Delete a volume."""
        command = requests.delete_volume(request)
        self._operations.delete_volume(command, deadline(context, self._clock))
        return csi_pb2.DeleteVolumeResponse()

    def ControllerExpandVolume(
        self, request: csi_pb2.ControllerExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerExpandVolumeResponse:
        """Make a volume larger; the node then has to notice, whatever lies on it."""
        command = requests.expand_volume(request)
        size = self._operations.expand_volume(command, deadline(context, self._clock))
        return csi_pb2.ControllerExpandVolumeResponse(capacity_bytes=size, node_expansion_required=True)

    def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Say whether a volume can be used in these ways."""
        command = requests.validate_volume(request)
        refusal = self._operations.validate_volume(command, deadline(context, self._clock))
        return render.validated(request, refusal)

    def ControllerGetCapabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        """Say which of the methods are offered."""
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[csi_pb2.ControllerServiceCapability(rpc=_RPC(type=type_)) for type_ in CAPABILITIES]
        )

    ControllerPublishVolume = unoffered
    ControllerUnpublishVolume = unoffered
    ControllerGetVolume = unoffered
    ControllerModifyVolume = unoffered
    ListVolumes = unoffered
    GetCapacity = unoffered
    CreateSnapshot = unoffered
    DeleteSnapshot = unoffered
    ListSnapshots = unoffered
    GetSnapshot = unoffered
    ControllerGetVolumeHealth = unoffered
    ControllerListVolumeHealth = unoffered
