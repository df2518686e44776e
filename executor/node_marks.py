"""What nodes say about a volume, in its record: `waymark/node/<node>/head` and `.../tx/<seq>`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from executor.model import Object, Transaction
from omap import names
from omap.codec import decode_object

STAGED = "staged"
UNSTAGED = "unstaged"


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that holds a volume; `is_busy` while an operation of it is open."""

    node: str
    what: str
    is_busy: bool


def holders(keys: Mapping[str, bytes]) -> tuple[Holder, ...]:
    """Every node that has the volume staged or an operation on it open.  Raises CorruptError."""
    found: dict[str, Holder] = {}
    for key, value in sorted(keys.items()):
        parsed = names.parse_node_key(key)
        if parsed is None:
            continue
        node, rest = parsed
        if rest == "head":
            if decode_object(value, key).get("state") == STAGED and node not in found:
                found[node] = Holder(node, STAGED, is_busy=False)
        elif rest.startswith("tx/"):
            transaction = Transaction.from_json(decode_object(value, key))
            if transaction.state.is_open:
                found[node] = Holder(
                    node, f"{transaction.operation} at {transaction.current_stage}", is_busy=True
                )
    return tuple(found.values())


def head_of(keys: Mapping[str, bytes], node: str) -> Object:
    """What one node's last successful transaction left; empty if there was none."""
    key = names.node_head_key(node)
    return decode_object(keys[key], key) if key in keys else {}
