"""Making a subject under a request name.

A new name costs three writes and no read: the shard (name and `open/` mark), the record (which carries the
whole intent), and the commit.  Whatever an earlier attempt left is found by the failed condition of the
first of them and then goes on from its marks; nothing is made twice, because the names of physical things
are fixed in the intent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from executor import engine
from executor.context import Context
from executor.directory import Directory, NameEntry, OpenEntry, place_to_json
from executor.effects import Routine, look
from executor.errors import (
    MismatchError,
    OperationError,
    PendingError,
    PermanentError,
    UnavailableError,
)
from executor.history import Entry, tombstone
from executor.keys import Running, name_key, subject_key
from executor.model import Failure, Object, Operation, S, SubjectState, Transaction, TransactionState
from executor.record import LostError, Record, read
from executor.resume import JOURNAL, Subject, enter, refuse_foreign, resume
from executor.store_errors import operation_error
from executor.volume_journal import VolumeJournal
from omap import names
from omap.codec import JSON, encode
from omap.store import FencedError, ObjectMissingError, Place, StoreError

IMAGE = "image"
"""Key of a plan's data that names the image."""


@dataclass(frozen=True, slots=True)
class Creation(Generic[S]):
    """A request to make a subject.

    * `request`: what was asked, canonical, for the history and for joining an identical request.
    * `plan`: given the new uuid, all data of the operation, with the names of physical things fixed.
    * `difference`: given recorded data, in what it differs from this request; "" when the request is the
      same.
    * `check`: looks at the places before anything is written.
    """

    operation: Operation[S]
    session: S
    name: str
    journal: Place
    home: Place
    request: Object
    plan: Callable[[str], Object]
    difference: Callable[[Mapping[str, JSON]], str]
    check: Callable[[], None]

    @property
    def key(self) -> str:
        """Admission key."""
        return name_key(self.journal, self.name)

    @property
    def operation_name(self) -> str:
        """For messages and joining."""
        return self.operation.name

    @property
    def label(self) -> str:
        """For messages."""
        return self.name

    def is_same(self, request: Object) -> bool:
        """Whether a running request is this very one."""
        return not self.difference(request)

    def routine(self, context: Context[S], running: Running) -> Routine[Object]:
        """What the executor drives."""
        return _create(self, context, running)


def _create(creation: Creation[S], context: Context[S], running: Running) -> Routine[Object]:
    directory = Directory(creation.session.store(creation.journal), context.served, creation.name)
    try:
        return (yield from _make(creation, context, running, directory))
    except FencedError:
        raise
    except StoreError as error:
        raise (yield from _unless_begun(creation, directory, error)) from error


def _unless_begun(creation: Creation[S], directory: Directory, error: StoreError) -> Routine[OperationError]:
    """The error to raise: a lasting one only if nothing stands under the name, of this call or another."""
    problem = operation_error(error)
    if not isinstance(problem, PermanentError):
        return problem
    try:
        found = yield from directory.lookup(f"{creation.operation.name}.lookup")
    except StoreError as also:
        return UnavailableError(
            f"{problem}; whether {creation.name} was begun cannot be seen ({also}); retry"
        )
    if found is None:
        return problem
    return UnavailableError(
        f"{problem}; {creation.name} ({found.uuid}) stays as it is; retry once the cause is gone"
    )


def _make(
    creation: Creation[S], context: Context[S], running: Running, directory: Directory
) -> Routine[Object]:
    operation = creation.operation
    refusal = yield from _refusal(creation)
    if refusal is not None and (yield from directory.lookup(f"{operation.name}.lookup")) is None:
        raise refusal
    for place in dict.fromkeys((creation.journal, creation.home)):
        yield from enter(context, creation.session, place)
    context.places.add(creation.journal, creation.session)
    while True:
        uuid, attempt = context.ids.uuid(), context.instance.attempt()
        entry = NameEntry(uuid, creation.home, attempt)
        mark = OpenEntry(uuid, attempt, operation.name, creation.home, creation.name)
        found = yield from _holder_of_the_name(directory, entry, mark, refusal)
        subject = Subject(context, creation.session, running, found.uuid, found.home)
        context.keys.extend(running, subject_key(found.uuid))
        if found == entry:
            return (yield from _begin(creation, subject, directory, (attempt,)))
        result = yield from _existing(creation, subject, directory, found)
        if result is not None:
            return result
        context.keys.drop(running, subject_key(found.uuid))


def _holder_of_the_name(
    directory: Directory, entry: NameEntry, mark: OpenEntry, refusal: PermanentError | None
) -> Routine[NameEntry]:
    """The entry that holds the name: ours, or an earlier one.

    With a refusal nothing new is begun, but what an earlier attempt began is ended: finished, or taken back.
    """
    if refusal is None:
        return (yield from directory.claim(f"{mark.operation}.claim", entry, mark))
    found = yield from directory.lookup(f"{mark.operation}.lookup")
    if found is None:
        raise refusal
    return found


def _refusal(creation: Creation[S]) -> Routine[PermanentError | None]:
    """Why the places cannot take the subject, before anything is written; None if they can."""
    try:
        yield from look(f"{creation.operation.name}.check", creation.check)
    except PermanentError as error:
        return error
    return None


def _begin(
    creation: Creation[S], subject: Subject[S], directory: Directory, opens: tuple[str, ...]
) -> Routine[Object]:
    context, operation = subject.context, creation.operation
    transaction = Transaction(
        operation=operation.name,
        version=operation.version,
        seq=1,
        holder=context.instance.id,
        request=creation.request,
        data={JOURNAL: place_to_json(creation.journal)},
        begun=context.clock.now(),
        opens=opens,
        after=operation.after.value if operation.after else "",
    )
    writer = subject.writer(transaction.seq)
    bound = engine.Bound(operation, subject.session, subject.uuid, subject.home)
    journal = VolumeJournal(context, bound, directory, writer, {})
    sets = {
        names.REQUEST_NAME: creation.name.encode(),
        names.STATE: SubjectState.CREATING.value.encode(),
        names.HEAD: encode({}),
        names.ASKED: encode({"time": transaction.begun, "by": context.instance.id}),
    }
    try:
        transaction = transaction.planned(creation.plan(subject.uuid))
        if IMAGE in transaction.data:
            sets[names.IMAGE_NAME] = str(transaction.data[IMAGE]).encode()
        begun = yield from engine.intend(bound, transaction)
        yield from writer.create(f"{operation.name}.record", begun.transaction, sets)
    except (LostError, FencedError):
        raise
    except (StoreError, PermanentError) as error:
        raise (yield from _give_back(directory, subject, transaction, error)) from error
    ended = yield from engine.run(bound, journal, begun)
    return _result(subject.uuid, ended.data)


def _give_back(
    directory: Directory, subject: Subject[S], transaction: Transaction, error: StoreError | PermanentError
) -> Routine[OperationError]:
    """No record could be made, so nothing but the name is there: free it.  Returns the error to raise."""
    problem: OperationError = operation_error(error) if isinstance(error, StoreError) else error
    if isinstance(problem, PermanentError):
        failure = Failure(type(problem).__name__, str(problem))
        now = subject.context.clock.now()
        ended = transaction.undoing(failure).ended_as(TransactionState.REVERTED, now)
        expiry = now + subject.context.periods.tombstone
        value = tombstone(subject.running.label, subject.context.instance.id, expiry, [Entry(ended)])
        try:
            yield from directory.bury(f"{transaction.operation}.tombstone", subject.uuid, value)
        except FencedError:
            raise
        except (StoreError, OperationError) as also:
            return UnavailableError(f"{problem}; its name is not given back yet ({also}); retry")
        directory.drop(subject.uuid, transaction.opens)
    return problem


def _existing(
    creation: Creation[S], subject: Subject[S], directory: Directory, found: NameEntry
) -> Routine[Object | None]:
    """What the name means already: its result, an error, or None when it is free now and all begins anew."""
    operation = creation.operation
    # The name may lead to another place than was asked for: there too, predecessors are shut out before we
    # look.
    yield from enter(subject.context, subject.session, subject.home)
    try:
        record = yield from read(
            subject.session.store(subject.home), subject.record_name, f"{operation.name}.read"
        )
    except ObjectMissingError:
        return (yield from _without_record(creation, subject, directory, found))
    transaction = record.open_transaction
    if transaction is None or transaction.operation != operation.name:
        return _standing(creation, subject, record)
    refuse_foreign(subject.context, record, transaction)
    subject.context.operation(transaction.operation, transaction.version)  # only what we know can be compared
    difference = creation.difference(transaction.data)
    if difference and transaction.state is TransactionState.OPEN and not record.is_cancelled:
        msg = (
            f"{creation.name} is being made by an earlier request that differs: {difference}; "
            f"it is at {transaction.current_stage}; retry once it is finished or given up"
        )
        raise PendingError(msg)
    ended = yield from resume(subject, record, transaction, None)
    if ended.state is TransactionState.REVERTED:
        return None
    return _result(subject.uuid, ended.data)


def _standing(creation: Creation[S], subject: Subject[S], record: Record) -> Object:
    """The answer of a record whose creation is over."""
    if record.state is not SubjectState.LIVE:
        msg = f"{creation.name} ({subject.uuid}) is {record.state.value}; retry once it is gone"
        raise PendingError(msg)
    difference = creation.difference(record.head_data)
    if difference:
        msg = f"{creation.name} exists already ({subject.uuid}) and differs: {difference}; use another name"
        raise MismatchError(msg)
    return _result(subject.uuid, record.head_data)


def _without_record(
    creation: Creation[S], subject: Subject[S], directory: Directory, found: NameEntry
) -> Routine[Object | None]:
    context, operation = subject.context, creation.operation
    if (yield from directory.is_buried(f"{operation.name}.read", found.uuid)):
        return None
    if not context.instance.may_take(found.instance):
        msg = (
            f"{creation.name} is being made by {found.instance}, which has not recorded its plan yet; "
            "retry later"
        )
        raise PendingError(msg)
    attempt = context.instance.attempt()
    if found.home != creation.home:
        # Nothing was made for it yet, so nobody is bound: the name goes back and the request begins anew.
        now = context.clock.now()
        value = tombstone(creation.name, context.instance.id, now + context.periods.tombstone, ())
        yield from directory.bury(f"{operation.name}.tombstone", found.uuid, value)
        directory.drop(found.uuid, (found.attempt,))
        return None
    mark = OpenEntry(found.uuid, attempt, operation.name, found.home, creation.name)
    if not (yield from directory.mark(f"{operation.name}.adopt.open", mark)):
        return None
    return (yield from _begin(creation, subject, directory, (found.attempt, attempt)))


def _result(uuid: str, data: Mapping[str, JSON]) -> Object:
    return {"uuid": uuid, **data}
