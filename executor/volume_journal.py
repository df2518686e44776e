"""The controller's journal: a transaction's steps in the subject's record and its shard of the directory.

Orders, each such that whatever a crash leaves in between is found and finished:

* delete: the shard's write commits (name freed, purge noted), then the record says so.
* end of a subject (purge, or a create taken back): the tombstone and the freed name in one write, then the
  record goes, then the `open/` mark.  A late copy of an older write meets the tombstone and revives nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executor.context import Context
from executor.directory import Directory, TrashedEntry
from executor.effects import Routine
from executor.engine import Bound
from executor.history import Entry, tombstone
from executor.model import Fact, Policy, S, SubjectState, Transaction, TransactionState
from executor.record import RecordWriter, head_after
from omap import names
from omap.codec import JSON, encode


class VolumeJournal:
    """Of one transaction of one subject."""

    def __init__(
        self,
        context: Context[S],
        bound: Bound[S],
        directory: Directory,
        writer: RecordWriter,
        head: Mapping[str, JSON],
        earlier: Sequence[Entry] = (),
    ) -> None:
        """`head` is what the record's head said before; `earlier` its earlier history, for the tombstone."""
        self._clock = context.clock
        self._periods = context.periods
        self._holder = context.instance.id
        self._directory = directory
        self._writer = writer
        self._operation = bound.operation
        self._uuid = bound.uuid
        self._home = bound.home
        self._head = head
        self._earlier = tuple(earlier)

    def save(self, point: str, transaction: Transaction, facts: Sequence[Fact]) -> Routine[None]:
        """Write the transaction as it stands; a create heeds a delete's wish here."""
        return self._writer.save(point, transaction, facts=facts, heed_cancel=self._heeds_cancel(transaction))

    def commit(self, transaction: Transaction, facts: Sequence[Fact]) -> Routine[Transaction]:
        """Change the subject's current state."""
        ended = transaction.ended_as(TransactionState.DONE, self._clock.now())
        after = self._operation.after
        if after is SubjectState.GONE:
            yield from self._bury(ended)
            return ended
        if after is SubjectState.TRASHED:
            due = ended.ended or 0.0
            entry = TrashedEntry(self._uuid, due + self._periods.trash, self._home)
            yield from self._directory.trash(self._point("directory"), entry)
        sets = {names.HEAD: encode(head_after(self._head, ended)), names.OWNER: self._writer.unowned()}
        if after is not None:
            sets[names.STATE] = after.value.encode()
        elif self._operation.during is not None:
            sets[names.STATE] = str(self._head.get("state")).encode()
        image_id = ended.data.get("image_id")
        if isinstance(image_id, str) and image_id:
            sets[names.IMAGE_ID] = image_id.encode()
        heed = self._heeds_cancel(transaction)
        yield from self._writer.save(self._point("commit"), ended, sets, facts, heed_cancel=heed)
        self._directory.drop(self._uuid, ended.opens)
        return ended

    def revert(self, transaction: Transaction, facts: Sequence[Fact]) -> Routine[Transaction]:
        """A create taken back: the subject is gone, the name free."""
        del facts  # they go with the record
        ended = transaction.ended_as(TransactionState.REVERTED, self._clock.now())
        yield from self._bury(ended)
        return ended

    def unchanged(self, transaction: Transaction) -> Routine[Transaction]:
        """Put the subject's state back and keep the attempt."""
        ended = transaction.ended_as(TransactionState.UNCHANGED, self._clock.now())
        sets = {names.STATE: str(self._head.get("state")).encode(), names.OWNER: self._writer.unowned()}
        yield from self._writer.save(self._point("unchanged"), ended, sets)
        self._directory.drop(self._uuid, ended.opens)
        return ended

    def release(self, transaction: Transaction) -> Routine[None]:
        """Leave it at rest."""
        return self._writer.release(self._point("release"), transaction)

    def _bury(self, ended: Transaction) -> Routine[None]:
        history = [*self._earlier, Entry(ended)]
        expiry = self._clock.now() + self._periods.tombstone
        value = tombstone(self._directory.request_name, self._holder, expiry, history)
        yield from self._directory.bury(self._point("tombstone"), self._uuid, value)
        yield from self._writer.remove(self._point("record.remove"))
        if not self._writer.was_making_unknown:
            self._directory.drop(self._uuid, ended.opens)
        # Else a late copy may make the record anew: the marks stay, so that recovery looks once more.

    def _heeds_cancel(self, transaction: Transaction) -> bool:
        return self._operation.policy is Policy.REVERT and transaction.state is TransactionState.OPEN

    def _point(self, what: str) -> str:
        return f"{self._operation.name}.{what}"
