"""Telling the cluster what a node did while nothing waited for it.

The telling holds no key, so that an unreachable cluster stops no work on the node.  Instead the order
protects it:
the node's `rev` in the cluster is read first, then what is kept locally, and the write is conditional on
that `rev`.
Whatever the node tells meanwhile moves the `rev`, so an older head never overwrites a newer one.
"""

from __future__ import annotations

from executor.effects import Routine, act, look
from executor.node_marks import STAGED
from executor.node_record import SPOOL_PREFIX, parse_kept, writer_value
from executor.record import NO_WRITER
from omap import names
from omap.codec import Rev, Writer, encode
from omap.store import Absent, Answer, Condition, Equals, ObjectMissingError, Store, Write


def spooled(local: Store) -> tuple[str, ...]:
    """Every volume with something to tell or to forget, by uuid."""
    found = []
    for name in local.names(names.SubjectKind.VOLUME.value):
        parsed = names.parse_record_name(name)
        if parsed is not None:
            found.append(parsed[1])
    return tuple(found)


def tell(store: Store, local: Store, uuid: str, node: str, plugin: str) -> Routine[bool]:
    """Tell the cluster once what it does not know of a volume; whether it knows all now.

    A volume that is gone wants to know nothing.  Raises the store's errors; nothing is lost by them.
    """
    name = names.record_name(uuid)
    rev_key = names.node_rev_key(node)
    try:
        seen = yield from look("spool.look", lambda: store.read_keys(name, [rev_key, names.WRITER]))
    except ObjectMissingError:
        seen = None
    kept = parse_kept((yield from look("spool.local.read", lambda: local.read(name))))
    if not kept.spooled:
        return True
    if seen is not None:
        told = [kept.transactions[seq] for seq in kept.spooled if seq in kept.transactions]
        before = seen.get(rev_key)
        holder = seen.get(names.WRITER, NO_WRITER)
        writer = Writer(plugin, "spool", str(kept.spooled[-1]))
        rev = Rev.first(writer) if before is None else Rev.parse(before, rev_key).next(writer)
        conditions: list[Condition] = [Absent(rev_key) if before is None else Equals(rev_key, before)]
        sets = {names.node_tx_key(node, each.seq): encode(each.to_json()) for each in told}
        sets[rev_key] = bytes(rev)
        if kept.head:
            sets[names.node_head_key(node)] = encode(kept.head)
        if holder == writer_value(node) and kept.state != STAGED and kept.open_transaction is None:
            conditions.append(Equals(names.WRITER, holder))
            sets[names.WRITER] = NO_WRITER
        write = Write(tuple(conditions), sets)
        answer = yield from act("spool.tell", lambda: store.write(name, write))
        if answer not in (Answer.APPLIED, Answer.MISSING):
            return False
    removes = tuple(f"{SPOOL_PREFIX}{seq}" for seq in kept.spooled)
    yield from act("spool.told", lambda: local.write(name, Write(removes=removes)))
    return True


def forget(local: Store, uuid: str) -> Routine[bool]:
    """Drop what is kept of a volume that is not on this node any more, once the cluster knows all.

    Returns whether it went.
    """
    name = names.record_name(uuid)
    keys = yield from look("spool.local.read", lambda: local.read(name))
    kept = parse_kept(keys)
    if (
        kept.spooled
        or kept.state == STAGED
        or kept.open_transaction is not None
        or kept.data.get("published")
    ):
        return False
    # An operation that begins meanwhile keeps what is there: its number is the next one.
    conditions: list[Condition] = [Absent(names.tx_key(kept.next_seq))]
    if names.HEAD in keys:
        conditions.append(Equals(names.HEAD, keys[names.HEAD]))
    answer = yield from act(
        "spool.forget", lambda: local.write(name, Write(tuple(conditions), remove_object=True))
    )
    return answer is Answer.APPLIED
