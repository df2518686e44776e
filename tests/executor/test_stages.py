"""Operations of several stages: their order, their resumption from any mark, their undo, and what facts hold.

The stages build a small tower in a place of their own; it outlives processes as images do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from csi.session import DriverSession
from executor.change import Change
from executor.crashpoints import CrashPoint, change_points, creation_points, listed, undo_points
from executor.creation import Creation
from executor.errors import ExhaustedError, InvalidError, PermanentError, UnavailableError
from executor.model import (
    Done,
    Fact,
    Finding,
    Intention,
    Operation,
    Policy,
    Stage,
    SubjectState,
    TransactionState,
    Verdict,
    Work,
)
from executor.record import Record
from omap import names
from omap.codec import CorruptError
from omap.faults import Crash
from omap.store import StoreFullError
from tests.executor.audit import check_record, names_in, records
from tests.executor.world import RBD, Process, World

STONES = ("base", "shaft", "top")
FACT = names.FORMAT


@dataclass
class Tower:
    """What the stages build: which stones lie, and every touch in its order."""

    stones: set[str] = field(default_factory=set)
    cracked: set[str] = field(default_factory=set)
    touches: list[str] = field(default_factory=list)
    refuse: dict[str, Exception] = field(default_factory=dict)
    needless: set[str] = field(default_factory=set)

    def touch(self, what: str) -> None:
        self.touches.append(what)
        if what in self.refuse:
            raise self.refuse[what]

    def stage(self, name: str) -> Stage[DriverSession]:
        fact = Fact(FACT, None, b"intended") if name == "shaft" else None
        fixed = Fact(FACT, b"intended", b"there") if name == "shaft" else None

        def prepare(_work: Work[DriverSession]) -> Intention:
            self.touch(f"look {name}")
            return Intention({f"{name}_seen": 1}, (fact,) if fact else (), skip=name in self.needless)

        def probe(_work: Work[DriverSession]) -> Finding:
            self.touch(f"probe {name}")
            if name in self.cracked:
                return Finding(Verdict.HALF_MADE)
            facts = (fixed,) if fixed else ()
            there = name in self.stones
            return Finding(Verdict.DONE, {name: "found"}, facts) if there else Finding(Verdict.ABSENT)

        def apply(_work: Work[DriverSession]) -> Done:
            assert name not in self.stones
            assert name not in self.cracked
            self.touch(f"lay {name}")
            self.stones.add(name)
            return Done({name: "laid"}, (fixed,) if fixed else ())

        def undo(_work: Work[DriverSession]) -> Done:
            self.touch(f"take {name}")
            self.stones.discard(name)
            return Done()

        def repair(_work: Work[DriverSession]) -> None:
            self.touch(f"mend {name}")
            self.cracked.discard(name)

        return Stage(name, probe, apply, undo, prepare if name != "base" else None, repair)

    def building(self) -> Operation[DriverSession]:
        stages = tuple(map(self.stage, STONES))
        return Operation("build", 1, Policy.REVERT, stages, SubjectState.CREATING, SubjectState.LIVE)

    def raising(self) -> Operation[DriverSession]:
        """A change that keeps the subject's state, as an expansion does."""
        return Operation("raise", 1, Policy.KEEP, tuple(self.stage(name) for name in ("spire", "vane")))


class Site:
    """A world in which one tower is built."""

    def __init__(self) -> None:
        self.tower = Tower()
        operations = {("build", 1): self.tower.building(), ("raise", 1): self.tower.raising()}
        self.world = World(operations=operations)

    def build(self, process: Process, between: Callable[[str], None] | None = None) -> Mapping[str, object]:
        session: DriverSession = process.session
        creation: Creation[DriverSession] = Creation(
            operation=self.tower.building(),
            session=session,
            name="tower",
            journal=RBD,
            home=RBD,
            request={"stones": 3},
            plan=lambda _uuid: {"stones": 3},
            difference=lambda recorded: "" if recorded.get("stones") == 3 else "stones",
            check=lambda: None,
        )
        return process.run(creation, between)

    def heighten(self, process: Process) -> Mapping[str, object]:
        session: DriverSession = process.session
        change = Change(self.tower.raising(), session, self.uuid, RBD, {"by": 2}, SubjectState.LIVE)
        return process.run(change)

    @property
    def record(self) -> Record:
        (record,) = records(self.world).values()
        return record

    @property
    def uuid(self) -> str:
        ((_, uuid),) = records(self.world)
        return uuid

    def check_nothing_is_left(self) -> None:
        assert self.tower.stones == set()
        assert records(self.world) == {}
        assert names_in(self.world) == {}


@pytest.fixture
def site() -> Site:
    return Site()


def end_at(point: str, *, after: bool = False) -> Callable[[str], None]:
    """Ends the process right before a change, or at the one that follows it."""
    reached: list[str] = []

    def between(at: str) -> None:
        if (at == point and not after) or point in reached:
            raise Crash(at)
        reached.append(at)

    return between


BUILD_POINTS = creation_points(Tower().building())


def test_stages_run_in_order_each_after_its_intent(site: Site) -> None:
    process = site.world.process()
    result = site.build(process)
    assert site.tower.touches == ["lay base", "look shaft", "lay shaft", "look top", "lay top"]
    assert [each for each in process.points if not each.startswith("instance.")] == BUILD_POINTS
    assert result["top"] == "laid"
    assert result["top_seen"] == 1
    assert site.record.keys[FACT] == b"there"
    check_record(site.record)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", BUILD_POINTS)
def test_it_is_gone_on_with_from_any_mark(site: Site, point: str, *, after: bool) -> None:
    if (point, after) != (BUILD_POINTS[-1], True):
        with pytest.raises(Crash):
            site.build(site.world.process(), end_at(point, after=after))
    result = site.build(site.world.process())
    assert result["top"] in {"laid", "found"}
    assert site.tower.stones == set(STONES)
    assert [each for each in site.tower.touches if each.startswith("lay")] == [
        f"lay {name}" for name in STONES
    ]
    assert site.record.keys[FACT] == b"there"
    check_record(site.record)


def test_an_intent_is_durable_before_its_effect(site: Site) -> None:
    """At the moment of each effect the record says that it was intended."""
    seen: dict[str, object] = {}

    def between(point: str) -> None:
        if point.endswith(".apply"):
            transaction = site.record.open_transaction
            assert transaction is not None
            seen[point] = transaction.current_stage

    site.build(site.world.process(), between)
    assert seen == {f"build.{name}.apply": name for name in STONES}


@pytest.mark.parametrize("stone", STONES)
def test_what_is_half_made_is_cleared_away_first(site: Site, stone: str) -> None:
    with pytest.raises(Crash):
        site.build(site.world.process(), end_at(f"build.{stone}.apply"))
    site.tower.cracked.add(stone)
    site.build(site.world.process())
    assert f"mend {stone}" in site.tower.touches
    assert site.tower.stones == set(STONES)


def test_a_stage_with_nothing_to_do_makes_no_effect(site: Site) -> None:
    site.tower.needless = {"shaft", "top"}
    site.build(site.world.process())
    assert site.tower.stones == {"base"}
    (transaction,) = site.record.transactions.values()
    assert [mark.value for mark in transaction.marks.values()] == ["done"] * 3
    assert site.record.keys[FACT] == b"intended"


@pytest.mark.parametrize("stone", STONES)
def test_what_fails_for_good_is_undone_in_reverse(site: Site, stone: str) -> None:
    site.tower.refuse = {f"lay {stone}": ExhaustedError("no stones left")}
    process = site.world.process()
    with pytest.raises(ExhaustedError, match="no stones left"):
        site.build(process)
    begun = STONES[: STONES.index(stone) + 1]
    assert [each for each in site.tower.touches if each.startswith("take")] == [
        f"take {name}" for name in reversed(begun)
    ]
    reached = [point for point in process.points if point in undo_points(site.tower.building())]
    not_begun = {f"build.{name}.undo" for name in STONES if name not in begun}
    assert reached == [point for point in undo_points(site.tower.building()) if point not in not_begun]
    site.check_nothing_is_left()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", undo_points(Tower().building())[:-1])
def test_an_undo_is_gone_on_with_too(site: Site, point: str, *, after: bool) -> None:
    site.tower.refuse = {"lay top": ExhaustedError("no stones left")}
    with pytest.raises(Crash):
        site.build(site.world.process(), end_at(point, after=after))
    with pytest.raises(ExhaustedError):
        site.build(site.world.process())
    last = site.world.process()
    last.recover()
    site.check_nothing_is_left()


@pytest.mark.parametrize("problem", [UnavailableError("away"), ValueError("odd"), StoreFullError("full")])
@pytest.mark.parametrize("stone", STONES)
def test_an_undo_that_fails_is_told_and_taken_up_again(site: Site, stone: str, problem: Exception) -> None:
    site.tower.refuse = {"lay top": ExhaustedError("no stones left"), f"take {stone}": problem}
    process = site.world.process()
    with pytest.raises(UnavailableError, match=r"no stones left.*not cleared away yet") as told:
        site.build(process)
    assert "odd" not in str(told.value)
    assert site.record.owner.instance is None
    transaction = site.record.open_transaction
    assert transaction is not None
    assert transaction.state is TransactionState.UNDOING
    del site.tower.refuse[f"take {stone}"]
    process.recover()
    site.check_nothing_is_left()


@pytest.mark.parametrize("problem", [UnavailableError("away"), ValueError("odd"), CorruptError("broken")])
def test_a_passing_fault_leaves_it_at_rest_with_what_is_done(site: Site, problem: Exception) -> None:
    site.tower.refuse = {"lay top": problem}
    process = site.world.process()
    with pytest.raises(UnavailableError):
        site.build(process)
    assert site.record.owner.instance is None
    assert site.tower.stones == {"base", "shaft"}
    site.tower.refuse = {}
    site.build(site.world.process("b"))
    assert [each for each in site.tower.touches if each == "lay base"] == ["lay base"]


def test_a_plan_that_the_record_does_not_know_is_not_guessed(site: Site) -> None:
    with pytest.raises(Crash):
        site.build(site.world.process(), end_at("build.top.apply"))
    shorter = replace(site.tower.building(), stages=site.tower.building().stages[:2])
    site.world.operations = {("build", 1): shorter}
    process = site.world.process()
    before = site.record.keys
    with pytest.raises(UnavailableError, match="has no stage 'top'"):
        site.build(process)
    assert site.record.keys == before
    assert site.tower.stones == {"base", "shaft"}


# Changes that keep what was


def built(site: Site) -> Process:
    process = site.world.process()
    site.build(process)
    process.flush()
    return process


def test_a_change_leaves_the_state_and_adds_to_the_data(site: Site) -> None:
    process = built(site)
    result = site.heighten(process)
    assert result["vane"] == "laid"
    assert result["top"] == "laid"
    assert site.record.state is SubjectState.LIVE
    assert site.record.head_data["spire"] == "laid"
    check_record(site.record)
    raised = [point for point in process.points if point.startswith("raise.")]
    assert raised == change_points(site.tower.raising())


def test_a_failed_change_is_told_beside_an_unchanged_state(site: Site) -> None:
    process = built(site)
    before = site.record.head
    site.tower.refuse = {"lay spire": InvalidError("too high")}
    with pytest.raises(InvalidError):
        site.heighten(process)
    assert site.record.head == before
    assert site.record.state is SubjectState.LIVE
    check_record(site.record)
    *_, attempt = site.record.transactions.values()
    assert attempt.state is TransactionState.UNCHANGED
    assert attempt.failure is not None
    assert attempt.failure.text == "too high"


def test_a_change_that_has_changed_something_is_never_called_unchanged(site: Site) -> None:
    process = built(site)
    site.tower.refuse = {"lay vane": InvalidError("too high")}
    with pytest.raises(UnavailableError, match="only goes on"):
        site.heighten(process)
    transaction = site.record.open_transaction
    assert transaction is not None
    assert transaction.state is TransactionState.OPEN
    site.tower.refuse = {}
    assert site.heighten(site.world.process())["vane"] == "laid"
    check_record(site.record)


def test_a_change_of_what_is_in_another_state_is_refused(site: Site) -> None:
    process = built(site)
    session: DriverSession = process.session
    change = Change(site.tower.raising(), session, site.uuid, RBD, {"by": 2}, SubjectState.TRASHED)
    with pytest.raises(PermanentError, match="is live"):
        process.run(change)


def test_a_change_of_what_is_not_there_has_nothing_to_do(site: Site) -> None:
    process = site.world.process()
    session: DriverSession = process.session
    uuid = site.world.ids.uuid()
    assert process.run(Change(site.tower.raising(), session, uuid, RBD, {}, SubjectState.LIVE)) == {}


# Crash points


def test_a_crash_point_is_read_from_one_word() -> None:
    assert CrashPoint.parse("build.top.apply:after").point == "build.top.apply"
    assert CrashPoint.parse("build.top.apply:before:stop").how.name == "SIGSTOP"
    for wrong in ("", "build", "build:between", "build:after:explode", ":after"):
        with pytest.raises(ValueError, match="before,after"):
            CrashPoint.parse(wrong)
    CrashPoint.parse("build.top.apply:after").reach("build.top.apply", "before")


def test_points_are_listed_once_in_order() -> None:
    assert listed([["a", "b"], ["b", "c"]]) == ("a", "b", "c")


@pytest.mark.parametrize(("when", "expected"), [("before", []), ("after", ["lay top"])])
def test_a_process_ends_at_its_crash_point(when: str, expected: list[str]) -> None:
    script = textwrap.dedent(
        """
        import json, sys, threading
        from executor.crashpoints import CrashPoint
        from executor.drive import Driver
        from executor.effects import act

        def lay():
            print(json.dumps("lay top"), flush=True)

        driver = Driver(threading.Event(), CrashPoint.parse(sys.argv[1]))
        driver.drive(act("build.base.apply", lambda: None))
        driver.drive(act("build.top.apply", lay))
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", script, f"build.top.apply:{when}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr
    assert [json.loads(line) for line in ended.stdout.splitlines()] == expected
