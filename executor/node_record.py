"""What a node knows of a volume: kept locally, told to the cluster.

**Local**, in the state directory (a store of files), one object a volume: the truth for resuming on this
node, and the index of what is open here.  Keys: `waymark/head`, `waymark/tx/<seq>`, `volume` (what callers
call it), `home` (the record's place, once it is known), and `spool/<seq>` for each transaction that the
cluster has not been told of.

**In the cluster**, in the volume's record: the same head and transactions under `waymark/node/<node>/`, for
the controller (a volume in use is not deleted) and for the history.  Node writes compare and raise only the
node's own `rev`, and the very keys they depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

from executor.directory import place_from_json, place_to_json
from executor.effects import Routine, act, look, settle
from executor.errors import InUseError, NotFoundError, PendingError, UnavailableError
from executor.model import Fact, Failure, Object, SubjectState, Transaction, TransactionState
from executor.node_marks import STAGED
from executor.record import NO_WRITER, of_facts
from omap import names
from omap.codec import JSON, Rev, Writer, decode_object, encode
from omap.store import Absent, Answer, Condition, Create, Equals, ObjectMissingError, Place, Store, Write

HOME = "home"
VOLUME = "volume"
SPOOL_PREFIX = "spool/"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept locally of a volume at one moment."""

    head: Object = field(default_factory=dict)
    transactions: Mapping[int, Transaction] = field(default_factory=dict)
    home: Place | None = None
    spooled: tuple[int, ...] = ()
    volume_id: str = ""

    @property
    def open_transaction(self) -> Transaction | None:
        """The one that is not ended; there is never more than one."""
        return next((t for t in self.transactions.values() if t.state.is_open), None)

    @property
    def next_seq(self) -> int:
        """Number of the next transaction on this node."""
        return max(self.transactions, default=0) + 1

    @property
    def state(self) -> str:
        """What the head says: `staged`, `unstaged`, or "" when nothing was ever done."""
        return str(self.head.get("state", ""))

    @property
    def data(self) -> Object:
        """The head's data."""
        data = self.head.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def is_over(self) -> bool:
        """Whether nothing of the volume is on this node any more and the cluster knows all that was done."""
        return not (
            self.spooled
            or self.state == STAGED
            or self.open_transaction is not None
            or self.data.get("published")
        )


class LocalRecord:
    """A volume's object in the state directory.  Only the holder of the directory's lock has one."""

    def __init__(self, store: Store, uuid: str, volume_id: str) -> None:
        """Of one volume; `volume_id` is what callers call it."""
        self._store = store
        self._name = names.record_name(uuid)
        self._volume_id = volume_id

    def read(self, point: str) -> Routine[Kept]:
        """What is kept; nothing when nothing is."""
        try:
            keys = yield from look(point, lambda: self._store.read(self._name))
        except ObjectMissingError:
            return Kept()
        return parse_kept(keys)

    def write(
        self,
        point: str,
        transaction: Transaction,
        *,
        head: Mapping[str, JSON] | None = None,
        home: Place | None = None,
        spool: bool = False,
    ) -> Routine[None]:
        """Keep a transaction as it stands, and what comes with it.

        Raises UnavailableError when it is not certain to be on the disk; to write it again does no harm.
        """
        sets = {
            names.tx_key(transaction.seq): encode(transaction.to_json()),
            VOLUME: self._volume_id.encode(),
        }
        if head is not None:
            sets[names.HEAD] = encode(dict(head))
        if home is not None:
            sets[HOME] = encode(place_to_json(home))
        if spool:
            sets[f"{SPOOL_PREFIX}{transaction.seq}"] = b"1"
        write = Write(sets=sets, create=Create.IF_ABSENT)
        answer = yield from act(point, lambda: self._store.write(self._name, write))
        if answer is not Answer.APPLIED:
            msg = (
                f"{transaction.operation} of {self._volume_id} cannot be noted for certain in "
                f"{self._store.place}; look at this node's disk, and retry"
            )
            raise UnavailableError(msg)


def parse_kept(keys: Mapping[str, bytes]) -> Kept:
    """From the local object.  Raises CorruptError."""
    transactions = {}
    spooled = []
    for key, value in keys.items():
        seq = names.parse_tx_key(key)
        if seq is not None:
            transactions[seq] = Transaction.from_json(decode_object(value, key))
        elif key.startswith(SPOOL_PREFIX):
            spooled.append(int(key.removeprefix(SPOOL_PREFIX)))
    return Kept(
        head=decode_object(keys[names.HEAD], names.HEAD) if names.HEAD in keys else {},
        transactions=dict(sorted(transactions.items())),
        home=place_from_json(decode_object(keys[HOME], HOME)) if HOME in keys else None,
        spooled=tuple(sorted(spooled)),
        volume_id=keys.get(VOLUME, b"").decode(),
    )


def forgotten(
    keys: Mapping[str, bytes], node: str, known: Mapping[int, Transaction], now: float
) -> list[Transaction]:
    """Ended: what the record says is open on this node and the node does not know of any more.

    Its state directory was lost then; nobody else would ever end it, and the volume would be in use for ever.
    """
    found = []
    for key, value in sorted(keys.items()):
        parsed = names.parse_node_tx_key(key)
        if parsed is None or parsed[0] != node or parsed[1] in known:
            continue
        transaction = Transaction.from_json(decode_object(value, key))
        if transaction.state.is_open:
            failure = Failure("LostError", "this node's own notes of it were lost")
            found.append(transaction.undoing(failure).ended_as(TransactionState.REVERTED, now))
    return found


def writer_value(node: str) -> bytes:
    """Value of `waymark/writer` while this node alone may write to the volume."""
    return f"node/{quote(node, safe='')}".encode()


def writer_name(value: bytes) -> str:
    """The node in such a value, for messages."""
    return value.decode().removeprefix("node/")


@dataclass(frozen=True, slots=True)
class Claim:
    """What the write that begins a stage depends on: a live volume, and no other node that alone writes.

    `takes_writer`: this node alone may write from now on.
    """

    takes_writer: bool


class NodeMarks:
    """A node's own part of a volume's record."""

    def __init__(self, store: Store, uuid: str, node: str, plugin: str) -> None:
        """`plugin` names this life of the node plugin, for the `rev`."""
        self._store = store
        self._name = names.record_name(uuid)
        self._node = node
        self._plugin = plugin
        self._steps = 0

    def write(
        self,
        point: str,
        transactions: Sequence[Transaction],
        *,
        head: Mapping[str, JSON] | None = None,
        facts: Sequence[Fact] = (),
        claim: Claim | None = None,
    ) -> Routine[None]:
        """Tell the record, trying until it is known that it was told.

        Raises NotFoundError without a record, PendingError when the volume is being deleted or a fact moved,
        InUseError when another node alone writes to it.
        """
        while True:
            try:
                seen = yield from look(
                    f"{point}.look", lambda: self._store.read_keys(self._name, self._keys(facts))
                )
            except ObjectMissingError:
                msg = f"volume {self._name} is not there in {self._store.place}"
                raise NotFoundError(msg) from None
            self._check(seen, facts, claim)
            write, token = self._write_on(seen, transactions, head, facts, claim)
            answer = yield from settle(partial(act, point, partial(self._store.write, self._name, write)))
            if answer is Answer.APPLIED:
                return
            found = yield from look(
                f"{point}.judge", lambda: self._store.read_keys(self._name, [self._rev_key])
            )
            if found.get(self._rev_key) == token:
                return

    @property
    def _rev_key(self) -> str:
        return names.node_rev_key(self._node)

    def _keys(self, facts: Sequence[Fact]) -> list[str]:
        return [self._rev_key, names.STATE, names.WRITER, *(fact.key for fact in facts)]

    def _check(self, seen: Mapping[str, bytes], facts: Sequence[Fact], claim: Claim | None) -> None:
        if claim is not None:
            state = seen.get(names.STATE, b"").decode()
            if state != SubjectState.LIVE.value:
                msg = f"volume {self._name} is {state or 'not ours'}, so it cannot be staged"
                raise PendingError(msg)
            holder = seen.get(names.WRITER, NO_WRITER)
            if holder not in (NO_WRITER, writer_value(self._node)):
                msg = (
                    f"volume {self._name} is in use on node {writer_name(holder)}, which alone may write to "
                    "it; "
                    "unstage it there first"
                )
                raise InUseError(msg)
        for fact in facts:
            if seen.get(fact.key) not in (fact.expected, fact.value):
                msg = f"{fact.key} of volume {self._name} was changed by another node meanwhile; retry"
                raise PendingError(msg)

    def _write_on(
        self,
        seen: Mapping[str, bytes],
        transactions: Sequence[Transaction],
        head: Mapping[str, JSON] | None,
        facts: Sequence[Fact],
        claim: Claim | None,
    ) -> tuple[Write, bytes]:
        before = seen.get(self._rev_key)
        self._steps += 1
        writer = Writer(self._plugin, str(transactions[-1].seq), str(self._steps))
        rev = Rev.first(writer) if before is None else Rev.parse(before, self._rev_key).next(writer)
        conditions: list[Condition] = [
            Absent(self._rev_key) if before is None else Equals(self._rev_key, before)
        ]
        moved = [fact for fact in facts if seen.get(fact.key) == fact.expected]
        fact_conditions, sets, removes = of_facts(moved)
        conditions += fact_conditions
        for transaction in transactions:
            sets[names.node_tx_key(self._node, transaction.seq)] = encode(transaction.to_json())
        if head is not None:
            sets[names.node_head_key(self._node)] = encode(dict(head))
        holder = seen.get(names.WRITER, NO_WRITER)
        if claim is not None:
            conditions += [
                Equals(names.STATE, SubjectState.LIVE.value.encode()),
                Equals(names.WRITER, holder),
            ]
            if claim.takes_writer:
                sets[names.WRITER] = writer_value(self._node)
        sets[self._rev_key] = bytes(rev)
        return Write(tuple(conditions), sets, removes), bytes(rev)
