"""What a controller does with volumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from csi.commands import CreateVolume, DeleteVolume, ExpandVolume, ValidateVolume
from csi.driver.records import home_of, read_live
from csi.operations import create_volume, delete_volume, expand_volume
from csi.services.ports import CreatedVolume
from csi.session import DriverSession
from csi.sessions import Sessions
from executor.errors import NotFoundError
from executor.operation_executor import OperationExecutor
from omap.codec import JSON


@dataclass(frozen=True, slots=True)
class Core:
    """What is there once the state directory is this process's own."""

    executor: OperationExecutor[DriverSession]
    sessions: Sessions


class ControllerVolumes:
    """The Controller service's operations."""

    def __init__(self, core: Callable[[], Core]) -> None:
        """`core` raises UnavailableError while the state directory is still a predecessor's."""
        self._core = core

    def create_volume(self, command: CreateVolume, deadline: float) -> CreatedVolume:
        """Make the volume, or find it made by the same request."""
        core = self._core()
        config = core.sessions.config(command.cluster_id)
        session = core.sessions.open(command.cluster_id, command.credentials, deadline)
        request = create_volume.call(session, command, config)
        return create_volume.created(core.executor.run(request, deadline))

    def delete_volume(self, command: DeleteVolume, deadline: float) -> None:
        """Take the volume away; absent is success."""
        core, handle = self._core(), command.handle
        if handle is None:
            return
        config = core.sessions.config(handle.cluster_id)
        session = core.sessions.open(handle.cluster_id, command.credentials, deadline)
        try:
            request = delete_volume.call(session, command, handle, config)
        except NotFoundError:
            # Only the newest map proves that a pool is gone, and with it every volume that was in it.
            session.barrier()
            try:
                request = delete_volume.call(session, command, handle, config)
            except NotFoundError:
                return
        core.executor.run(request, deadline)

    def expand_volume(self, command: ExpandVolume, deadline: float) -> int:
        """Make the volume larger; the bytes that it has now.  Raises NotFoundError."""
        core, handle = self._core(), command.handle
        session = core.sessions.open(handle.cluster_id, command.credentials, deadline)
        config = core.sessions.config(handle.cluster_id)
        result = core.executor.run(expand_volume.call(session, command, config), deadline)
        if not result:
            raise NotFoundError(f"volume {command.volume_id} is not there: no record of it is in its pool")
        return expand_volume.size_of(result)

    def validate_volume(self, command: ValidateVolume, deadline: float) -> str:
        """Why this volume cannot be used as asked; "" if it can."""
        core, handle = self._core(), command.handle
        session = core.sessions.open(handle.cluster_id, command.credentials, deadline)
        config = core.sessions.config(handle.cluster_id)
        record = read_live(session, home_of(session, handle, config), command.volume_id, handle.uuid)
        return command.refusal or _refusal(command, record.head_data)


def _refusal(command: ValidateVolume, data: Mapping[str, JSON]) -> str:
    """In what a volume differs from the capabilities and parameters asked about; "" if in nothing."""
    for capability in command.capabilities:
        if capability.access != data.get("access"):
            return f"the volume was made for {data.get('access')} access, not for {capability.access}"
        if capability.fs_type and capability.fs_type != data.get("fs_type"):
            return f"the volume was made for {data.get('fs_type')}, not for {capability.fs_type}"
    if command.parameters is None:
        return ""
    asked = {
        "cluster": command.parameters.cluster_id,
        "pool": command.parameters.pool,
        "data_pool": command.parameters.data_pool,
        "features": command.parameters.features,
        "mounter": command.parameters.mounter,
    }
    for key, value in asked.items():
        if data.get(key) != value:
            return f"the volume has {key} {data.get(key)}, not {value}"
    return ""
