"""What is asked of a node while something goes wrong, and how the play goes on to its end.

A caller does what kubelet does: after a crash it asks the next plugin again, after a transient error the same
one, and anything else is the answer.  In the end all is taken off the node, and then nothing may be left.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.errors import OperationError, TransientError
from executor.model import Transaction, TransactionState
from executor.node_record import parse_kept
from executor.store_errors import operation_error
from omap import names
from omap.codec import decode_object
from omap.faults import ApplyLate, Call, CallKind, Crash, Decision, Fault
from omap.store import StoreError, StoreUnavailableError
from tests.executor.audit import audit, leftovers, names_in, records, shards
from tests.node_operations.nodes import HOST, KEYS, LOCAL, OTHER_TARGET, STAGING, TARGET, Node, NodeWorld

MOST_TRIES = 8

NOTES = "instances"
"""What every process notes before its first operation; not a node operation's matter."""

LATER = (1, 3, 8)
"""After how many further calls of anybody a late write comes in."""

Prepare = Callable[[NodeWorld], None]


@dataclass(frozen=True, slots=True)
class Play:
    """`ask` is what is disturbed.

    After the host was restarted, `before_again` is what a caller asks for first.  `fails` is the error that
    the undisturbed play ends with.
    """

    name: str
    prepare: Prepare
    ask: Callable[[Node], object]
    before_again: Callable[[Node], object] = lambda _node: None
    fails: str = ""


@dataclass(slots=True)
class Outcome:
    """The answer, all that lasts, what ended well, the calls of each plugin that was asked, the changes."""

    answer: str
    state: Any
    history: list[list[str]]
    lives: list[list[Call]]
    points: list[str]


class Disturbed:
    """Faults at numbered calls of one life, until it is over."""

    def __init__(self, decisions: Mapping[int, Decision]) -> None:
        self.calls: list[Call] = []
        self.is_over = False
        self._decisions = decisions

    def decide(self, call: Call) -> Decision:
        if self.is_over:
            return Fault.NONE
        self.calls.append(call)
        return self._decisions.get(call.number, Fault.NONE)


def perform(play: Play, *lives: Mapping[int, Decision], reboots: bool = False) -> Outcome:
    """Perform a play; `lives` are the decisions for the first, second, ... plugin.

    With `reboots`, it is the host that ends, not only its plugin.
    """
    with tempfile.TemporaryDirectory() as run:
        world = NodeWorld(pathlib.Path(run))
        play.prepare(world)
        points: list[str] = []
        world.between = points.append
        answer, disturbed, node = _ask(world, play, lives, reboots=reboots)
        for life in disturbed:
            life.is_over = True
        world.cluster.deliver_late()
        node.tell()
        world.between = lambda _point: None
        state, past = summary(world), histories(world)
        assert world.disks.lost == []
        clear_away(world, node)
        return Outcome(answer, state, past, [life.calls for life in disturbed], points)


def _ask(
    world: NodeWorld, play: Play, lives: Sequence[Mapping[int, Decision]], *, reboots: bool
) -> tuple[str, list[Disturbed], Node]:
    disturbed: list[Disturbed] = []
    node: Node | None = None
    for _ in range(MOST_TRIES):
        try:
            if node is None:
                disturbed.append(Disturbed(lives[len(disturbed)] if len(disturbed) < len(lives) else {}))
                node = world.node(faults=disturbed[-1])
                if len(disturbed) > 1 and reboots:
                    play.before_again(node)
            play.ask(node)
        except Crash:
            node = None
            if reboots:
                world.reboot()
        except (OperationError, StoreError) as problem:
            error = operation_error(problem) if isinstance(problem, StoreError) else problem
            if not isinstance(error, TransientError):
                assert node is not None
                return type(error).__name__, disturbed, node
            world.clock.advance(1.0)
        else:
            return "", disturbed, node
    raise AssertionError(f"no end after {MOST_TRIES} tries of {play.name}")


def clear_away(world: NodeWorld, node: Node) -> None:
    """Take the volume off the node and delete it: nothing is left anywhere, in the end not even a name."""
    node.unpublish()
    node.unpublish(OTHER_TARGET)
    node.unstage()
    node.tell()
    assert nothing_on_nodes(world) == []
    controller = world.process("controller")
    controller.delete(world.handle.uuid)
    controller.purge()
    controller.flush()
    audit(world)
    assert records(world) == {}
    assert names_in(world) == {}
    assert leftovers(world) == []
    world.clock.advance(world.periods.tombstone + 1)
    controller.expire()
    assert [key for keys in shards(world).values() for key in keys] == []


def nothing_on_nodes(world: NodeWorld) -> list[object]:
    """Whatever is left on any host or in any state directory."""
    found: list[object] = []
    for name, host in world.hosts().items():
        found += [*host.mounts, *host.mappings, *host.folders, *host.files, *world.kept(name)]
        found += list((world.run_dir(name) / "keys").glob("*"))
    return found


def summary(world: NodeWorld) -> dict[str, Any]:
    """All that lasts, without times, numbers and who did it: the kernel, the state directory, the record."""
    kernel = {
        name: {
            "mounts": sorted((dataclasses.astuple(mount) for mount in host.mounts), key=str),
            "mappings": {
                volume: (
                    each.target.image_name,
                    each.path,
                    each.daemon_alive,
                    each.target.size_bytes,
                    host.disks.filled(each.target),
                )
                for volume, each in host.mappings.items()
            },
            "folders": sorted(host.folders),
            "files": sorted(host.files),
            "keys": sorted(path.name for path in (world.run_dir(name) / "keys").glob("*")),
            "kept": [_kept(keys) for keys in world.kept(name).values()],
        }
        for name, host in world.hosts().items()
    }
    return {"hosts": kernel, "record": _told(world.record())}


def _kept(keys: Mapping[str, bytes]) -> Any:
    kept = parse_kept(keys)
    assert kept.open_transaction is None
    assert kept.spooled == ()
    return _plain(kept.head)


def _told(keys: Mapping[str, bytes]) -> Any:
    heads = {}
    for key, value in sorted(keys.items()):
        parsed = names.parse_node_key(key)
        if parsed is not None and parsed[1] == "head":
            heads[parsed[0]] = _plain(decode_object(value, key))
    formatted = {**decode_object(keys.get(names.FORMAT, b"{}"), names.FORMAT), "boot": ""}
    return heads, formatted, keys.get(names.STATE), keys.get(names.WRITER)


def histories(world: NodeWorld) -> list[list[str]]:
    """The operations that ended well, as the state directories and the record tell them."""
    told = [
        Transaction.from_json(decode_object(value, key))
        for key, value in sorted(world.record().items())
        if names.parse_node_tx_key(key) is not None
    ]
    assert not [each for each in told if each.state.is_open]
    kept = [
        parse_kept(keys).transactions.values() for name in world.hosts() for keys in world.kept(name).values()
    ]
    return [
        [each.operation for each in past if each.state is TransactionState.DONE] for past in (told, *kept)
    ]


VARYING = {"boot", "was_mapped", "was_mounted", "was_bound", "has_remains", "format", "size_bytes"}
"""Data that tell how it went, not how things are."""


def _plain(head: Mapping[str, Any]) -> str:
    data = {key: value for key, value in head.get("data", {}).items() if key not in VARYING}
    data.setdefault("published", {})
    return json.dumps({"state": head.get("state"), "data": data}, sort_keys=True)


def disturbances(calls: Sequence[Call]) -> Iterator[Mapping[int, Decision]]:
    """Everything that can go wrong at one call of a life.

    A write to the cluster may get no reply, get lost, or come late.  A tool of the host or its disk may fail
    with or without effect.
    """
    for number, call in enumerate(calls, 1):
        if call.name == NOTES:
            continue
        yield {number: Fault.CRASH_BEFORE}
        if call.name.startswith(KEYS):
            if call.kind is CallKind.WRITE:
                yield {number: Fault.CRASH_AFTER}
            continue
        if call.kind is not CallKind.WRITE:
            yield {number: StoreUnavailableError("no answer")}
            continue
        yield from ({number: each} for each in (Fault.CRASH_AFTER, Fault.LOSE_REPLY, Fault.DROP))
        if call.name.startswith((LOCAL, HOST)):
            continue
        comes_late: list[Decision] = [*(ApplyLate(later) for later in LATER), Fault.APPLY_LATE]
        for late in comes_late:
            yield {number: late}
            yield {number: late, number + 1: Fault.CRASH_BEFORE}


def ends(calls: Sequence[Call]) -> Iterator[Mapping[int, Decision]]:
    """The end of a life before and after each of its calls that change something."""
    for number, call in enumerate(calls, 1):
        if call.kind is CallKind.WRITE:
            yield {number: Fault.CRASH_BEFORE}
            yield {number: Fault.CRASH_AFTER}


def interrupted(prepare: Prepare, ask: Callable[[Node], object], point: str) -> Prepare:
    """The same preparation, and then something that a plugin was killed in, before this change of its."""

    def prepared(world: NodeWorld) -> None:
        prepare(world)
        world.kill_at(point, ask)

    return prepared


def fresh(world: NodeWorld) -> None:
    """A volume that no node ever had."""
    world.with_volume()


def staged(world: NodeWorld) -> None:
    """It is staged."""
    world.with_volume().node().stage()


def published(world: NodeWorld) -> None:
    """It is staged and published."""
    staged(world)
    world.node().publish()


def used_before(world: NodeWorld) -> None:
    """It was staged, and taken off again."""
    staged(world)
    node = world.node()
    node.unstage(STAGING)
    node.unpublish(TARGET)
    node.tell()
