"""What a node does with a volume: stage, publish, and back.

One transaction at a time for each volume on a node.  One that stands open (its plugin was killed, or a step
failed) is ended first: an equal request goes on with it, the opposite one takes it back, a removal that has
begun only goes on.  What was done is asked of the kernel, not of the record: a transaction whose finished
stages are gone (the host was restarted, a mapper died) is taken back and begun anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic

from executor import engine
from executor.context import Context
from executor.effects import Routine, look
from executor.errors import NotFoundError, OperationError, PendingError, PermanentError
from executor.keys import Running, subject_key
from executor.model import (
    Failure,
    Mark,
    Object,
    Operation,
    Policy,
    S,
    Stage,
    SubjectState,
    Transaction,
    TransactionState,
    Verdict,
)
from executor.node_journal import NodeJournal
from executor.node_record import Claim, Kept, LocalRecord, NodeMarks, forgotten
from executor.record import Record, read
from executor.store_errors import operation_error
from omap import names
from omap.codec import JSON
from omap.store import FencedError, ObjectMissingError, Place, Store, StoreError

UNKNOWN_HOME = Place("", "")
"""For stages that touch only this host."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """This node: its id, its state directory's store, and which boot of the host this is."""

    node: str
    local: Store
    boot: str


@dataclass(frozen=True, slots=True)
class NodeChange(Generic[S]):
    """A request to a node.

    * `home`: where the volume's record lies; asked only when the node does not know it yet, since it may
      need the
      cluster.
    * `plan`: given the record's data (empty unless `claim`) and the node's own head data, all data of the
      operation.
      Raises what refuses the request.
    * `is_same`: whether a running or recorded request is this one.
    * `settled`: given the node's head, whether it says that there is nothing to do.  Raises MismatchError
      when it
      stands otherwise.  Where it says so, the stages are probed before it is believed.
    * `turns_back`: operations which, standing open, are taken back by this one (its own name: a request that
      differs).
    * `after`: the state that its success leaves, "" for the same as before.
    """

    operation: Operation[S]
    session: S
    place: NodePlace
    uuid: str
    label: str
    request: Object
    home: Callable[[], Place]
    plan: Callable[[Mapping[str, JSON], Kept], Object]
    same: Callable[[Mapping[str, JSON]], bool]
    settled: Callable[[Kept], bool]
    turns_back: frozenset[str] = frozenset()
    after: str = ""
    claim: Claim | None = None

    @property
    def key(self) -> str:
        """Admission key."""
        return subject_key(self.uuid)

    @property
    def operation_name(self) -> str:
        """For messages and joining."""
        return self.operation.name

    def is_same(self, request: Object) -> bool:
        """Whether a running request is this very one."""
        return self.same(request)

    def routine(self, context: Context[S], running: Running) -> Routine[Object]:
        """What the executor drives."""
        del running
        return _change(self, context)


def _change(change: NodeChange[S], context: Context[S]) -> Routine[Object]:
    local = LocalRecord(change.place.local, change.uuid, change.label)
    while True:
        kept = yield from local.read(f"{change.operation.name}.local.read")
        transaction = kept.open_transaction
        if transaction is not None:
            ended = yield from _end(change, context, local, kept, transaction)
            is_asked = ended.operation == change.operation.name and change.same(ended.request)
            if is_asked and ended.state is TransactionState.DONE:
                return dict(ended.data)
            continue
        if (yield from _is_standing(change, kept)):
            return dict(kept.data)
        return dict((yield from _begin(change, context, local, kept)).data)


def _is_standing(change: NodeChange[S], kept: Kept) -> Routine[bool]:
    """Whether the head says that all is done, and the world agrees."""
    if not change.settled(kept):
        return False
    operation = change.operation
    bound = engine.Bound(operation, change.session, change.uuid, kept.home or UNKNOWN_HOME)
    imagined = Transaction(
        operation.name, operation.version, 0, "", change.request, {**kept.data, **change.request}
    )
    return (yield from _are_done(bound, imagined, operation.stages))


def _are_done(bound: engine.Bound[S], transaction: Transaction, stages: Iterable[Stage[S]]) -> Routine[bool]:
    """Whether the world shows the effects of all these stages."""
    for stage in stages:
        probe = partial(stage.probe, bound.work(transaction))
        finding = yield from look(bound.point(f"{stage.name}.probe"), probe)
        if finding.verdict is not Verdict.DONE:
            return False
    return True


def _begin(
    change: NodeChange[S], context: Context[S], local: LocalRecord, kept: Kept
) -> Routine[Transaction]:
    operation = change.operation
    home, seq = kept.home, kept.next_seq
    recorded: Mapping[str, JSON] = {}
    ended: list[Transaction] = []
    if change.claim is None:
        # Nothing waits for the cluster, so it is not asked how far the numbers went of which nothing is kept
        # here any more: the seconds of the clock come after all of them.
        seq = seq if kept.transactions else int(context.clock.now())
    else:
        home = yield from look(f"{operation.name}.home", change.home)
        record = yield from _live(change, home)
        recorded = record.head_data
        # What the cluster was told of earlier stays in the history, also when nothing is kept here any more.
        told = [
            parsed[1]
            for key in record.keys
            if (parsed := names.parse_node_tx_key(key)) is not None and parsed[0] == change.place.node
        ]
        seq = max(seq, *(number + 1 for number in told)) if told else seq
        ended = forgotten(record.keys, change.place.node, kept.transactions, context.clock.now())
    transaction = Transaction(
        operation=operation.name,
        version=operation.version,
        seq=seq,
        holder=context.instance.id,
        request=change.request,
        data={**change.plan(recorded, kept), "node": change.place.node, "boot": change.place.boot},
        begun=context.clock.now(),
        after=change.after,
    )
    bound = engine.Bound(operation, change.session, change.uuid, home or UNKNOWN_HOME)
    begun = yield from engine.intend(bound, transaction)
    journal = _journal(change, context, local, kept, operation, home)
    try:
        yield from journal.begin(begun.transaction, home, begun.facts, ended)
    except (StoreError, OperationError) as problem:
        error = _refusal(problem)
        if error is None:
            raise
        # Refused before anything was done: nothing is left open that nobody comes back for.
        yield from journal.unchanged(begun.transaction.undoing(_failure(error)))
        raise error from problem
    return (yield from engine.run(bound, journal, begun))


def _refusal(problem: StoreError | OperationError) -> OperationError | None:
    """The problem, if it says for certain that the cluster was told nothing."""
    if isinstance(problem, FencedError):
        return None
    error = operation_error(problem) if isinstance(problem, StoreError) else problem
    return error if isinstance(error, (PermanentError, PendingError)) else None


def _failure(error: OperationError) -> Failure:
    return Failure(type(error).__name__, str(error))


def _live(change: NodeChange[S], home: Place) -> Routine[Record]:
    store = change.session.store(home)
    try:
        record = yield from read(store, names.record_name(change.uuid), f"{change.operation.name}.read")
    except ObjectMissingError:
        msg = f"volume {change.label} is not there: {home} has no record of it"
        raise NotFoundError(msg) from None
    if record.state in (SubjectState.TRASHED, SubjectState.PURGING):
        msg = f"volume {change.label} ({record.request_name}) was deleted"
        raise NotFoundError(msg)
    if record.state is not SubjectState.LIVE:
        msg = f"volume {change.label} ({record.request_name}) is {record.state.value}; retry later"
        raise PendingError(msg)
    return record


def _end(
    change: NodeChange[S], context: Context[S], local: LocalRecord, kept: Kept, transaction: Transaction
) -> Routine[Transaction]:
    """End what stands open on this node."""
    operation = context.operation(transaction.operation, transaction.version)
    is_same = operation.name == change.operation.name and change.same(transaction.request)
    bound = engine.Bound(operation, change.session, change.uuid, kept.home or UNKNOWN_HOME)
    journal = _journal(change, context, local, kept, operation, kept.home)
    taken = transaction.held_by(context.instance.id, None)
    if taken.state is TransactionState.OPEN and operation.policy is Policy.REVERT:
        why = yield from _why_turned_back(change, bound, taken, is_same=is_same)
        if why:
            taken = taken.undoing(Failure("CancelledError", why))
    if is_same and change.claim is not None and taken.state is TransactionState.OPEN:
        # The plugin may have died between its local note and the cluster's: to begin again changes nothing
        # twice.
        try:
            yield from journal.begin(taken, kept.home, ())
        except (StoreError, OperationError) as problem:
            error = _refusal(problem)
            if not isinstance(error, PermanentError):
                raise
            yield from engine.run(bound, journal, engine.Begun(taken.undoing(_failure(error))))
            raise error from problem
    return (yield from engine.run(bound, journal, engine.Begun(taken)))


def _why_turned_back(
    change: NodeChange[S], bound: engine.Bound[S], transaction: Transaction, *, is_same: bool
) -> Routine[str]:
    """Why an open transaction is taken back, "" when it goes on.

    Raises PendingError when it is not this request's to take back.
    """
    operation = bound.operation
    if is_same:
        done = [stage for stage in operation.stages if transaction.marks.get(stage.name) is Mark.DONE]
        if (yield from _are_done(bound, transaction, done)):
            return ""
        return "what it had made is not on the node any more"
    if operation.name not in change.turns_back:
        asked = "other" if operation.name == change.operation.name else change.operation.name
        msg = (
            f"{operation.name} of {change.label} is not finished (it is at {transaction.current_stage}), so "
            f"no {asked} can begin; repeat it, or take it back first"
        )
        raise PendingError(msg)
    return f"{change.operation.name} came before it was finished"


def _journal(
    change: NodeChange[S],
    context: Context[S],
    local: LocalRecord,
    kept: Kept,
    operation: Operation[S],
    home: Place | None,
) -> NodeJournal:
    def marks() -> NodeMarks:
        place = home or change.home()
        return NodeMarks(change.session.store(place), change.uuid, change.place.node, context.instance.id)

    claim = change.claim if operation.name == change.operation.name else None
    return NodeJournal(operation, local, marks, context.clock, kept, claim)
