"""What a caller wants, checked and frozen: the shape in which requests reach the operations.

`csi.requests` makes these from protobuf; nothing behind it sees a protobuf message.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from csi.handles import VolumeHandle
from csi.node.ports import Credentials
from csi.parameters import ClassParameters

Access = Literal["mount", "block"]
"""How a volume is seen by a container: as a folder (a file system), or as a device."""

Segments = tuple[tuple[str, str], ...]
"""One topology: its keys and values, ordered by key."""


class AccessMode(enum.StrEnum):
    """Who may use a volume at a time; the names are CSI's."""

    SINGLE_NODE_WRITER = "SINGLE_NODE_WRITER"
    SINGLE_NODE_READER_ONLY = "SINGLE_NODE_READER_ONLY"
    MULTI_NODE_READER_ONLY = "MULTI_NODE_READER_ONLY"
    MULTI_NODE_MULTI_WRITER = "MULTI_NODE_MULTI_WRITER"

    @property
    def is_single_writer(self) -> bool:
        """Whether one node alone may write."""
        return self is AccessMode.SINGLE_NODE_WRITER

    @property
    def is_read_only(self) -> bool:
        """Whether nobody may write."""
        return self in {AccessMode.SINGLE_NODE_READER_ONLY, AccessMode.MULTI_NODE_READER_ONLY}


@dataclass(frozen=True, slots=True)
class Capability:
    """A way of using a volume.  `fs_type` "" is the one that the volume was made for, or none (block)."""

    access: Access
    mode: AccessMode
    fs_type: str = ""
    mount_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Where a volume must be reachable from, and where first; both in the caller's order."""

    requisite: tuple[Segments, ...] = ()
    preferred: tuple[Segments, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateVolume:
    """A volume wanted.

    `size_bytes` is what it will get; `required_bytes` and `limit_bytes` are as asked, 0 is unset.  `fs_type`
    is never "" for `access` "mount", always for "block".  `metadata` may differ between retries.
    """

    name: str
    required_bytes: int
    limit_bytes: int
    size_bytes: int
    access: Access
    fs_type: str
    mount_flags: tuple[str, ...]
    access_modes: tuple[AccessMode, ...]
    parameters: ClassParameters
    topology: Topology = field(default_factory=Topology)
    credentials: Credentials | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def cluster_id(self) -> str:
        """The cluster to make it in."""
        return self.parameters.cluster_id


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    """A volume no longer wanted.  `handle` None: the id is no handle, so there is nothing to delete."""

    volume_id: str
    handle: VolumeHandle | None
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class ExpandVolume:
    """A volume wanted larger: at least `size_bytes`, a whole number of steps; 0 if only a limit was given."""

    volume_id: str
    handle: VolumeHandle
    size_bytes: int
    limit_bytes: int
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class ValidateVolume:
    """A question whether a volume can be used in these ways.

    `refusal` says why some of them are served by no volume; "" if all of them could be.
    """

    volume_id: str
    handle: VolumeHandle
    capabilities: tuple[Capability, ...]
    refusal: str = ""
    parameters: ClassParameters | None = None
    volume_context: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class StageVolume:
    """A volume wanted on this node, at a staging path that all its containers share."""

    volume_id: str
    handle: VolumeHandle
    staging_path: str
    capability: Capability
    volume_context: Mapping[str, str] = field(default_factory=dict)
    publish_context: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class UnstageVolume:
    """A volume no longer wanted on this node."""

    volume_id: str
    handle: VolumeHandle
    staging_path: str


@dataclass(frozen=True, slots=True)
class PublishVolume:
    """A staged volume wanted at one container's target path."""

    volume_id: str
    handle: VolumeHandle
    staging_path: str
    target_path: str
    capability: Capability
    readonly: bool
    volume_context: Mapping[str, str] = field(default_factory=dict)
    publish_context: Mapping[str, str] = field(default_factory=dict)
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class UnpublishVolume:
    """A target path no longer wanted."""

    volume_id: str
    handle: VolumeHandle
    target_path: str


@dataclass(frozen=True, slots=True)
class NodeExpandVolume:
    """A volume that became larger, and what lies on it is to fill it.

    `volume_path` is where it is staged or published; `size_bytes` 0 if the caller did not tell the size.
    """

    volume_id: str
    handle: VolumeHandle
    volume_path: str
    size_bytes: int = 0
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class VolumeStats:
    """A question how full the volume at a path is.  `staging_path` "" if the caller did not tell it."""

    volume_id: str
    handle: VolumeHandle
    volume_path: str
    staging_path: str = ""


@dataclass(frozen=True, slots=True)
class ReadVolume:
    """A question about a volume's state or history."""

    volume_id: str
    handle: VolumeHandle


@dataclass(frozen=True, slots=True)
class ListOperations:
    """A question for the operations not finished; `max_entries` 0 lets the server choose."""

    max_entries: int
    starting_token: str
