"""The node plugin makes itself known to kubelet, without a registrar beside it.

kubelet watches a folder for sockets, asks each who it is, and tells it what came of that.  It serves nothing
else there.
"""

from __future__ import annotations

import pathlib

import grpc
from structlog.typing import FilteringBoundLogger

from proto import pluginregistration_pb2, pluginregistration_pb2_grpc

CSI_VERSIONS = ("1.0.0",)
"""kubelet takes a driver by the major version of CSI."""

THREADS = 2


def socket_path(folder: pathlib.Path, driver_name: str) -> pathlib.Path:
    """Where kubelet looks for this driver."""
    return folder / f"{driver_name}-reg.sock"


class Registration(pluginregistration_pb2_grpc.RegistrationServicer):
    """What kubelet asks before it uses a driver."""

    def __init__(self, driver_name: str, endpoint: pathlib.Path, log: FilteringBoundLogger) -> None:
        """`endpoint` is the CSI socket as kubelet sees it."""
        self._driver_name = driver_name
        self._endpoint = endpoint
        self._log = log

    def GetInfo(
        self, request: pluginregistration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> pluginregistration_pb2.PluginInfo:
        """Who this is, and where."""
        return pluginregistration_pb2.PluginInfo(
            type="CSIPlugin",
            name=self._driver_name,
            endpoint=str(self._endpoint),
            supported_versions=CSI_VERSIONS,
        )

    def NotifyRegistrationStatus(
        self, request: pluginregistration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """Whether kubelet took it: if not, no pod of this node gets a volume, so it is an error."""
        if request.plugin_registered:
            self._log.info("registered with kubelet", driver=self._driver_name)
        else:
            self._log.error("kubelet refuses the driver", driver=self._driver_name, error=request.error)
        return pluginregistration_pb2.RegistrationStatusResponse()
