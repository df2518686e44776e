"""Telling the cluster what a node did while nothing waited for it.

The telling holds no key, so that an unreachable cluster stops no work on the node.  Instead the order
protects it: the node's `rev` in the cluster is read first, then what is kept locally, and the write is
conditional on that `rev`.  Whatever the node tells meanwhile moves the `rev`, so an older head never
overwrites a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping

from executor.effects import Routine, act, look
from executor.model import TransactionState
from executor.node_marks import STAGED, UNSTAGED, head_of
from executor.node_record import SPOOL_PREFIX, Kept, forgotten, parse_kept, writer_value
from executor.record import NO_WRITER
from omap import names
from omap.codec import Rev, Writer, encode
from omap.store import Absent, Answer, Condition, Equals, ObjectMissingError, PlaceMissingError, Store, Write


def spooled(local: Store) -> tuple[str, ...]:
    """Every volume with something to tell or to forget, by uuid."""
    found = []
    for name in local.names(names.SubjectKind.VOLUME.value):
        parsed = names.parse_record_name(name)
        if parsed is not None:
            found.append(parsed[1])
    return tuple(found)


def tell(store: Store | None, local: Store, uuid: str, node: str, plugin: str) -> Routine[bool]:
    """Tell the cluster once what it does not know of a volume; whether it knows all now.

    A volume that is gone wants to know nothing; `store` is None when even its place is.  Raises the store's
    errors; nothing is lost by them.
    """
    name = names.record_name(uuid)
    seen = None
    if store is not None:
        seen = yield from _seen(store, name, node)
    kept = parse_kept((yield from look("spool.local.read", lambda: local.read(name))))
    if not kept.spooled:
        return True
    if store is not None and seen is not None:
        write = _telling(kept, seen, node, plugin)
        answer = yield from act("spool.tell", lambda: store.write(name, write))
        if answer not in (Answer.APPLIED, Answer.MISSING):
            return False
    removes = tuple(f"{SPOOL_PREFIX}{seq}" for seq in kept.spooled)
    answer = yield from act("spool.told", lambda: local.write(name, Write(removes=removes)))
    return answer is Answer.APPLIED


def _seen(store: Store, name: str, node: str) -> Routine[Mapping[str, bytes] | None]:
    try:
        said = yield from look("spool.look", lambda: store.read(name, prefix=names.node_prefix(node)))
        return {**said, **(yield from look("spool.look", lambda: store.read_keys(name, [names.WRITER])))}
    except (ObjectMissingError, PlaceMissingError):
        return None


def _telling(kept: Kept, seen: Mapping[str, bytes], node: str, plugin: str) -> Write:
    """The write that tells it all, on the condition that the node told nothing else meanwhile."""
    rev_key, head_key = names.node_rev_key(node), names.node_head_key(node)
    before, holder = seen.get(rev_key), seen.get(names.WRITER, NO_WRITER)
    writer = Writer(plugin, "spool", str(kept.spooled[-1]))
    rev = Rev.first(writer) if before is None else Rev.parse(before, rev_key).next(writer)
    conditions: list[Condition] = [Absent(rev_key) if before is None else Equals(rev_key, before)]
    told = [kept.transactions[seq] for seq in kept.spooled]
    removes: tuple[str, ...] = ()
    sets: dict[str, bytes] = {}
    if kept.open_transaction is None:
        # While one is open its own writes may be ahead of the local head; its end is told in its turn.
        state = kept.state or str(head_of(seen, node).get("state", ""))
        if kept.state:
            sets[head_key] = encode(kept.head)
        elif _is_taken_back(kept, seen, node):
            removes, state = (head_key,), ""
        if kept.state == UNSTAGED:
            told += forgotten(seen, node, kept.transactions, told[-1].ended or told[-1].begun)
        if holder == writer_value(node) and state != STAGED:
            conditions.append(Equals(names.WRITER, holder))
            sets[names.WRITER] = NO_WRITER
    sets |= {names.node_tx_key(node, each.seq): encode(each.to_json()) for each in told}
    sets[rev_key] = bytes(rev)
    return Write(tuple(conditions), sets, removes)


def _is_taken_back(kept: Kept, seen: Mapping[str, bytes], node: str) -> bool:
    """Whether the head in the cluster was left by a transaction that was taken back after it was told."""
    seq = head_of(seen, node).get("seq")
    left = kept.transactions.get(seq) if isinstance(seq, int) else None
    return left is not None and left.state is not TransactionState.DONE


def forget(local: Store, uuid: str) -> Routine[bool]:
    """Drop what is kept of a volume that is not on this node any more, once the cluster knows all.

    Returns whether it went.
    """
    name = names.record_name(uuid)
    keys = yield from look("spool.local.read", lambda: local.read(name))
    kept = parse_kept(keys)
    if not kept.is_over:
        return False
    # An operation that begins meanwhile keeps what is there: its number is the next one.
    conditions: list[Condition] = [Absent(names.tx_key(kept.next_seq))]
    if names.HEAD in keys:
        conditions.append(Equals(names.HEAD, keys[names.HEAD]))
    answer = yield from act(
        "spool.forget", lambda: local.write(name, Write(tuple(conditions), remove_object=True))
    )
    return answer is Answer.APPLIED
