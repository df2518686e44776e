"""What the services need from the driver behind them.

Each method runs until it has a result or its `deadline` (a moment of the driver's own monotonic clock) has
come; then it raises PendingError, and the work goes on.  All raise executor.errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from csi.commands import (
    CreateVolume,
    DeleteVolume,
    ExpandVolume,
    ListOperations,
    NodeExpandVolume,
    PublishVolume,
    ReadVolume,
    StageVolume,
    UnpublishVolume,
    UnstageVolume,
    ValidateVolume,
    VolumeStats,
)
from csi.node.ports import FileSystemUsage
from executor.history import History
from executor.ports import Clock
from omap.store import Place


@dataclass(frozen=True, slots=True)
class CreatedVolume:
    """A volume as its creator is told of it."""

    volume_id: str
    size_bytes: int
    volume_context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """A block volume: only its size can be told."""

    total_bytes: int


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """A transaction that has begun and not ended, and how long ago it began."""

    operation: str
    stage: str
    state: str
    holder: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class VolumeState:
    """A volume's present state.  `head` numbers the transaction that left it (0: none); None is not known."""

    state: str
    head: int
    size_bytes: int | None = None
    image: str | None = None
    place: Place | None = None
    open_operation: OpenOperation | None = None


@dataclass(frozen=True, slots=True)
class ListedOperation:
    """An operation that is not finished, and the volume that it is at work on."""

    volume_id: str
    place: Place
    open_operation: OpenOperation


@dataclass(frozen=True, slots=True)
class OperationPage:
    """A part of a list; `next_token` "" when it was the last."""

    entries: tuple[ListedOperation, ...]
    next_token: str = ""


class ControllerOperations(Protocol):
    """What a controller does."""

    def create_volume(self, command: CreateVolume, deadline: float) -> CreatedVolume:
        """Make the volume, or find it made by the same request."""

    def delete_volume(self, command: DeleteVolume, deadline: float) -> None:
        """Take the volume away; absent is success."""

    def expand_volume(self, command: ExpandVolume, deadline: float) -> int:
        """Make the volume larger; the bytes that it has now."""

    def validate_volume(self, command: ValidateVolume, deadline: float) -> str:
        """Why this volume cannot be used as asked; "" if it can.  Raises NotFoundError for no such volume."""


class NodeOperations(Protocol):
    """What a node does."""

    def stage_volume(self, command: StageVolume, deadline: float) -> None:
        """Make the volume ready at the staging path."""

    def unstage_volume(self, command: UnstageVolume, deadline: float) -> None:
        """Take the volume off this node; not staged is success."""

    def publish_volume(self, command: PublishVolume, deadline: float) -> None:
        """Show the staged volume at the target path."""

    def unpublish_volume(self, command: UnpublishVolume, deadline: float) -> None:
        """Take the target path away; not published is success."""

    def expand_volume(self, command: NodeExpandVolume, deadline: float) -> int:
        """Let what lies on the volume fill it; the device's bytes."""

    def volume_stats(self, command: VolumeStats, deadline: float) -> FileSystemUsage | DeviceUsage:
        """How full the volume is.  Raises NotFoundError if it is not at the path."""


class Records(Protocol):
    """What the records say."""

    def volume(self, command: ReadVolume, deadline: float) -> VolumeState:
        """The present state.  Raises NotFoundError."""

    def history(self, command: ReadVolume, deadline: float) -> History:
        """What was asked and what came of it, also of a deleted volume.  Raises NotFoundError."""

    def operations(self, command: ListOperations, deadline: float) -> OperationPage:
        """Operations not finished."""


class Driver(Protocol):
    """All that stands behind the services of one process."""

    @property
    def controller(self) -> ControllerOperations:
        """For the Controller service."""

    @property
    def node(self) -> NodeOperations:
        """For the Node service."""

    @property
    def records(self) -> Records:
        """For the Operations service."""

    @property
    def clock(self) -> Clock:
        """The clock that all deadlines are told in."""

    def start(self) -> None:
        """Begin the work that nobody calls for: recovery, purges."""

    def close(self) -> None:
        """End: answer the calls that wait, leave what is at work at rest for the next process; bounded."""
