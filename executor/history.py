"""What happened to a subject, read from its transactions.

And its current state, computed by scanning them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from executor.model import Object, SubjectState, Transaction, TransactionState
from omap import names
from omap.codec import JSON, decode_object, encode

TOMBSTONE_BYTES = 4096
"""The most that the transactions in a tombstone may take."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a history; `node` is "" for what a controller did."""

    transaction: Transaction
    node: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """All that is known of a subject, oldest first."""

    uuid: str
    request_name: str
    state: str
    head: Object
    entries: tuple[Entry, ...]


def scan(transactions: Iterable[Transaction]) -> Object:
    """The current state: what the transactions that ended well left, in their order.

    A failed one counts for nothing.  A record's head is a cache of exactly this.
    """
    state, seq = "", 0
    data: dict[str, JSON] = {}
    for transaction in sorted(transactions, key=lambda t: t.seq):
        if transaction.state is TransactionState.DONE:
            data |= transaction.data
            state = transaction.after or state
            seq = transaction.seq
    return {"state": state, "data": data, "seq": seq} if seq else {}


def entries_of(keys: Mapping[str, bytes]) -> tuple[Entry, ...]:
    """Every transaction in a record, the controllers' and the nodes', by the time it began."""
    found = []
    for key, value in keys.items():
        seq, node = names.parse_tx_key(key), ""
        if seq is None:
            parsed = names.parse_node_tx_key(key)
            if parsed is None:
                continue
            node = parsed[0]
        found.append(Entry(Transaction.from_json(decode_object(value, key)), node))
    return tuple(sorted(found, key=lambda entry: (entry.transaction.begun, entry.transaction.seq)))


def tombstone(request_name: str, writer: str, expiry: float, transactions: Iterable[Entry]) -> bytes:
    """What stays of a subject until `expiry`, in seconds since the epoch: last transactions, size points."""
    kept: list[JSON] = []
    points: list[JSON] = []
    used = 0
    ordered = sorted(transactions, key=lambda entry: (entry.transaction.begun, entry.transaction.seq))
    for entry in reversed(ordered):
        transaction = entry.transaction
        if transaction.state is TransactionState.DONE and not entry.node:
            points.insert(0, [transaction.ended, _size_after(transaction)])
        row: JSON = {**transaction.to_json(), "request": {}, "data": {}, "node": entry.node}
        used += len(encode(row)) + 1
        if used <= TOMBSTONE_BYTES:
            kept.insert(0, row)
    return encode(
        {"name": request_name, "writer": writer, "expiry": expiry, "transactions": kept, "points": points}
    )


def _size_after(transaction: Transaction) -> JSON:
    """How many bytes the subject had from then on; one that left its name counts as nothing."""
    has_size = transaction.after in ("", SubjectState.LIVE.value)
    return transaction.data.get("size_bytes") if has_size else 0


def of_tombstone(uuid: str, value: bytes) -> History:
    """The history that a tombstone keeps.  Raises CorruptError."""
    fields = decode_object(value, f"the tombstone of {uuid}")
    rows = fields.get("transactions")
    entries = tuple(
        Entry(Transaction.from_json(row), str(row.get("node", "")))
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    )
    return History(uuid, str(fields.get("name")), "gone", {}, entries)


def tombstone_expiry(uuid: str, value: bytes) -> float:
    """When a tombstone may go, in seconds since the epoch.  Raises CorruptError."""
    expiry = decode_object(value, f"the tombstone of {uuid}").get("expiry")
    return float(expiry) if isinstance(expiry, int | float) else 0.0
