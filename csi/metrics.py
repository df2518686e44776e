"""How long calls take, under the names and labels that Kubernetes' CSI dashboards expect."""

from __future__ import annotations

import grpc
from prometheus_client import CollectorRegistry, Histogram

BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600)

# Go's spelling, which the sidecars' own metrics use; where it is not the plain CamelCase of gRPC's name.
_GO_NAMES = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}


class Metrics:
    """The process's metrics.  Labels never name a volume."""

    def __init__(self, driver_name: str, registry: CollectorRegistry) -> None:
        """Register the metrics of one driver."""
        self._driver_name = driver_name
        self._operations = Histogram(
            "csi_plugin_operations_seconds",
            "Duration of CSI calls, by driver, full gRPC method and gRPC status",
            ("driver_name", "method_name", "grpc_status_code"),
            buckets=BUCKETS_SECONDS,
            registry=registry,
        )

    def call_ended(self, method: str, code: grpc.StatusCode, seconds: float) -> None:
        """Count a call; `method` as on the wire, for example `/csi.v1.Controller/CreateVolume`."""
        self._operations.labels(self._driver_name, method, go_name(code)).observe(seconds)


def go_name(code: grpc.StatusCode) -> str:
    """The code as Go spells it: `NotFound`."""
    return _GO_NAMES.get(code) or "".join(word.capitalize() for word in code.name.split("_"))
