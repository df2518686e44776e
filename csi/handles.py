"""Volume handles, in the format of ceph-csi, so that either driver can read a PV that the other one made.

0001-0009-rook-ceph-0000000000000002-7c1f53a0-3a3b-4a0e-8f0e-5e6f1f2a9d11
|    |    |         |                `- UUID: names the record and, in it, the image
|    |    |         `- number of the pool, 16 hexadecimal digits
|    |    `- clusterID, as in config.json
|    `- length of the clusterID, 4 hexadecimal digits
`- version of the format
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from executor.errors import NotFoundError

MAX_BYTES = 128
"""Longest handle: CSI allows no longer id."""

MAX_CLUSTER_ID_BYTES = 64
"""What the other parts of the longest handle leave over."""

_VERSION = "0001"
_CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEAD = re.compile(rf"{_VERSION}-([0-9a-f]{{4}})-")
_TAIL = re.compile(r"-([0-9a-f]{16})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_POOL_ID = 2**63 - 1


class HandleError(NotFoundError):
    """The text is no volume handle, so no volume of this driver can have it.

    A kind of "not found": a caller that asks for such a volume is told that there is none, and one that
    deletes it has nothing to delete.
    """


@dataclass(frozen=True, slots=True)
class VolumeHandle:
    """What a volume id says.  Raises ValueError for parts that no handle can carry."""

    cluster_id: str
    pool_id: int
    uuid: str

    def __post_init__(self) -> None:
        if not is_cluster_id(self.cluster_id):
            msg = f"{self.cluster_id!r} is no clusterID"
            raise ValueError(msg)
        if not 0 <= self.pool_id <= _MAX_POOL_ID:
            msg = f"{self.pool_id} is no pool number"
            raise ValueError(msg)
        if not _UUID.fullmatch(self.uuid):
            msg = f"{self.uuid!r} is no UUID in canonical form"
            raise ValueError(msg)

    def __str__(self) -> str:
        return encode(self)


def is_cluster_id(text: str) -> bool:
    """Whether the text can be a clusterID: at most 64 of letters, digits, `.`, `_`, `-`, no sign in front.

    It becomes part of handles and of folder names, so nothing else is let in.
    """
    return len(text) <= MAX_CLUSTER_ID_BYTES and _CLUSTER_ID.fullmatch(text) is not None


def encode(handle: VolumeHandle) -> str:
    """The volume id that stands for the handle; `decode` gives the same handle back."""
    length = len(handle.cluster_id)
    return f"{_VERSION}-{length:04x}-{handle.cluster_id}-{handle.pool_id:016x}-{handle.uuid}"


def decode(volume_id: str) -> VolumeHandle:
    """The handle that a volume id stands for.

    Strict: whatever `encode` would not have written is refused, so that no two ids name one volume.
    Raises HandleError.
    """
    head = _HEAD.match(volume_id)
    if head is None:
        raise _refused(volume_id)
    end = head.end() + int(head[1], base=16)
    tail = _TAIL.fullmatch(volume_id, end)
    if tail is None:
        raise _refused(volume_id)
    try:
        return VolumeHandle(volume_id[head.end() : end], int(tail[1], base=16), tail[2])
    except ValueError:
        raise _refused(volume_id) from None


def _refused(volume_id: str) -> HandleError:
    return HandleError(
        f"no volume {volume_id!r}: an id of this driver has the form"
        " 0001-<length>-<clusterID>-<pool number>-<UUID>; check volumeHandle in the PersistentVolume"
    )
