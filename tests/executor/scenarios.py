"""The scenarios whose every call is disturbed, and how one of them is played to its end.

A scenario prepares a world undisturbed, then asks for something.  What a caller does in the face of faults
is always the same: after a crash a new process is started and asked again; after a transient error the same
process is asked again; anything else is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csi.session import DriverSession
from executor.errors import OperationError, TransientError
from executor.operation_executor import Request
from omap.faults import ApplyLate, Call, CallKind, Crash, Decision, Fault
from omap.store import StoreError, StoreFullError
from tests.executor.audit import (
    PLACES,
    audit,
    images_found,
    leftovers,
    names_in,
    records,
    result_of,
    shards,
    summary,
)
from tests.executor.world import GIB, Process, World

Refusal = Callable[[Call], StoreError | None]

MOST_TRIES = 12

LATER = (1, 3, 8, 21)
"""After how many further calls of anybody a late write comes in."""

LOCAL_NOTES = "instances"
"""The object of the state directory."""


def nothing(_call: Call) -> None:
    """No refusals."""


def full_for(beginning: str) -> Refusal:
    """A cluster too full to make objects whose names begin so."""

    def refuse(call: Call) -> StoreError | None:
        if call.write is None or call.write.remove_object or not call.write.sets:
            return None
        return StoreFullError("the pool is full") if call.name.startswith(beginning) else None

    return refuse


class Disturbed:
    """Faults at numbered calls of one process, over the refusals that hold for all."""

    def __init__(self, decisions: Mapping[int, Decision], refuse: Refusal) -> None:
        self.calls: list[Call] = []
        self.is_over = False
        self._decisions = decisions
        self._refuse = refuse

    def decide(self, call: Call) -> Decision:
        if self.is_over:
            return Fault.NONE
        self.calls.append(call)
        return self._refuse(call) or self._decisions.get(call.number, Fault.NONE)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`ask` is what is disturbed; `refuse` holds for every process that is asked."""

    name: str
    ask: Callable[[Process], Any]
    prepare: Callable[[World], None] = lambda _world: None
    refuse: Refusal = nothing


@dataclass(slots=True)
class Outcome:
    """What came of one play.

    `lives` are the calls of each process that was asked, `points` all changes made.
    """

    answer: str
    summary: Any
    lives: Sequence[Sequence[Call]]
    points: Sequence[str]


def play(scenario: Scenario, *lives: Mapping[int, Decision]) -> Outcome:
    """Play a scenario; `lives` are the decisions for the first, second, ... process.

    Ends with the audits.
    """
    world = World()
    scenario.prepare(world)
    disturbed: list[Disturbed] = []
    points: list[str] = []
    process: Process | None = None
    answer = ""
    for _ in range(MOST_TRIES):
        try:
            if process is None:
                decisions = lives[len(disturbed)] if len(disturbed) < len(lives) else {}
                disturbed.append(Disturbed(decisions, scenario.refuse))
                process = world.process(faults=disturbed[-1])
                process.points = points
            answer = result_of(scenario.ask(process) or {})
            break
        except Crash:
            process = None
        except TransientError:
            world.clock.advance(1.0)
        except OperationError as error:
            answer = type(error).__name__
            check_final(world, error)
            break
    else:
        raise AssertionError(f"no end after {MOST_TRIES} tries")
    assert process is not None
    disturbed[-1].is_over = True
    process.flush()
    world.cluster.deliver_late()
    last = process
    settle(world, last)
    audit(world)
    assert leftovers(world) == []
    outcome = Outcome(answer, summary(world), [each.calls for each in disturbed], list(points))
    empty(world, last)
    return outcome


def settle(world: World, process: Process) -> None:
    """Recovery's rounds, until nobody's leavings are left."""
    process.recover()
    process.flush()
    world.clock.advance(world.periods.abandonment + 1)
    process.recover()
    process.flush()


def empty(world: World, process: Process) -> None:
    """Delete everything and let all tombstones expire: then nothing at all may be left."""
    for place, uuid in records(world):
        process.delete(uuid, place.pool)
    process.purge()
    process.flush()
    audit(world)
    assert names_in(world) == {}
    assert records(world) == {}
    world.clock.advance(world.periods.tombstone + 1)
    process.expire()
    assert [key for keys in shards(world).values() for key in keys] == []


def check_final(world: World, error: OperationError) -> None:
    """A final answer of a create leaves nothing of it behind."""
    assert names_in(world) == {}, f"a name after {error}"
    assert [images_found(world, place) for place in PLACES] == [{}, {}, {}], f"an image after {error}"


# What is asked


def _created(world: World) -> None:
    process = world.process()
    process.create()
    process.flush()


def _trashed(world: World) -> None:
    _created(world)
    process = world.process()
    process.delete(uuid_of(world))
    process.flush()


def _buried(world: World) -> None:
    _trashed(world)
    process = world.process()
    process.purge()
    process.flush()
    world.clock.advance(world.periods.tombstone + 1)


def _interrupted_at(point: str) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        process = world.process()
        _die_at(process, process.creation(), point)

    return prepare


def _expansion_interrupted_at(point: str) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        _created(world)
        process = world.process()
        _die_at(process, process.expansion(uuid_of(world), 2 * GIB), point)

    return prepare


def _die_at(process: Process, request: Request[DriverSession], point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Crash(point)

    try:
        process.run(request, die)
    except Crash:
        return
    raise AssertionError(f"{point} was not reached")


def uuid_of(world: World) -> str:
    """The uuid of the only record."""
    (uuid,) = {uuid for _, uuid in records(world)}
    return uuid


def _delete(process: Process) -> None:
    for _, uuid in records(process.world):
        process.delete(uuid)


def _expand(process: Process) -> Any:
    return process.expand(uuid_of(process.world), 2 * GIB)


def _abandoned(process: Process) -> None:
    process.recover()
    process.world.clock.advance(process.world.periods.abandonment + 1)
    process.recover()
    process.flush()


def _purge(process: Process) -> None:
    process.purge()
    process.flush()


def _expire(process: Process) -> None:
    process.expire()
    process.expire()  # what got no answer is met again in the next round


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("create", Process.create),
    Scenario("create refused at once", Process.create, refuse=full_for("rbd_directory")),
    Scenario("create refused half-way", Process.create, refuse=full_for("rbd_header")),
    Scenario("create refused at its record", Process.create, refuse=full_for("csi.volume.")),
    Scenario("delete", _delete, _created),
    Scenario("expand", _expand, _created),
    Scenario("purge", _purge, _trashed),
    Scenario("expiry", _expire, _buried),
    *(
        Scenario(f"create resumed at {point}", Process.create, _interrupted_at(f"create_volume.{point}"))
        for point in ("claim", "record", "image.apply", "commit")
    ),
    *(
        Scenario(f"delete of a create stopped at {point}", _delete, _interrupted_at(f"create_volume.{point}"))
        for point in ("image.apply", "commit")
    ),
    *(
        Scenario(f"{name} after an expansion stopped at {point}", ask, _expansion_interrupted_at(point))
        for point in ("expand_volume.record", "expand_volume.resize.apply", "expand_volume.commit")
        for name, ask in (("delete", _delete), ("expand", _expand), ("recovery", _abandoned))
    ),
    *(
        Scenario(f"abandonment at {point}", _abandoned, _interrupted_at(f"create_volume.{point}"))
        for point in ("record", "image.apply", "commit")
    ),
)


def disturbances(calls: Sequence[Call]) -> Iterator[Mapping[int, Decision]]:
    """Everything that can go wrong at one call of a life.

    Ends of the process between two reads all leave the same behind, so one of them stands for the row.  A
    write's effect that comes late does so while the same process goes on, or after the end of the process, at
    several later moments.  The state directory is on a local disk: nothing comes late there.
    """
    before = CallKind.WRITE
    for number, call in enumerate(calls, 1):
        if CallKind.WRITE in {call.kind, before}:
            yield {number: Fault.CRASH_BEFORE}
        before = call.kind
        if call.kind is not CallKind.WRITE:
            continue
        yield from ({number: decision} for decision in (Fault.CRASH_AFTER, Fault.LOSE_REPLY, Fault.DROP))
        if call.name == LOCAL_NOTES:
            continue
        lates: tuple[Decision, ...] = (*(ApplyLate(calls) for calls in LATER), Fault.APPLY_LATE)
        for late in lates:
            yield {number: late}
            yield {number: late, number + 1: Fault.CRASH_BEFORE}
