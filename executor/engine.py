"""How a transaction runs: forward through its stages from where its marks stand, or back.

The engine knows stages and marks; where the marks are kept is the journal's matter
(`executor.volume_journal` for the controller, `executor.node_journal` for nodes).  It decides and yields; it
never acts, blocks or takes a lock.

A stage's intent is durable before its effect.  "Stage k done" travels with the next write, which is "stage
k+1 intended" or the commit.  A stage that is only intended is probed, never trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol

from executor.effects import Routine, act, look
from executor.errors import OperationError, PermanentError, TransientError, UnavailableError
from executor.model import (
    Done,
    Fact,
    Failure,
    Mark,
    Operation,
    Policy,
    S,
    Stage,
    Transaction,
    TransactionState,
    Verdict,
    Work,
)
from executor.record import LostError
from executor.store_errors import operation_error
from omap.codec import CorruptError, SchemaTooNewError
from omap.store import FencedError, Place, StoreError


class Journal(Protocol):
    """Where a transaction's steps are made durable."""

    def save(self, point: str, transaction: Transaction, facts: Sequence[Fact]) -> Routine[None]:
        """Write the transaction as it stands."""

    def commit(self, transaction: Transaction, facts: Sequence[Fact]) -> Routine[Transaction]:
        """Its stages are all done: change the subject's current state.  Returns it as it ended."""

    def revert(self, transaction: Transaction, facts: Sequence[Fact]) -> Routine[Transaction]:
        """Its stages are all undone: nobody is bound by it."""

    def unchanged(self, transaction: Transaction) -> Routine[Transaction]:
        """It changed nothing: put the subject's state back and keep the attempt in the history."""

    def release(self, transaction: Transaction) -> Routine[None]:
        """Leave it at rest, for whoever comes next."""


@dataclass(frozen=True, slots=True)
class Bound(Generic[S]):
    """An operation and the subject and session it runs on."""

    operation: Operation[S]
    session: S
    uuid: str
    home: Place

    def work(self, transaction: Transaction) -> Work[S]:
        """What a stage is given."""
        return Work(self.session, self.uuid, self.home, transaction.request, transaction.data)

    def point(self, what: str) -> str:
        """Name of an effect."""
        return f"{self.operation.name}.{what}"


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction whose next stage has its intent, not yet written.

    `stage` is that stage, "" when none is left.
    """

    transaction: Transaction
    stage: str = ""
    facts: tuple[Fact, ...] = ()


def intend(bound: Bound[S], transaction: Transaction, facts: tuple[Fact, ...] = ()) -> Routine[Begun]:
    """Give the next stage that has something to do its intent; stages with nothing to do are done at once."""
    for stage in bound.operation.stages:
        if stage.name in transaction.marks:
            continue
        data = None
        if stage.prepare is not None:
            look_first = partial(stage.prepare, bound.work(transaction))
            intention = yield from look(bound.point(f"{stage.name}.prepare"), look_first)
            facts = (*facts, *intention.facts)
            data = intention.data
            if intention.skip:
                transaction = transaction.marked(stage.name, Mark.DONE, data)
                continue
        return Begun(transaction.marked(stage.name, Mark.INTENDED, data), stage.name, facts)
    return Begun(transaction, "", facts)


def run(bound: Bound[S], journal: Journal, begun: Begun) -> Routine[Transaction]:
    """Take a transaction to its end.

    Returns it as it ended: done, or reverted if it was already being undone.

    Raises the PermanentError that it failed with once everything is undone, or a TransientError with the
    transaction at rest: the same request goes on from there.
    """
    transaction = begun.transaction
    latest = [transaction]
    try:
        try:
            if transaction.state is TransactionState.UNDOING:
                return (yield from _backward(bound, journal, latest))
            return (yield from _forward(bound, journal, begun, latest))
        except StoreError as error:
            if isinstance(error, FencedError):
                raise
            if isinstance(error, (CorruptError, SchemaTooNewError)):
                # Whose record cannot be understood is neither finished nor undone by guessing.
                msg = f"{error}; {bound.operation.name} of {bound.uuid} stays as it is"
                raise UnavailableError(msg) from error
            raise operation_error(error) from error
    except LostError:
        raise  # it is somebody else's now: not one more write
    except PermanentError as error:
        return (yield from _give_up(bound, journal, latest, error))
    except FencedError:
        raise
    except TransientError:
        yield from _rest(journal, latest)
        raise
    except Exception as error:
        yield from _rest(journal, latest)
        msg = (
            f"internal fault in {bound.operation.name} of {bound.uuid}, stage {latest[0].current_stage}; "
            "it stays open and is safe to retry; the log has the details"
        )
        raise UnavailableError(msg) from error


def _forward(
    bound: Bound[S], journal: Journal, begun: Begun, latest: list[Transaction]
) -> Routine[Transaction]:
    fresh, facts = begun.stage, begun.facts if begun.stage == "" else ()
    transaction = begun.transaction
    while True:
        stage = _intended(bound.operation, transaction)
        if stage is None:
            begun = yield from intend(bound, transaction, facts)
            transaction, facts = begun.transaction, begun.facts
            if not begun.stage:
                ended = yield from journal.commit(transaction, facts)
                latest[0] = ended
                return ended
            fresh = begun.stage
            yield from journal.save(bound.point(f"{fresh}.intent"), transaction, facts)
            latest[0], facts = transaction, ()
            continue
        done = yield from _effect(bound, stage, transaction, is_fresh=stage.name == fresh)
        transaction = transaction.marked(stage.name, Mark.DONE, done.data)
        facts = (*facts, *done.facts)
        if not facts:  # with facts it counts as done only once they are written, or nobody would write them
            latest[0] = transaction


def _intended(operation: Operation[S], transaction: Transaction) -> Stage[S] | None:
    for name, mark in transaction.marks.items():
        if mark is Mark.INTENDED:
            return operation.stage(name)
    return None


def _effect(bound: Bound[S], stage: Stage[S], transaction: Transaction, *, is_fresh: bool) -> Routine[Done]:
    work = bound.work(transaction)
    if not is_fresh:
        finding = yield from look(bound.point(f"{stage.name}.probe"), partial(stage.probe, work))
        if finding.verdict is Verdict.DONE:
            return Done(finding.data, finding.facts)
        if finding.verdict is Verdict.HALF_MADE and stage.repair is not None:
            yield from act(bound.point(f"{stage.name}.repair"), partial(stage.repair, work))
    return (yield from act(bound.point(f"{stage.name}.apply"), partial(stage.apply, work)))


def _backward(bound: Bound[S], journal: Journal, latest: list[Transaction]) -> Routine[Transaction]:
    transaction = latest[0]
    facts: tuple[Fact, ...] = ()
    for stage in reversed(bound.operation.stages):
        if transaction.marks.get(stage.name) in (None, Mark.UNDONE) or stage.undo is None:
            continue
        if facts:
            yield from journal.save(bound.point(f"{stage.name}.undo.intent"), transaction, facts)
            latest[0] = transaction
        done = yield from act(bound.point(f"{stage.name}.undo"), partial(stage.undo, bound.work(transaction)))
        facts = done.facts
        transaction = transaction.marked(stage.name, Mark.UNDONE, done.data)
        if not facts:
            latest[0] = transaction
    ended = yield from journal.revert(transaction, facts)
    latest[0] = ended
    return ended


def _give_up(
    bound: Bound[S], journal: Journal, latest: list[Transaction], error: PermanentError
) -> Routine[Transaction]:
    """End what failed for good as its policy says.

    Raises in every case, the very error only once nothing is left.
    """
    failure = Failure(type(error).__name__, str(error))
    try:
        if bound.operation.policy is Policy.REVERT:
            turned = latest[0].undoing(failure)
            yield from journal.save(bound.point("undo"), turned, ())
            latest[0] = turned
            yield from _backward(bound, journal, latest)
        else:
            yield from _put_back(bound, journal, latest, failure)
    except (LostError, FencedError):
        raise
    except Exception as also:
        yield from _rest(journal, latest)
        detail = (
            str(also) if isinstance(also, (OperationError, StoreError)) else "internal fault, see the log"
        )
        msg = f"{error}; what it left is not cleared away yet ({detail}); retry"
        raise UnavailableError(msg) from also
    raise error


def _put_back(
    bound: Bound[S], journal: Journal, latest: list[Transaction], failure: Failure
) -> Routine[None]:
    """End what made no effect as unchanged.

    Raises UnavailableError when it made one: then it only goes on.
    """
    if not (yield from is_untouched(bound, latest[0])):
        msg = (
            f"{bound.operation.name} of {bound.uuid} has begun and only goes on; retry once the cause is gone"
        )
        raise UnavailableError(msg)
    latest[0] = yield from journal.unchanged(latest[0].undoing(failure))


def is_untouched(bound: Bound[S], transaction: Transaction) -> Routine[bool]:
    """Whether the transaction made no effect at all: no stage is done, and the one intended is absent."""
    if Mark.DONE in transaction.marks.values():
        return False
    stage = _intended(bound.operation, transaction)
    if stage is None:
        return True
    work = bound.work(transaction)
    finding = yield from look(bound.point(f"{stage.name}.probe"), partial(stage.probe, work))
    return bool(finding.verdict is Verdict.ABSENT)


def _rest(journal: Journal, latest: list[Transaction]) -> Routine[None]:
    try:
        yield from journal.release(latest[0])
    except FencedError:
        raise  # whoever is shut out must hear of it: this process is to end
    except (StoreError, OperationError):
        # It stays ours in the record; this process takes it on again by the record's own word.
        return
