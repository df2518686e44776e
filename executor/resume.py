"""Taking on a transaction that stands open in a record, and ending it from its marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from executor import engine
from executor.context import Context
from executor.directory import Directory, OpenEntry, place_from_json
from executor.effects import Routine
from executor.errors import PendingError
from executor.history import entries_of
from executor.keys import Running
from executor.model import Failure, Policy, S, Transaction, TransactionState
from executor.record import Record, RecordWriter
from executor.unused import step_back_if_used
from executor.volume_journal import VolumeJournal
from omap import names
from omap.codec import encode
from omap.store import Place, Store

JOURNAL = "journal"
"""Key of a transaction's data that names the journal place."""


@dataclass(frozen=True, slots=True)
class Subject(Generic[S]):
    """A subject as one routine works on it."""

    context: Context[S]
    session: S
    running: Running
    uuid: str
    home: Place

    @property
    def record_name(self) -> str:
        """Object name of its record."""
        return names.record_name(self.uuid)

    @property
    def store(self) -> Store:
        """The store of its record's place."""
        return self.session.store(self.home)

    def directory(self, journal: Place, request_name: str) -> Directory:
        """The shard of its request name."""
        return Directory(self.session.store(journal), self.context.served, request_name)

    def writer(self, seq: int) -> RecordWriter:
        """A hand on its record for one transaction."""
        return RecordWriter(self.store, self.record_name, self.context.instance.id, seq)


def enter(context: Context[S], session: S, place: Place) -> Routine[bool]:
    """Before the first effect in a place: leave this process's addresses there.  True if it had to."""
    if context.instance.is_entered(session, place):
        return False
    yield from context.instance.enter(session, place)
    return True


def journal_of(record: Record) -> Place:
    """The place of the directory that leads to this record."""
    transaction = record.open_transaction
    data = record.head_data if JOURNAL in record.head_data or transaction is None else transaction.data
    return place_from_json(data.get(JOURNAL))


def refuse_foreign(context: Context[S], record: Record, transaction: Transaction) -> None:
    """Raise PendingError when another living process owns the record."""
    owner = record.owner.instance
    if context.instance.may_take(owner):
        return
    age = context.clock.now() - transaction.begun
    msg = (
        f"{transaction.operation} of {record.request_name} is at {transaction.current_stage} on {owner} "
        f"(begun {age:.0f} s ago); retry later"
    )
    raise PendingError(msg)


def resume(
    subject: Subject[S], record: Record, transaction: Transaction, turn: Failure | None
) -> Routine[Transaction]:
    """Take the open transaction on and end it; with `turn` it is undone instead of finished.

    Raises LostError when somebody else was first, and what `engine.run` raises.
    """
    context = subject.context
    operation = context.operation(transaction.operation, transaction.version)
    for name in transaction.marks:
        operation.stage(name)  # all marks must be this plan's, before anything is touched
    if record.is_cancelled and turn is None and operation.policy is Policy.REVERT:
        turn = Failure("CancelledError", f"{record.request_name} was deleted while it was being created")
    attempt = context.instance.attempt()
    taken = transaction.held_by(context.instance.id, attempt)
    directory = subject.directory(journal_of(record), record.request_name)
    mark = OpenEntry(subject.uuid, attempt, operation.name, subject.home, record.request_name)
    point = f"{operation.name}.adopt"
    if not (yield from directory.mark(f"{point}.open", mark)):
        # It ended in the directory, and only the record is left: earlier marks lead here until that has gone
        # too. A creation that the record still calls open came in with a late write, and is taken back
        # again.
        taken = transaction.held_by(context.instance.id, None)
        if operation.policy is Policy.REVERT:
            turn = turn or Failure("BuriedError", f"{record.request_name} was taken back before")
    if turn is not None and taken.state is TransactionState.OPEN:
        taken = taken.undoing(turn)
    writer = subject.writer(transaction.seq)
    asked = encode({"time": context.clock.now(), "by": context.instance.id})
    yield from writer.take(point, record, taken, {names.ASKED: asked})
    earlier = [e for e in entries_of(record.keys) if e.node or e.transaction.seq != transaction.seq]
    bound = engine.Bound(operation, subject.session, subject.uuid, subject.home)
    journal = VolumeJournal(context, bound, directory, writer, record.head, earlier)
    yield from step_back_if_used(bound, journal, subject.store, record, taken)
    return (yield from engine.run(bound, journal, engine.Begun(taken)))
