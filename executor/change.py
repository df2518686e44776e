"""Changing a subject that is there: delete and purge now, whatever else acts on a record by its id later."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from executor import engine
from executor.context import Context
from executor.directory import OpenEntry
from executor.effects import Routine
from executor.errors import NotFoundError, PendingError, PreconditionError
from executor.history import entries_of
from executor.keys import Running, subject_key
from executor.model import (
    Failure,
    Object,
    Operation,
    Policy,
    S,
    SubjectState,
    Transaction,
    TransactionState,
)
from executor.record import Record, read
from executor.resume import JOURNAL, Subject, enter, journal_of, refuse_foreign, resume
from executor.unused import refuse_used, step_back_if_used
from executor.volume_journal import VolumeJournal
from omap import names
from omap.codec import JSON, encode
from omap.store import ObjectMissingError, Place

_ORDER = tuple(SubjectState)


def _never(_data: Mapping[str, JSON]) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Change(Generic[S]):
    """A request to change the subject with this uuid.

    `requires` is the state that it can begin in; a subject that is in the state `operation.after` already,
    or beyond, counts as done.
    """

    operation: Operation[S]
    session: S
    uuid: str
    home: Place
    request: Object
    requires: SubjectState
    settled: Callable[[Mapping[str, JSON]], bool] = _never
    """Given the head's data, whether nothing is left to do.  Raises what refuses the request."""

    @property
    def key(self) -> str:
        """Admission key."""
        return subject_key(self.uuid)

    @property
    def operation_name(self) -> str:
        """For messages and joining."""
        return self.operation.name

    @property
    def label(self) -> str:
        """For messages."""
        return self.uuid

    def is_same(self, request: Object) -> bool:
        """Whether a running request is this very one."""
        return request == self.request

    def routine(self, context: Context[S], running: Running) -> Routine[Object]:
        """What the executor drives.  The result is empty when the subject is not there."""
        return _change(self, Subject(context, self.session, running, self.uuid, self.home))


def _change(change: Change[S], subject: Subject[S]) -> Routine[Object]:
    operation = change.operation
    while True:
        try:
            record = yield from read(
                subject.session.store(subject.home), subject.record_name, f"{operation.name}.read"
            )
        except ObjectMissingError:
            return {}
        if (yield from _entered(subject, record)):
            continue  # predecessors were shut out only now: what was read may have been overtaken
        transaction = record.open_transaction
        if transaction is None:
            if _is_settled(change, record):
                return dict(record.head_data)
            ended = yield from _begin(change, subject, record)
            return dict(ended.data)
        if _ends_subject(operation):
            yield from _ask_to_cancel(subject, record, transaction)
        elif record.state is SubjectState.CREATING:
            raise PendingError(f"{record.request_name} ({subject.uuid}) is still being made; retry later")
        refuse_foreign(subject.context, record, transaction)
        ended = yield from _clear_the_way(change, subject, record, transaction)
        is_asked = ended.operation == operation.name and change.is_same(dict(ended.request))
        if is_asked and ended.state is TransactionState.DONE:
            return dict(ended.data)


def _entered(subject: Subject[S], record: Record) -> Routine[bool]:
    again = False
    subject.context.places.add(journal_of(record), subject.session)
    for place in dict.fromkeys((journal_of(record), subject.home)):
        again = (yield from enter(subject.context, subject.session, place)) or again
    return again


def _is_settled(change: Change[S], record: Record) -> bool:
    """Whether nothing is left to do.

    Raises NotFoundError for what was deleted, PreconditionError where the operation cannot begin.
    """
    operation = change.operation
    if _is_beyond(record.state, operation):
        return True
    if _ORDER.index(record.state) > _ORDER.index(SubjectState.DELETING) and not _ends_subject(operation):
        raise NotFoundError(f"{record.request_name} ({record.name}) was deleted")
    if record.state is not change.requires:
        msg = (
            f"{record.request_name} ({record.name}) is {record.state.value}, so no {operation.name} can begin"
        )
        raise PreconditionError(msg)
    return change.settled(record.head_data)


def _is_beyond(state: SubjectState, operation: Operation[S]) -> bool:
    return operation.after is not None and _ORDER.index(state) >= _ORDER.index(operation.after)


def _ends_subject(operation: Operation[S]) -> bool:
    return operation.after in (SubjectState.TRASHED, SubjectState.GONE)


def _clear_the_way(
    change: Change[S], subject: Subject[S], record: Record, transaction: Transaction
) -> Routine[Transaction]:
    """End what stands open: this very operation, or another one that is finished (or taken back) first."""
    planned = subject.context.operation(transaction.operation, transaction.version)
    turn = None
    if planned.policy is Policy.REVERT and _ends_subject(change.operation):
        turn = Failure("CancelledError", f"{record.request_name} was deleted before it was finished")
    return (yield from resume(subject, record, transaction, turn))


def _begin(change: Change[S], subject: Subject[S], record: Record) -> Routine[Transaction]:
    context, operation = subject.context, change.operation
    if operation.needs_unused:
        refuse_used(record)
    attempt = context.instance.attempt()
    transaction = Transaction(
        operation=operation.name,
        version=operation.version,
        seq=record.next_seq,
        holder=context.instance.id,
        request=change.request,
        data={**record.head_data, JOURNAL: record.head_data.get(JOURNAL)},
        begun=context.clock.now(),
        opens=(attempt,),
        after=operation.after.value if operation.after else "",
    )
    bound = engine.Bound(operation, subject.session, subject.uuid, subject.home)
    begun = yield from engine.intend(bound, transaction)
    directory = subject.directory(journal_of(record), record.request_name)
    writer = subject.writer(transaction.seq)
    mark = OpenEntry(subject.uuid, attempt, operation.name, subject.home, record.request_name)
    sets = {} if operation.during is None else {names.STATE: operation.during.value.encode()}
    if not (yield from directory.mark(f"{operation.name}.open", mark)):
        msg = f"{record.request_name} ({subject.uuid}) was removed meanwhile; retry"
        raise PendingError(msg)
    yield from writer.take(f"{operation.name}.record", record, begun.transaction, sets, begun.facts)
    journal = VolumeJournal(context, bound, directory, writer, record.head, entries_of(record.keys))
    yield from step_back_if_used(bound, journal, subject.store, record, begun.transaction)
    return (yield from engine.run(bound, journal, begun))


def _ask_to_cancel(subject: Subject[S], record: Record, transaction: Transaction) -> Routine[None]:
    """If the transaction is a create at work in another process, leave it the wish to be taken back.

    Raises PendingError then; does nothing otherwise.
    """
    context = subject.context
    planned = context.operations.get((transaction.operation, transaction.version))
    is_create = planned is not None and planned.policy is Policy.REVERT
    if is_create and not context.instance.may_take(record.owner.instance):
        yield from _wish(subject, record)


def _wish(subject: Subject[S], record: Record) -> Routine[None]:
    wish = encode({"time": subject.context.clock.now(), "by": subject.context.instance.id})
    writer = subject.writer(record.next_seq)
    yield from writer.wish("cancel_create.record", record, {names.CANCEL: wish})
    msg = f"{record.request_name} is still being made; it was told to take everything back; retry the delete"
    raise PendingError(msg)


def cancel_running(change: Change[S], context: Context[S], running: Running) -> Routine[Object]:
    """A delete that meets its subject's create at work in this process leaves the wish in the record.

    The create's next write finds it.  Raises PendingError, or does nothing when the create is over by now.
    """
    subject = Subject(context, change.session, running, change.uuid, change.home)
    try:
        record = yield from read(
            subject.session.store(subject.home), subject.record_name, "cancel_create.read"
        )
    except ObjectMissingError:
        return {}
    transaction = record.open_transaction
    if transaction is not None and transaction.state is TransactionState.OPEN and not record.is_cancelled:
        planned = context.operations.get((transaction.operation, transaction.version))
        if planned is not None and planned.policy is Policy.REVERT:
            yield from _wish(subject, record)
    return {}
