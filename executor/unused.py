"""A subject that a node holds is not taken away from under it.

Whoever excludes the nodes sets the subject's state first and reads their marks after: from that write on no
node can begin, and whoever began before it is seen by the read.  So the read belongs to every way in which
the transaction goes on, a resumption included, until its effect is made.
"""

from __future__ import annotations

from executor import engine
from executor.effects import Routine, look
from executor.errors import InUseError, PendingError
from executor.model import Failure, Operation, S, Transaction, TransactionState
from executor.node_marks import Holder, holders
from executor.record import Record
from executor.volume_journal import VolumeJournal
from omap import names
from omap.store import Store


def refuse_used(record: Record) -> None:
    """Raise if a node holds the subject: PendingError while it is at work on it, else InUseError."""
    _refuse(record.request_name, holders(record.keys))


def step_back_if_used(
    bound: engine.Bound[S], journal: VolumeJournal, store: Store, record: Record, transaction: Transaction
) -> Routine[None]:
    """After the state is set: if a node holds the subject, restore the state and raise as `refuse_used` does.

    Does nothing where the operation needs no such thing, or has made its effect already: then it only goes
    on.
    """
    operation: Operation[S] = bound.operation
    if not operation.needs_unused or transaction.state is not TransactionState.OPEN:
        return
    keys = yield from look(bound.point("nodes"), lambda: store.read(record.name, prefix=names.NODE_PREFIX))
    found = holders(keys)
    if found and (yield from engine.is_untouched(bound, transaction)):
        failure = Failure(InUseError.__name__, _used_by(record.request_name, found))
        yield from journal.unchanged(transaction.undoing(failure))
        _refuse(record.request_name, found)


def _refuse(request_name: str, found: tuple[Holder, ...]) -> None:
    text = _used_by(request_name, found)
    if any(holder.is_busy for holder in found):
        raise PendingError(text)
    if found:
        raise InUseError(text)


def _used_by(request_name: str, found: tuple[Holder, ...]) -> str:
    where = ", ".join(f"{holder.what} on node {holder.node}" for holder in found)
    return f"{request_name} is in use: {where}; unpublish and unstage it there first"
