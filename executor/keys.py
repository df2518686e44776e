"""Who works on what in this process: one key for each subject, whatever it is called by.

An identical request that finds its own operation running joins it and gets its result.  Any other request
for the key is refused at once, with a text that says who holds it, in what stage and for how long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from executor.errors import PendingError
from executor.model import Object
from executor.ports import Clock


@dataclass(slots=True, eq=False)
class Running:
    """An operation at work in this process."""

    operation: str
    label: str
    request: Object
    since: float
    holder: str
    future: Future[Object] = field(default_factory=Future)
    keys: set[str] = field(default_factory=set)
    point: str = "waiting for a worker"
    waiting: str = ""
    refused: int = 0

    def describe(self, now: float) -> str:
        """What it is doing, for whoever is refused: operation, subject, stage, age, holder."""
        why = f" ({self.waiting})" if self.waiting else ""
        age = f"{now - self.since:.0f} s"
        return f"{self.operation} of {self.label} is at {self.point}{why} for {age} on {self.holder}"


class Keys:
    """The keys that are held.  Never blocks."""

    def __init__(self, clock: Clock, holder: str) -> None:
        """For one process, called `holder` in messages."""
        self._clock = clock
        self._holder = holder
        self._lock = threading.Lock()
        self._held: dict[str, Running] = {}

    def admit(
        self, key: str, operation: str, label: str, request: Object, is_same: Callable[[Object], bool]
    ) -> tuple[Running, bool]:
        """Hold the key for a new operation, or join the one that holds it; True means new.

        Raises PendingError when something else holds it: another operation, or a request that differs.
        """
        with self._lock:
            held = self._held.get(key)
            if held is None:
                running = Running(
                    operation, label, request, self._clock.monotonic(), self._holder, keys={key}
                )
                self._held[key] = running
                return running, True
        if held.operation == operation and is_same(held.request):
            return held, False
        raise self._refusal(held)

    def extend(self, running: Running, key: str) -> None:
        """Hold one more key for a running operation.  Raises PendingError when another one holds it."""
        with self._lock:
            held = self._held.setdefault(key, running)
            if held is running:
                running.keys.add(key)
                return
        raise self._refusal(held)

    def drop(self, running: Running, key: str) -> None:
        """Give up one key of a running operation."""
        with self._lock:
            if self._held.get(key) is running:
                del self._held[key]
                running.keys.discard(key)

    def leave(self, running: Running) -> None:
        """The operation is over: give up all its keys."""
        with self._lock:
            for key in running.keys:
                self._held.pop(key, None)
            running.keys.clear()

    def holder_of(self, key: str) -> Running | None:
        """What holds a key."""
        with self._lock:
            return self._held.get(key)

    def running(self) -> tuple[Running, ...]:
        """Everything at work."""
        with self._lock:
            return tuple(dict.fromkeys(self._held.values()))

    def _refusal(self, held: Running) -> PendingError:
        held.refused += 1
        return PendingError(f"{held.describe(self._clock.monotonic())}; retry later")


def name_key(place: object, name: str) -> str:
    """Key of a request name in a journal place."""
    return f"name {place} {name}"


def subject_key(uuid: str) -> str:
    """Key of a subject."""
    return f"subject {uuid}"
