"""The node's journal: each step locally first; the cluster is told when it must know.

A stage tells the cluster before its first effect (so that the volume cannot be deleted under it), with every
fact that
others depend on (a file system is being made, was made), and before its answer.  Everything else is spooled
locally
and told right after: an unstage or unpublish must work while the cluster is away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.effects import Routine
from executor.model import Fact, Object, Operation, S, Transaction, TransactionState
from executor.node_record import Claim, Kept, LocalRecord, NodeMarks
from executor.ports import Clock
from executor.record import head_after
from omap.store import Place


class NodeJournal:
    """Of one transaction on one node."""

    def __init__(
        self,
        operation: Operation[S],
        local: LocalRecord,
        marks: Callable[[], NodeMarks],
        clock: Clock,
        kept: Kept,
        claim: Claim | None,
    ) -> None:
        """`claim` is a stage's; without one nothing waits for the cluster.

        `marks` may have to connect first.
        """
        self._operation = operation
        self._local = local
        self._marks = marks
        self._clock = clock
        self._kept = kept
        self._claim = claim

    def begin(
        self,
        transaction: Transaction,
        home: Place | None,
        facts: Sequence[Fact],
        ended: Sequence[Transaction] = (),
    ) -> Routine[None]:
        """Make the intent durable: locally, to be resumed; then in the cluster, if others must know.

        `ended` are earlier ones that the cluster is told the end of on this occasion.
        """
        yield from self._local.write(self._point("local.begin"), transaction, home=home)
        if self._claim is not None:
            marks = self._marks()
            told = [*ended, transaction]
            yield from marks.write(self._point("begin"), told, facts=facts, claim=self._claim)

    def save(self, point: str, transaction: Transaction, facts: Sequence[Fact]) -> Routine[None]:
        """Write the transaction as it stands.

        Facts first: once the local note is there the effect may follow, and then others must know of it.
        """
        if facts:
            yield from self._marks().write(point, [transaction], facts=facts)
        yield from self._local.write(f"{self._operation.name}.local.{point.partition('.')[2]}", transaction)

    def commit(self, transaction: Transaction, facts: Sequence[Fact]) -> Routine[Transaction]:
        """Change what the node says of the volume."""
        ended = transaction.ended_as(TransactionState.DONE, self._clock.now())
        head = head_after(self._kept.head, ended)
        if self._claim is not None:
            yield from self._marks().write(self._point("commit"), [ended], head=head, facts=facts)
        yield from self._end(ended, head)
        return ended

    def revert(self, transaction: Transaction, facts: Sequence[Fact]) -> Routine[Transaction]:
        """All is undone; the head stays."""
        ended = transaction.ended_as(TransactionState.REVERTED, self._clock.now())
        if facts:
            yield from self._marks().write(self._point("revert"), [ended], facts=facts)
        yield from self._end(ended, None)
        return ended

    def unchanged(self, transaction: Transaction) -> Routine[Transaction]:
        """Nothing was changed; the head stays."""
        ended = transaction.ended_as(TransactionState.UNCHANGED, self._clock.now())
        yield from self._end(ended, None)
        return ended

    def release(self, transaction: Transaction) -> Routine[None]:
        """Leave it for the next call: this node's state directory is all the owner it has."""
        yield from self._local.write(self._point("local.release"), transaction)

    def _end(self, ended: Transaction, head: Object | None) -> Routine[None]:
        spool = self._claim is None or ended.state is not TransactionState.DONE
        yield from self._local.write(self._point("local.commit"), ended, head=head, spool=spool)

    def _point(self, what: str) -> str:
        return f"{self._operation.name}.{what}"
