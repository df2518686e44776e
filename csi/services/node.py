"""The Node service."""

from __future__ import annotations

import grpc

from csi.deadlines import deadline
from csi.requests import node as requests
from csi.services import render
from csi.services.ports import NodeOperations
from csi.services.unoffered import unoffered
from executor.ports import Clock
from proto import csi_pb2, csi_pb2_grpc

_RPC = csi_pb2.NodeServiceCapability.RPC

CAPABILITIES = (_RPC.STAGE_UNSTAGE_VOLUME, _RPC.GET_VOLUME_STATS, _RPC.EXPAND_VOLUME)


class Node(csi_pb2_grpc.NodeServicer):
    """Brings volumes to containers of this node."""

    def __init__(self, operations: NodeOperations, clock: Clock, node_id: str) -> None:
        """Serve with these operations; `clock` is the one that their deadlines are told in."""
        self._operations = operations
        self._clock = clock
        self._node_id = node_id

    def NodeStageVolume(
        self, request: csi_pb2.NodeStageVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeStageVolumeResponse:
        """Make a volume ready on this node."""
        command = requests.stage_volume(request)
        self._operations.stage_volume(command, deadline(context, self._clock))
        return csi_pb2.NodeStageVolumeResponse()

    def NodeUnstageVolume(
        self, request: csi_pb2.NodeUnstageVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnstageVolumeResponse:
        """Take a volume off this node."""
        command = requests.unstage_volume(request)
        self._operations.unstage_volume(command, deadline(context, self._clock))
        return csi_pb2.NodeUnstageVolumeResponse()

    def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodePublishVolumeResponse:
        """Show a staged volume to a container."""
        command = requests.publish_volume(request)
        self._operations.publish_volume(command, deadline(context, self._clock))
        return csi_pb2.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        """Hide a volume from a container."""
        command = requests.unpublish_volume(request)
        self._operations.unpublish_volume(command, deadline(context, self._clock))
        return csi_pb2.NodeUnpublishVolumeResponse()

    def NodeExpandVolume(
        self, request: csi_pb2.NodeExpandVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeExpandVolumeResponse:
        """Let a volume's file system fill a volume that became larger."""
        command = requests.expand_volume(request)
        size = self._operations.expand_volume(command, deadline(context, self._clock))
        return csi_pb2.NodeExpandVolumeResponse(capacity_bytes=size)

    def NodeGetVolumeStats(
        self, request: csi_pb2.NodeGetVolumeStatsRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetVolumeStatsResponse:
        """Say how full a volume is."""
        command = requests.volume_stats(request)
        usage = self._operations.volume_stats(command, deadline(context, self._clock))
        return render.usage(usage)

    def NodeGetCapabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        """Say which of the methods are offered."""
        return csi_pb2.NodeGetCapabilitiesResponse(
            capabilities=[csi_pb2.NodeServiceCapability(rpc=_RPC(type=type_)) for type_ in CAPABILITIES]
        )

    def NodeGetInfo(
        self, request: csi_pb2.NodeGetInfoRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetInfoResponse:
        """Say which node this is; any number of volumes fits on it."""
        return csi_pb2.NodeGetInfoResponse(node_id=self._node_id)

    NodeGetVolumeHealth = unoffered
    NodeGetStorageHealth = unoffered
