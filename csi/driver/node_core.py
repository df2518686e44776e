"""What all work on a node shares, and the session of one volume."""

from __future__ import annotations

from dataclasses import dataclass

from csi.handles import VolumeHandle
from csi.node.ports import Credentials
from csi.node.session import HostParts, NodeSession
from csi.sessions import Sessions
from executor.node_change import NodePlace
from executor.operation_executor import OperationExecutor


@dataclass(frozen=True, slots=True)
class NodeCore:
    """What is there once the state directory is this process's own."""

    executor: OperationExecutor[NodeSession]
    sessions: Sessions
    host: HostParts
    place: NodePlace
    kubelet_dir: str


def session_of(core: NodeCore, handle: VolumeHandle, given: Credentials | None) -> NodeSession:
    """A session for one volume.  It connects to the cluster only when an operation needs that."""
    cluster = handle.cluster_id

    def credentials() -> Credentials:
        return core.sessions.identity(cluster, given, lambda: core.host.stage_keys.get(handle.uuid))

    return NodeSession(
        cluster=cluster,
        host=core.host,
        credentials=credentials,
        connect=lambda identity: core.sessions.open(cluster, identity),
        monitors=lambda: core.sessions.config(cluster).monitors,
    )
