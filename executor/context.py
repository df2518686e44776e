"""What the routines of one process share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from executor.directory import Served
from executor.instance import Instance
from executor.keys import Keys
from executor.model import Operation, S
from executor.ports import Clock, Ids
from omap.codec import CorruptError


@dataclass(frozen=True, slots=True)
class Periods:
    """How long things last, in seconds."""

    beat: float = 15.0
    """Between two signs of life while transactions are open."""
    abandonment: float = 1800.0
    """A create that nobody asked for so long is undone; longer than any caller's pause between retries."""
    recovery: float = 60.0
    """Between two scans for what is open and nobody works on."""
    tombstone: float = 7 * 86400.0
    """How long a deleted subject's history stays."""
    trash: float = 0.0
    """How long a deleted volume's image stays in the trash."""
    purge: float = 30.0
    """Between two looks for images whose time in the trash is over."""
    flush: float = 1.0
    """How long a served `open/` mark waits for a write to go with."""


@dataclass(frozen=True, slots=True)
class Context(Generic[S]):
    """What the routines of one process share."""

    instance: Instance
    served: Served
    keys: Keys
    clock: Clock
    ids: Ids
    periods: Periods
    operations: Mapping[tuple[str, int], Operation[S]]

    def operation(self, name: str, version: int) -> Operation[S]:
        """The plan of a recorded transaction.  Raises CorruptError: it is a newer driver's, this one must not end it."""
        operation = self.operations.get((name, version))
        if operation is None:
            msg = f"{name} version {version} is not an operation that this driver knows; upgrade it to go on"
            raise CorruptError(msg)
        return operation
