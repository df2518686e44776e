"""Volume capabilities: in which ways a volume may be used, and which of them are served."""

from __future__ import annotations

from collections.abc import Iterable

from csi.commands import AccessMode, Capability
from csi.parameters import FS_TYPES
from executor.errors import InvalidError
from proto import csi_pb2

_Mode = csi_pb2.VolumeCapability.AccessMode

_WHY_NOT = {
    AccessMode.MULTI_NODE_MULTI_WRITER: (
        "several nodes that write to one file system would destroy it;"
        " use a block volume, or an access mode with a single writer"
    ),
}


class UnservedError(InvalidError):
    """A capability that is well-formed but that no volume of this driver has."""


def one(field: str, capability: csi_pb2.VolumeCapability) -> Capability:
    """Check one capability.

    Raises InvalidError for a capability that lacks a part, UnservedError for one that no volume has.
    """
    access = capability.WhichOneof("access_type")
    if access is None:
        raise InvalidError(f"{field} names no access type: it must be either block or mount")
    number = capability.access_mode.mode
    if number == _Mode.UNKNOWN:
        raise InvalidError(f"{field} names no access mode")
    mode = _mode(field, number)
    if access == "block":
        return Capability("block", mode)
    if mode is AccessMode.MULTI_NODE_MULTI_WRITER:
        raise UnservedError(f"{field}: access mode {mode} with a file system: {_WHY_NOT[mode]}")
    mount = capability.mount
    if mount.fs_type and mount.fs_type not in FS_TYPES:
        raise UnservedError(
            f"{field}: fs_type {mount.fs_type!r} is not served; known are: {', '.join(FS_TYPES)}"
        )
    if mount.volume_mount_group:
        raise UnservedError(f"{field}: volume_mount_group is not served; use the pod's fsGroup")
    return Capability("mount", mode, mount.fs_type, tuple(_flag(field, flag) for flag in mount.mount_flags))


def several(field: str, capabilities: Iterable[csi_pb2.VolumeCapability]) -> tuple[Capability, ...]:
    """Check the capabilities that one volume is to have.

    Raises what `one` raises, and InvalidError if there are none or they contradict each other.
    """
    checked = tuple(one(field, capability) for capability in capabilities)
    if not checked:
        raise InvalidError(f"{field} is missing from the request")
    first = checked[0]
    for other in checked[1:]:
        if other.access != first.access:
            raise InvalidError(f"{field} asks for both block and mount; a volume is one of them")
        if (other.fs_type, other.mount_flags) != (first.fs_type, first.mount_flags):
            raise InvalidError(
                f"{field} asks for different file systems or mount flags; a volume has one set"
            )
    return checked


def _mode(field: str, number: int) -> AccessMode:
    names = {int(value): key for key, value in _Mode.Mode.items()}
    name = names.get(number, str(number))
    if name in AccessMode.__members__:
        return AccessMode[name]
    raise UnservedError(f"{field}: access mode {name} is not served; known are: {', '.join(AccessMode)}")


def _flag(field: str, flag: str) -> str:
    if not flag or not flag.isprintable():
        raise InvalidError(f"{field}: mount flag {flag!r} is empty or has control characters")
    return flag
