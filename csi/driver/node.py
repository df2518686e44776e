"""What a node does with volumes."""

from __future__ import annotations

from collections.abc import Callable

from csi.commands import (
    NodeExpandVolume,
    PublishVolume,
    StageVolume,
    UnpublishVolume,
    UnstageVolume,
    VolumeStats,
)
from csi.driver.node_core import NodeCore, session_of
from csi.driver.spool import Spool
from csi.node.paths import check_path
from csi.node.ports import FileSystemUsage
from csi.operations import node_expand_volume, publish_volume, stage_volume, unpublish_volume, unstage_volume
from csi.services.ports import DeviceUsage
from executor.errors import NotFoundError, UnavailableError

_DEVICE_TREES = frozenset({"devtmpfs", "tmpfs"})
"""Where device nodes live: a mount of one of these shows a device, any other a file system."""


class NodeVolumes:
    """The Node service's operations."""

    def __init__(self, core: Callable[[], NodeCore], spool: Callable[[], Spool]) -> None:
        """Both raise UnavailableError while a predecessor, or a child of it, has the state directory."""
        self._core = core
        self._spool = spool

    def stage_volume(self, command: StageVolume, deadline: float) -> None:
        """Make the volume ready at the staging path."""
        core = self._core()
        check_path(command.staging_path, core.kubelet_dir, "staging_target_path")
        namespace = core.sessions.config(command.handle.cluster_id).namespace
        session = session_of(core, command.handle, command.credentials)
        core.executor.run(stage_volume.call(session, command, core.place, namespace), deadline)

    def unstage_volume(self, command: UnstageVolume, deadline: float) -> None:
        """Take the volume off this node; not staged is success."""
        core = self._core()
        check_path(command.staging_path, core.kubelet_dir, "staging_target_path")
        session = session_of(core, command.handle, None)
        core.executor.run(unstage_volume.call(session, command, core.place), deadline)
        self._spool().tell(command.handle.uuid)

    def publish_volume(self, command: PublishVolume, deadline: float) -> None:
        """Show the staged volume at the target path."""
        core = self._core()
        check_path(command.staging_path, core.kubelet_dir, "staging_target_path")
        check_path(command.target_path, core.kubelet_dir, "target_path")
        session = session_of(core, command.handle, command.credentials)
        core.executor.run(publish_volume.call(session, command, core.place), deadline)
        self._spool().tell_soon(command.handle.uuid)

    def unpublish_volume(self, command: UnpublishVolume, deadline: float) -> None:
        """Take the target path away; not published is success."""
        core = self._core()
        check_path(command.target_path, core.kubelet_dir, "target_path")
        session = session_of(core, command.handle, None)
        core.executor.run(unpublish_volume.call(session, command, core.place), deadline)
        self._spool().tell_soon(command.handle.uuid)

    def expand_volume(self, command: NodeExpandVolume, deadline: float) -> int:
        """Let what lies on the volume fill it; the device's bytes.  Raises NotFoundError."""
        core = self._core()
        session = session_of(core, command.handle, command.credentials)
        core.executor.run(node_expand_volume.call(session, command, core.place), deadline)
        self._spool().tell_soon(command.handle.uuid)
        return core.host.mounts.device_size(self._device(core, command.handle.uuid))

    def _device(self, core: NodeCore, uuid: str) -> str:
        for mapper in core.host.mappers.values():
            device = mapper.find(uuid)
            if device is not None:
                return device.path
        raise UnavailableError(f"volume {uuid} is not mapped on this node any more; stage it again")

    def volume_stats(self, command: VolumeStats, deadline: float) -> FileSystemUsage | DeviceUsage:
        """How full the volume is.  Raises NotFoundError if it is not at the path."""
        del deadline  # Answered by this host's kernel alone.
        core, path = self._core(), command.volume_path
        for mapper in core.host.mappers.values():
            device = mapper.find(command.handle.uuid)
            for mount in core.host.mounts.of_device(device.path) if device is not None else ():
                if mount.target == path:
                    if mount.fs_type in _DEVICE_TREES:
                        return DeviceUsage(core.host.mounts.device_size(path))
                    return core.host.mounts.usage(path)
        raise NotFoundError(f"volume {command.volume_id} is not at {path} on this node")
