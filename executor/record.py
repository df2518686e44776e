"""A subject's record: what it says, and the one way of writing to it.

Each write compares the `rev` it last saw and raises it.  A write whose reply was lost is made again just so:
then exactly one of the two can have been applied.  A write that fails is judged by reading the record from
the start; the `rev` names its writer, so one's own late success is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from executor.effects import Routine, act, look, settle
from executor.errors import PendingError, PermanentError
from executor.model import Fact, Object, SubjectState, Transaction
from omap import names
from omap.codec import (
    JSON,
    SCHEMA,
    CorruptError,
    Rev,
    Writer,
    decode_object,
    encode,
    encode_schema,
    read_record,
)
from omap.store import Absent, Answer, Condition, Create, Equals, ObjectMissingError, Store, Write

NO_WRITER = b"none"
"""Value of `waymark/writer` while no node alone may write to the volume."""


class CancelledError(PermanentError):
    """The subject was deleted while it was being created."""


class LostError(PendingError):
    """Somebody else took the transaction on."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who works on the record: an instance or nobody, under an epoch that every change of owner raises."""

    instance: str | None
    epoch: int

    def to_bytes(self) -> bytes:
        """As kept in the record."""
        return encode({"instance": self.instance, "epoch": self.epoch})


@dataclass(frozen=True, slots=True)
class Record:
    """What a record said at one moment."""

    name: str
    keys: Mapping[str, bytes]
    rev: Rev
    state: SubjectState
    owner: Owner
    head: Object
    transactions: Mapping[int, Transaction] = field(default_factory=dict)

    @property
    def open_transaction(self) -> Transaction | None:
        """The transaction that is not ended; there is never more than one."""
        for transaction in self.transactions.values():
            if transaction.state.is_open:
                return transaction
        return None

    @property
    def next_seq(self) -> int:
        """The number of the next transaction."""
        return max(self.transactions, default=0) + 1

    @property
    def request_name(self) -> str:
        """The name under which the subject was asked for."""
        return self.keys[names.REQUEST_NAME].decode()

    @property
    def is_cancelled(self) -> bool:
        """Whether a delete came while the create ran."""
        return names.CANCEL in self.keys

    @property
    def head_data(self) -> Object:
        """The current data."""
        data = self.head.get("data")
        return data if isinstance(data, dict) else {}

    @classmethod
    def parse(cls, name: str, keys: Mapping[str, bytes]) -> Record:
        """From the keys of the object.  Raises CorruptError, SchemaTooNewError."""
        if names.REQUEST_NAME not in keys:
            msg = f"{name} lacks {names.REQUEST_NAME}"
            raise CorruptError(msg)
        owner = decode_object(keys.get(names.OWNER, b"{}"), f"{name} {names.OWNER}")
        instance = owner.get("instance")
        epoch = owner.get("epoch")
        transactions = {}
        for key, value in keys.items():
            seq = names.parse_tx_key(key)
            if seq is not None:
                transactions[seq] = Transaction.from_json(decode_object(value, f"{name} {key}"))
        return cls(
            name=name,
            keys=keys,
            rev=Rev.parse(keys.get(names.REV, b""), f"{name} {names.REV}"),
            state=_state(keys.get(names.STATE, b""), f"{name} {names.STATE}"),
            owner=Owner(
                instance if isinstance(instance, str) else None, epoch if isinstance(epoch, int) else 0
            ),
            head=decode_object(keys.get(names.HEAD, b"{}"), f"{name} {names.HEAD}"),
            transactions=dict(sorted(transactions.items())),
        )


def _state(value: bytes, what: str) -> SubjectState:
    try:
        return SubjectState(value.decode())
    except ValueError as error:
        msg = f"{what} holds no state that this version knows"
        raise CorruptError(msg) from error


def read(store: Store, name: str, point: str) -> Routine[Record]:
    """Read a record.  Raises ObjectMissingError and the store's other errors."""
    keys = yield from look(point, lambda: read_record(store, name))
    return Record.parse(name, keys)


def head_after(before: Mapping[str, JSON], transaction: Transaction) -> Object:
    """What the head says once this is done: its data over what was there, its state if it sets one."""
    data = before.get("data")
    return {
        "state": transaction.after or before.get("state", ""),
        "data": {**(data if isinstance(data, dict) else {}), **transaction.data},
        "seq": transaction.seq,
    }


class RecordWriter:
    """One owner's hand on one record.  Used by one routine at a time; `create` or `take` comes first."""

    def __init__(self, store: Store, name: str, instance: str, seq: int) -> None:
        """For transaction `seq`, written by this instance."""
        self._store = store
        self._name = name
        self._instance = instance
        self._seq = seq
        self._steps = 0
        self._rev = Rev(0, "nobody")
        self._epoch = 0
        self.was_making_unknown = False
        """Whether an answer to the write that makes the record was lost: that write may still come in."""

    def create(self, point: str, transaction: Transaction, sets: Mapping[str, bytes]) -> Routine[None]:
        """Make the record with the whole intent.  Raises LostError when somebody else made it first."""
        rev = Rev.first(self._writer())
        self._epoch = 1
        keys = {
            names.SCHEMA_KEY: encode_schema(SCHEMA),
            names.REV: bytes(rev),
            names.WRITER: NO_WRITER,
            names.OWNER: Owner(self._instance, 1).to_bytes(),
            names.tx_key(transaction.seq): encode(transaction.to_json()),
            **sets,
        }
        write = Write(sets=keys, create=Create.EXCLUSIVE)
        answer = yield from settle(lambda: self._make(point, write))
        if answer is Answer.EXISTS:
            found = yield from read(self._store, self._name, f"{point}.judge")
            if found.rev != rev:
                msg = f"{self._name} was made by {found.rev.writer} meanwhile; retry"
                raise LostError(msg)
        self._rev = rev

    def take(
        self,
        point: str,
        seen: Record,
        transaction: Transaction,
        sets: Mapping[str, bytes],
        facts: Sequence[Fact] = (),
    ) -> Routine[None]:
        """Become the owner on the condition that nothing moved since the record was read.

        Raises LostError.
        """
        self._epoch = seen.owner.epoch + 1
        self._rev = seen.rev
        owner = Owner(self._instance, self._epoch).to_bytes()
        yield from self.save(point, transaction, {**sets, names.OWNER: owner}, facts)

    def save(
        self,
        point: str,
        transaction: Transaction,
        sets: Mapping[str, bytes] | None = None,
        facts: Sequence[Fact] = (),
        *,
        heed_cancel: bool = False,
    ) -> Routine[None]:
        """Write the transaction as it stands, and more keys with it.

        A write of somebody else that leaves us the owner (a delete that records its wish, a request that
        asks) is taken note of, and ours made again.  Raises LostError when the record has another owner,
        CancelledError when `heed_cancel` and a delete has recorded its wish.
        """
        conditions, fact_sets, fact_removes = of_facts(facts)
        while True:
            token = self._rev.next(self._writer())
            write = Write(
                conditions=(Equals(names.REV, bytes(self._rev)), *conditions),
                sets={
                    names.tx_key(transaction.seq): encode(transaction.to_json()),
                    **fact_sets,
                    **(sets or {}),
                    names.REV: bytes(token),
                },
                removes=fact_removes,
            )
            answer = yield from self._put(point, write)
            if answer is Answer.APPLIED or (yield from self._judge(point, token, heed_cancel=heed_cancel)):
                self._rev = token
                return

    def remove(self, point: str) -> Routine[None]:
        """Remove the whole record, if it is still as we left it.  Absent is success."""
        while True:
            write = Write(conditions=(Equals(names.REV, bytes(self._rev)),), remove_object=True)
            answer = yield from self._put(point, write)
            if answer in (Answer.APPLIED, Answer.MISSING):
                return
            yield from self._judge(point, None, heed_cancel=False)

    def release(
        self, point: str, transaction: Transaction, sets: Mapping[str, bytes] | None = None
    ) -> Routine[None]:
        """Leave the transaction at rest: nobody's, epoch kept.

        Tried once: whoever comes next takes it on by a conditional write, wherever this one ends up.
        """
        write = Write(
            conditions=(Equals(names.REV, bytes(self._rev)),),
            sets={
                names.tx_key(transaction.seq): encode(transaction.to_json()),
                names.OWNER: self.unowned(),
                names.REV: bytes(self._rev.next(self._writer())),
                **(sets or {}),
            },
        )
        yield from act(point, lambda: self._store.write(self._name, write))

    def wish(self, point: str, seen: Record, sets: Mapping[str, bytes]) -> Routine[None]:
        """Leave a word in a record that somebody else owns, if nothing moved since it was read.

        If something did, the word is not left; the caller's next try reads anew.
        """
        token = bytes(seen.rev.next(self._writer()))
        write = Write((Equals(names.REV, bytes(seen.rev)),), {**sets, names.REV: token})
        yield from self._put(point, write)

    def unowned(self) -> bytes:
        """The owner key's value that gives the record up."""
        return Owner(None, self._epoch).to_bytes()

    def _writer(self) -> Writer:
        self._steps += 1
        return Writer(self._instance, f"{self._seq}", f"{self._epoch}-{self._steps}")

    def _put(self, point: str, write: Write) -> Routine[Answer]:
        return settle(lambda: act(point, lambda: self._store.write(self._name, write)))

    def _make(self, point: str, write: Write) -> Routine[Answer]:
        answer = yield from act(point, lambda: self._store.write(self._name, write))
        self.was_making_unknown = self.was_making_unknown or answer is Answer.UNKNOWN
        return answer

    def _judge(self, point: str, token: Rev | None, *, heed_cancel: bool) -> Routine[bool]:
        """After a failed condition: whether the write with this token is there.

        If not, go on from what is there.
        """
        try:
            found = yield from read(self._store, self._name, f"{point}.judge")
        except ObjectMissingError:
            msg = f"{self._name} was removed by somebody else; retry"
            raise LostError(msg) from None
        if found.rev == token:
            return True
        transaction = found.transactions.get(self._seq)
        if (
            found.owner != Owner(self._instance, self._epoch)
            or transaction is None
            or not transaction.state.is_open
        ):
            msg = (
                f"{self._name} was taken over by {found.owner.instance or 'nobody'} (epoch "
                f"{found.owner.epoch}); retry"
            )
            raise LostError(msg)
        if heed_cancel and found.is_cancelled:
            msg = f"{found.request_name} was deleted while it was being created"
            raise CancelledError(msg)
        self._rev = found.rev
        return False


def of_facts(facts: Sequence[Fact]) -> tuple[tuple[Condition, ...], dict[str, bytes], tuple[str, ...]]:
    """Conditions, sets and removes of one write that changes these facts."""
    conditions: list[Condition] = []
    sets: dict[str, bytes] = {}
    removes: list[str] = []
    for fact in facts:
        conditions.append(Absent(fact.key) if fact.expected is None else Equals(fact.key, fact.expected))
        if fact.value is None:
            removes.append(fact.key)
        else:
            sets[fact.key] = fact.value
    return tuple(conditions), sets, tuple(removes)
