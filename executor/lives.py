"""What a state directory remembers of the processes that held its lock, this one and those before it.

One local object, two keys for each process (an *instance*):

* `instance/<id>`: the places it entered, so that its successor knows where to look for its addresses.
* `fenced/<id>`: those of them in which a successor has shut it out, so that the next one need not again.

A dead instance is remembered for a place until a scan of that place has found nothing that it left open;
until then its name in a record means "may be taken on".
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from executor.directory import place_from_json, place_to_json
from executor.errors import UnavailableError
from omap.codec import CorruptError, decode, encode
from omap.store import Answer, Create, ObjectMissingError, Place, Store, Write

_OBJECT = "instances"
_ENTERED = "instance/"
_FENCED = "fenced/"


class Lives:
    """The memory of one state directory, whose lock the process holds.  Safe for use by many threads."""

    def __init__(self, store: Store, living: str) -> None:
        """Note the living instance; whoever is noted already is dead."""
        self._store = store
        self._living = living
        self._lock = threading.Lock()
        self._entered = self._read(_ENTERED)
        self._fenced = self._read(_FENCED)
        # Who entered no place left nothing that could land late.
        idle = [dead for dead, places in self._entered.items() if not places and dead != living]
        self._drop(idle)
        self._entered.setdefault(living, set())
        self._write({_ENTERED + living: self._entered[living]})

    @property
    def dead(self) -> frozenset[str]:
        """Every predecessor that is remembered."""
        with self._lock:
            return frozenset(self._entered) - {self._living}

    def places(self) -> frozenset[Place]:
        """Every place that this instance or a remembered one entered."""
        with self._lock:
            return frozenset().union(*self._entered.values())

    def to_fence(self, place: Place) -> tuple[str, ...]:
        """Predecessors that entered the place and were not shut out of it by anybody yet."""
        with self._lock:
            return tuple(
                sorted(
                    dead
                    for dead, places in self._entered.items()
                    if dead != self._living and place in places and place not in self._fenced.get(dead, set())
                )
            )

    def enter(self, place: Place) -> None:
        """Note that the living instance enters a place.  Raises UnavailableError."""
        with self._lock:
            self._entered[self._living].add(place)
            self._write({_ENTERED + self._living: self._entered[self._living]})

    def fenced(self, dead: Iterable[str], place: Place) -> None:
        """Note that these were shut out of a place.  Raises UnavailableError."""
        with self._lock:
            for each in dead:
                self._fenced.setdefault(each, set()).add(place)
                self._write({_FENCED + each: self._fenced[each]})

    def shut_out(self, place: Place) -> frozenset[str]:
        """Predecessors of which nothing can land in the place any more."""
        with self._lock:
            return frozenset(dead for dead, places in self._fenced.items() if place in places)

    def retire(self, dead: Iterable[str], place: Place) -> None:
        """Forget these for a place: shut out of it, before a scan that found nothing of theirs open.

        Raises UnavailableError.
        """
        with self._lock:
            for each in dead:
                self._entered[each].discard(place)
                self._fenced[each].discard(place)
                if self._entered[each]:
                    self._write({_ENTERED + each: self._entered[each]})
                else:
                    self._drop([each])

    def _drop(self, dead: list[str]) -> None:
        for each in dead:
            self._entered.pop(each, None)
            self._fenced.pop(each, None)
        if dead:
            keys = tuple(prefix + each for each in dead for prefix in (_ENTERED, _FENCED))
            self._put(Write(removes=keys))

    def _write(self, noted: dict[str, set[Place]]) -> None:
        sets = {
            key: encode([place_to_json(place) for place in sorted(places)]) for key, places in noted.items()
        }
        self._put(Write(sets=sets, create=Create.IF_ABSENT))

    def _put(self, write: Write) -> None:
        if self._store.write(_OBJECT, write) is not Answer.APPLIED:
            msg = f"the state directory {self._store.place} did not confirm a note; its disk may be failing"
            raise UnavailableError(msg)

    def _read(self, prefix: str) -> dict[str, set[Place]]:
        try:
            keys = self._store.read(_OBJECT, prefix=prefix)
        except ObjectMissingError:
            return {}
        return {key.removeprefix(prefix): _places(key, value) for key, value in keys.items()}


def _places(key: str, value: bytes) -> set[Place]:
    rows = decode(value, key)
    if not isinstance(rows, list):
        msg = f"the state directory's {key} is no list of places"
        raise CorruptError(msg)
    return {place_from_json(row) for row in rows}
