"""The directory: what a request name means, what is at work, what waits for its purge, what is gone.

A shard has no `rev`: each write is conditional on the very keys it touches.  An `open/` mark that has served
goes with the shard's next write, else in a flush; it is unique for its attempt, so that its late removal
takes nobody else's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from executor.effects import Routine, act, look, settle
from executor.errors import PendingError
from executor.model import Object
from omap import names
from omap.codec import CorruptError, decode_object, encode
from omap.components import is_uuid
from omap.store import Absent, Answer, Create, Equals, ObjectMissingError, Place, Store, StoreError, Write


def place_to_json(place: Place) -> Object:
    """As kept in values."""
    return {"cluster": place.cluster, "pool": place.pool, "namespace": place.namespace}


def place_from_json(value: object) -> Place:
    """From a value.  Raises CorruptError."""
    if not isinstance(value, dict) or not {"cluster", "pool", "namespace"} <= set(value):
        msg = "a directory value names no place"
        raise CorruptError(msg)
    return Place(str(value["cluster"]), str(value["pool"]), str(value["namespace"]))


@dataclass(frozen=True, slots=True)
class NameEntry:
    """What a `name/` key says: the subject, its record's place, and the attempt that reserved the name."""

    uuid: str
    home: Place
    attempt: str

    def to_bytes(self) -> bytes:
        """As kept."""
        return encode({"uuid": self.uuid, "place": place_to_json(self.home), "writer": self.attempt})

    @classmethod
    def parse(cls, value: bytes) -> NameEntry:
        """From the shard.  Raises CorruptError."""
        fields = decode_object(value, "a directory name")
        uuid, writer = fields.get("uuid"), fields.get("writer")
        if not isinstance(uuid, str) or not is_uuid(uuid) or not isinstance(writer, str):
            msg = "a directory name does not say which subject it means"
            raise CorruptError(msg)
        return cls(uuid, place_from_json(fields.get("place")), writer)

    @property
    def instance(self) -> str:
        """The instance that reserved the name."""
        return self.attempt.partition(".")[0]


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """What an `open/` key says."""

    uuid: str
    attempt: str
    operation: str
    home: Place
    request_name: str

    @property
    def instance(self) -> str:
        """The instance that made the attempt."""
        return self.attempt.partition(".")[0]

    def to_bytes(self) -> bytes:
        """As kept."""
        return encode(
            {
                "operation": self.operation,
                "place": place_to_json(self.home),
                "name": self.request_name,
                "writer": self.attempt,
            }
        )

    @classmethod
    def parse(cls, key: str, value: bytes) -> OpenEntry:
        """From the shard.  Raises CorruptError."""
        mark = names.parse_open_key(key)
        if mark is None:
            msg = f"the directory holds the malformed key {key!r}"
            raise CorruptError(msg)
        fields = decode_object(value, key)
        return cls(
            mark.uuid,
            mark.attempt,
            str(fields.get("operation")),
            place_from_json(fields.get("place")),
            str(fields.get("name")),
        )


@dataclass(frozen=True, slots=True)
class TrashedEntry:
    """What a `trash/` key says: when the purge is due (seconds since the epoch) and where the record lies."""

    uuid: str
    due: float
    home: Place

    def to_bytes(self) -> bytes:
        """As kept."""
        return encode({"due": self.due, "place": place_to_json(self.home)})

    @classmethod
    def parse(cls, key: str, value: bytes) -> TrashedEntry:
        """From the shard.  Raises CorruptError."""
        uuid = names.parse_trash_key(key)
        fields = decode_object(value, key)
        due = fields.get("due")
        if uuid is None or not isinstance(due, int | float):
            msg = f"the directory's {key} does not say what is due, or when"
            raise CorruptError(msg)
        return cls(
            uuid,
            float(due),
            place_from_json(fields.get("place")),
        )


class Served:
    """`open/` marks that have served and wait for a write to go with.

    Shared by all routines of a process.
    """

    def __init__(self) -> None:
        """Nothing waits."""
        self._lock = threading.Lock()
        self._keys: dict[tuple[Place, str], set[str]] = {}
        self._stores: dict[tuple[Place, str], Store] = {}

    def add(self, store: Store, shard: str, keys: Sequence[str]) -> None:
        """These marks of a shard have served."""
        if not keys:
            return
        with self._lock:
            self._keys.setdefault((store.place, shard), set()).update(keys)
            self._stores[store.place, shard] = store

    def write(self, store: Store, shard: str, write: Write) -> Answer:
        """Apply a write of the shard and let the waiting removals go with it."""
        with self._lock:
            taken = self._keys.pop((store.place, shard), set()) - set(write.sets)
        answer = Answer.UNKNOWN
        try:
            answer = store.write(shard, replace(write, removes=(*write.removes, *sorted(taken))))
        finally:
            # Removing twice does no harm; forgetting to remove would leave a mark behind.
            if answer is not Answer.APPLIED:
                self.add(store, shard, tuple(taken))
        return answer

    def flush(self) -> int:
        """Remove all waiting marks now, a write for each shard; what fails stays for the next time.

        Returns how many went.
        """
        with self._lock:
            waiting = dict(self._stores)
            self._stores.clear()
        gone = 0
        for (place, shard), store in waiting.items():
            with self._lock:
                keys = sorted(self._keys.pop((place, shard), ()))
            if not keys:
                continue
            answer = Answer.UNKNOWN
            try:
                answer = store.write(shard, Write(removes=tuple(keys)))
            except StoreError:
                answer = Answer.UNKNOWN
            if answer is Answer.UNKNOWN:
                self.add(store, shard, keys)
            else:
                gone += len(keys)
        return gone


class Directory:
    """The shard of one request name, for one routine."""

    def __init__(self, store: Store, served: Served, request_name: str) -> None:
        """In the journal place that the store belongs to."""
        self._store = store
        self._served = served
        self._name = request_name
        self._shard = names.shard_name(request_name)

    @property
    def request_name(self) -> str:
        """The name that this is about."""
        return self._name

    def claim(self, point: str, entry: NameEntry, mark: OpenEntry) -> Routine[NameEntry]:
        """Reserve the name and mark the attempt, in one write that needs no read.

        Returns the entry that holds the name now: this one, or an earlier one that was there.
        """
        name_key = names.name_key(self._name)
        write = Write(
            conditions=(
                Absent(name_key),
                Absent(names.trash_key(entry.uuid)),
                Absent(names.gone_key(entry.uuid)),
            ),
            sets={name_key: entry.to_bytes(), names.open_key(mark.uuid, mark.attempt): mark.to_bytes()},
            create=Create.IF_ABSENT,
        )
        while True:
            answer = yield from self._put(point, write)
            if answer is Answer.APPLIED:
                return entry
            keys = yield from self._keys(f"{point}.judge", [condition.key for condition in write.conditions])
            if name_key in keys:
                return NameEntry.parse(keys[name_key])
            if keys:
                msg = f"{self._name} was reserved and given up meanwhile; retry"
                raise PendingError(msg)

    def lookup(self, point: str) -> Routine[NameEntry | None]:
        """The entry that holds the name."""
        key = names.name_key(self._name)
        keys = yield from self._keys(point, [key])
        return NameEntry.parse(keys[key]) if key in keys else None

    def mark(self, point: str, mark: OpenEntry) -> Routine[bool]:
        """Mark one more attempt at a subject.  False: it has its tombstone already, so no mark was made."""
        write = Write(
            conditions=(Absent(names.gone_key(mark.uuid)),),
            sets={names.open_key(mark.uuid, mark.attempt): mark.to_bytes()},
            create=Create.IF_ABSENT,
        )
        answer = yield from self._put(point, write)
        return answer is Answer.APPLIED

    def drop(self, uuid: str, attempts: Sequence[str]) -> None:
        """These attempts are over: their marks go with a later write."""
        self._served.add(self._store, self._shard, [names.open_key(uuid, attempt) for attempt in attempts])

    def trash(self, point: str, entry: TrashedEntry) -> Routine[None]:
        """Free the name and note the purge; done already is success."""
        yield from self._leave(point, entry.uuid, {names.trash_key(entry.uuid): entry.to_bytes()}, ())

    def bury(self, point: str, uuid: str, tombstone: bytes) -> Routine[None]:
        """Set the tombstone; free the name and forget the purge, whichever is there.

        Done already is success.
        """
        yield from self._leave(point, uuid, {names.gone_key(uuid): tombstone}, (names.trash_key(uuid),))

    def is_buried(self, point: str, uuid: str) -> Routine[bool]:
        """Whether the subject has a tombstone."""
        key = names.gone_key(uuid)
        keys = yield from self._keys(point, [key])
        return key in keys

    def _leave(
        self, point: str, uuid: str, sets: Mapping[str, bytes], removes: Sequence[str]
    ) -> Routine[None]:
        name_key, gone_key = names.name_key(self._name), names.gone_key(uuid)
        while True:
            keys = yield from self._keys(f"{point}.look", [name_key, gone_key, *sets])
            if gone_key in keys or set(sets) <= set(keys):
                return
            entry = NameEntry.parse(keys[name_key]) if name_key in keys else None
            if entry is not None and entry.uuid == uuid:
                write = Write(
                    (Equals(name_key, keys[name_key]),), sets, (name_key, *removes), Create.IF_ABSENT
                )
            else:
                # A tombstone ends everything: a late copy of this write must not set what the purge has
                # taken away.
                absent = tuple(Absent(key) for key in {**sets, gone_key: b""})
                write = Write(absent, sets, tuple(removes), Create.IF_ABSENT)
            answer = yield from self._put(point, write)
            if answer is Answer.APPLIED:
                return

    def _put(self, point: str, write: Write) -> Routine[Answer]:
        return settle(lambda: act(point, lambda: self._served.write(self._store, self._shard, write)))

    def _keys(self, point: str, keys: Sequence[str]) -> Routine[dict[str, bytes]]:
        try:
            found = yield from look(point, lambda: self._store.read_keys(self._shard, keys))
        except ObjectMissingError:
            return {}
        return found
