"""What a request is about, told from any request without checking it: for log lines and refusals."""

from __future__ import annotations

from google.protobuf.message import Message

from csi import handles
from csi.handles import HandleError

_KEYS = ("volume_id", "name", "snapshot_id", "group_snapshot_id")


def key(request: Message) -> str:
    """The volume's id or name in a request; "" where it has none."""
    for field in _KEYS:
        value = getattr(request, field, "")
        if isinstance(value, str) and value:
            return value
    return ""


def cluster_id(request: Message) -> str:
    """The cluster that a request is for; "" where it cannot be told."""
    volume_id = getattr(request, "volume_id", "")
    if volume_id:
        try:
            return handles.decode(volume_id).cluster_id
        except HandleError:
            return ""
    parameters = getattr(request, "parameters", None)
    return str(parameters.get("clusterID", "")) if parameters is not None else ""
