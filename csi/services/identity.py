"""The Identity service."""

from __future__ import annotations

import grpc
from google.protobuf import wrappers_pb2

from proto import csi_pb2, csi_pb2_grpc

_Service = csi_pb2.PluginCapability.Service
_Expansion = csi_pb2.PluginCapability.VolumeExpansion


class Identity(csi_pb2_grpc.IdentityServicer):
    """Who this driver is.  It asks no cluster anything, so it always answers at once."""

    def __init__(self, driver_name: str, version: str, *, has_controller: bool) -> None:
        """Answer for a driver; `has_controller`: this process serves the Controller service too."""
        self._driver_name = driver_name
        self._version = version
        self._has_controller = has_controller

    def GetPluginInfo(
        self, request: csi_pb2.GetPluginInfoRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetPluginInfoResponse:
        """Name and version."""
        return csi_pb2.GetPluginInfoResponse(name=self._driver_name, vendor_version=self._version)

    def GetPluginCapabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        """The services served here besides Node, and that volumes are expanded whether in use or not."""
        types = [_Service.CONTROLLER_SERVICE] if self._has_controller else []
        expansion = csi_pb2.PluginCapability.VolumeExpansion(type=_Expansion.ONLINE)
        return csi_pb2.GetPluginCapabilitiesResponse(
            capabilities=[
                *(csi_pb2.PluginCapability(service=_Service(type=type_)) for type_ in types),
                csi_pb2.PluginCapability(volume_expansion=expansion),
            ]
        )

    def Probe(self, request: csi_pb2.ProbeRequest, context: grpc.ServicerContext) -> csi_pb2.ProbeResponse:
        """Ready, whatever the clusters do: a plugin that says otherwise is restarted in mid-outage."""
        return csi_pb2.ProbeResponse(ready=wrappers_pb2.BoolValue(value=True))
