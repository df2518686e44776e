"""What the routines of one process share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic

from executor.directory import Served
from executor.instance import Instance
from executor.keys import Keys
from executor.model import Operation, S
from executor.ports import Clock, Ids
from omap.codec import CorruptError
from omap.store import Place


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


class Places(Generic[S]):
    """The journal places that this process looks after, each with a session that reaches it."""

    def __init__(self) -> None:
        """None yet: a place is known once a request, or the configuration, names it."""
        self._lock = threading.Lock()
        self._sessions: dict[Place, S] = {}
        self.changed = threading.Event()
        """Set when a place is new, so that it is looked at without delay."""

    def add(self, place: Place, session: S) -> None:
        """Look after a place from now on; the newest session is the one used."""
        with self._lock:
            is_new = place not in self._sessions
            self._sessions[place] = session
        if is_new:
            self.changed.set()

    def all(self) -> dict[Place, S]:
        """Every place with its session."""
        with self._lock:
            return dict(self._sessions)


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
    places: Places[S] = field(default_factory=Places)

    def operation(self, name: str, version: int) -> Operation[S]:
        """The plan of a recorded transaction.

        Raises CorruptError: it is a newer driver's, this one must not end it.
        """
        operation = self.operations.get((name, version))
        if operation is None:
            msg = f"{name} version {version} is not an operation that this driver knows; upgrade it to go on"
            raise CorruptError(msg)
        return operation
