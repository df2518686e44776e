"""What is open and nobody works on, found and ended without a caller.

A scan reads the `open/`, `trash/` and `gone/` keys of the shards: its cost is what is open, not what exists.

* A delete or a purge that stands open goes on to its end.
* A create is never finished without its caller: that would be a volume that nobody ever deletes.  It is left
  at rest, and undone once nobody has asked for it for the abandonment time, measured by this process's own
  clock.
* An `open/` mark whose transaction is over, or never came to be, is removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic

from executor.change import Change
from executor.context import Context
from executor.directory import Directory, OpenEntry, TrashedEntry
from executor.effects import Routine
from executor.history import tombstone, tombstone_expiry
from executor.keys import Running, subject_key
from executor.model import Failure, Object, Policy, S, SubjectState, TransactionState
from executor.record import read
from executor.resume import Subject, enter, resume
from omap import names
from omap.codec import CorruptError
from omap.store import Answer, Equals, ObjectMissingError, Place, Store, Write

TOMBSTONE_BATCH = 128
"""How many tombstones one write removes at most."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a scan of a directory found to do."""

    open: tuple[OpenEntry, ...] = ()
    due: tuple[tuple[str, TrashedEntry], ...] = ()
    corrupt: tuple[CorruptError, ...] = ()
    """What cannot be read, each by itself: it stops nothing else."""

    def by_subject(self) -> list[list[OpenEntry]]:
        """The open marks, those of one subject together."""
        subjects: dict[str, list[OpenEntry]] = {}
        for entry in self.open:
            subjects.setdefault(entry.uuid, []).append(entry)
        return list(subjects.values())


def scan(store: Store, now: float) -> Found:
    """Read what is open and what is due for its purge.  Raises the store's errors."""
    opened: list[OpenEntry] = []
    due: list[tuple[str, TrashedEntry]] = []
    corrupt: list[CorruptError] = []
    for shard in names.shard_names():
        for prefix in (names.OPEN_PREFIX, names.TRASH_PREFIX):
            for key, value in _keys(store, shard, prefix).items():
                try:
                    if prefix == names.OPEN_PREFIX:
                        opened.append(OpenEntry.parse(key, value))
                        continue
                    entry = TrashedEntry.parse(key, value)
                except CorruptError as error:
                    corrupt.append(error)
                    continue
                if entry.due <= now:
                    due.append((shard, entry))
    return Found(tuple(opened), tuple(due), tuple(corrupt))


def expire(store: Store, now: float) -> int:
    """Remove tombstones whose time is over, in batches.  Returns how many went.  Raises the store's errors.

    One that cannot be read stays for a person to look at.
    """
    gone = 0
    for shard in names.shard_names():
        expired = [
            (key, value)
            for key, value in _keys(store, shard, names.GONE_PREFIX).items()
            if _has_expired(key, value, now)
        ]
        for batch in _batches(expired):
            conditions = tuple(Equals(key, value) for key, value in batch)
            answer = store.write(shard, Write(conditions, removes=tuple(key for key, _ in batch)))
            gone += len(batch) if answer is Answer.APPLIED else 0  # else they are met again in the next round
    return gone


def _has_expired(key: str, value: bytes, now: float) -> bool:
    try:
        return tombstone_expiry(key, value) <= now
    except CorruptError:
        return False


def _keys(store: Store, shard: str, prefix: str) -> dict[str, bytes]:
    try:
        return store.read(shard, prefix=prefix)
    except ObjectMissingError:
        return {}


def _batches(rows: list[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    for start in range(0, len(rows), TOMBSTONE_BATCH):
        yield rows[start : start + TOMBSTONE_BATCH]


@dataclass(slots=True)
class Watch:
    """Since when each open create was seen unasked, by this process's own clock."""

    seen: dict[str, tuple[bytes, float]] = field(default_factory=dict)

    def unasked_for(self, uuid: str, asked: bytes, now: float) -> float:
        """Seconds since it was first seen with this very word of who asked last."""
        before = self.seen.get(uuid)
        if before is None or before[0] != asked:
            self.seen[uuid] = (asked, now)
            return 0.0
        return now - before[1]

    def forget(self, uuid: str) -> None:
        """It is over."""
        self.seen.pop(uuid, None)


@dataclass(frozen=True, slots=True)
class Settlement(Generic[S]):
    """The work on one `open/` mark that a scan found."""

    session: S
    journal: Place
    entry: OpenEntry
    watch: Watch
    others: tuple[OpenEntry, ...] = ()
    """Further marks of the same subject: a subject that many processes died at has many."""

    def takeable(self, context: Context[S]) -> list[str]:
        """The attempts, of all these marks, that nobody living is at."""
        marks = (self.entry, *self.others)
        return [mark.attempt for mark in marks if context.instance.may_take(mark.instance)]

    @property
    def operation_name(self) -> str:
        """For messages."""
        return "recovery"

    @property
    def key(self) -> str:
        """Admission key."""
        return subject_key(self.entry.uuid)

    @property
    def label(self) -> str:
        """For messages."""
        return self.entry.request_name

    @property
    def request(self) -> Object:
        """Nothing was asked."""
        return {"recovery": self.entry.uuid}

    def is_same(self, request: Object) -> bool:
        """Whether the same mark is being worked on."""
        return request == self.request

    def routine(self, context: Context[S], running: Running) -> Routine[Object]:
        """What the executor drives."""
        return _settle(self, Subject(context, self.session, running, self.entry.uuid, self.entry.home))


def _settle(settlement: Settlement[S], subject: Subject[S]) -> Routine[Object]:
    context, entry = subject.context, settlement.entry
    for place in dict.fromkeys((settlement.journal, entry.home)):
        yield from enter(context, subject.session, place)
    directory = subject.directory(settlement.journal, entry.request_name)
    try:
        record = yield from read(subject.session.store(entry.home), subject.record_name, "recovery.read")
    except ObjectMissingError:
        yield from _without_record(settlement, subject, directory)
        return {}
    transaction = record.open_transaction
    # Over, or a late copy of a mark: but a living process may have marked and not yet recorded.
    used = () if transaction is None else transaction.opens
    directory.drop(entry.uuid, [each for each in settlement.takeable(context) if each not in used])
    if transaction is None:
        settlement.watch.forget(entry.uuid)
        return {}
    if not context.instance.may_take(record.owner.instance):
        return {}
    operation = context.operation(transaction.operation, transaction.version)
    turn = None
    if (
        operation.policy is Policy.REVERT
        and transaction.state is TransactionState.OPEN
        and not record.is_cancelled
    ):
        asked = record.keys.get(names.ASKED, b"-")
        unasked = settlement.watch.unasked_for(entry.uuid, asked, context.clock.monotonic())
        if unasked < context.periods.abandonment:
            return {}
        turn = Failure("AbandonedError", f"nobody asked for it for {unasked:.0f} s")
    yield from resume(subject, record, transaction, turn)
    settlement.watch.forget(entry.uuid)
    return {}


def _without_record(settlement: Settlement[S], subject: Subject[S], directory: Directory) -> Routine[None]:
    """A mark without a record: a create that came no further than its name, or an end almost through."""
    context, entry = subject.context, settlement.entry
    takeable = settlement.takeable(context)
    if not takeable:
        return
    name = yield from directory.lookup("recovery.name")
    if name is not None and name.uuid == entry.uuid:
        unasked = settlement.watch.unasked_for(entry.uuid, b"-", context.clock.monotonic())
        if unasked < context.periods.abandonment:
            return
        now = context.clock.now()
        value = tombstone(entry.request_name, context.instance.id, now + context.periods.tombstone, ())
        yield from directory.bury("recovery.tombstone", entry.uuid, value)
    directory.drop(entry.uuid, takeable)
    settlement.watch.forget(entry.uuid)


def purge(context: Context[S], session: S, entry: TrashedEntry, name: str) -> Change[S]:
    """The change that ends a subject whose time in the trash is over; `name` is the purging operation's."""
    operation = next(planned for (known, _), planned in context.operations.items() if known == name)
    return Change(operation, session, entry.uuid, entry.home, {"purge": entry.uuid}, SubjectState.TRASHED)
