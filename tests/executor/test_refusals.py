"""Errors of every kind at every call: a lasting answer is given only where nothing is left behind."""

from __future__ import annotations

import pytest

from executor.errors import OperationError, PermanentError, TransientError
from executor.store_errors import operation_error
from omap.codec import CorruptError
from omap.faults import Crash, FaultsAt
from omap.store import (
    AccessDeniedError,
    PlaceMissingError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.executor.audit import PLACES, audit, images_found, names_in, records
from tests.executor.scenarios import SCENARIOS, Scenario, empty, settle
from tests.executor.world import Process, World

ERRORS = (StoreFullError, AccessDeniedError, StoreUnavailableError, PlaceMissingError, CorruptError)

by_error = pytest.mark.parametrize("error", ERRORS)

CREATES = tuple(each for each in SCENARIOS if each.ask == Process.create and "refused" not in each.name)

(DELETE,) = (each for each in SCENARIOS if each.name == "delete")


def calls_of(scenario: Scenario) -> int:
    world = World()
    scenario.prepare(world)
    faults = FaultsAt()
    scenario.ask(world.process(faults=faults))
    return len(faults.calls)


@by_error
@pytest.mark.parametrize("scenario", CREATES, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_a_create_is_refused_for_good_only_where_nothing_is_left(
    scenario: Scenario, error: type[StoreError]
) -> None:
    """The error comes at one call and at all of its kind that follow, as a full pool or lost caps are."""
    for number in range(1, calls_of(scenario) + 1):
        world = World()
        scenario.prepare(world)
        process = attempt(world, number, error)
        if process is not None:
            answer = outcome(process)
            if isinstance(answer, PermanentError):
                assert names_in(world) == {}, f"call {number}: {answer!r}"
                assert records(world) == {}
                assert [images_found(world, place) for place in PLACES] == [{}, {}, {}]
            assert answer is None or isinstance(answer, (PermanentError, TransientError)), repr(answer)
        last = world.process()
        last.create()
        last.flush()
        settle(world, last)
        audit(world)
        assert len(records(world)) == 1
        empty(world, last)


def attempt(world: World, number: int, error: type[StoreError]) -> Process | None:
    try:
        return world.process(faults=FaultsAt({each: error("refused") for each in range(number, number + 60)}))
    except (OperationError, StoreError):
        return None


def outcome(process: Process) -> BaseException | None:
    """What a create of this process answers, as the executor words it."""
    try:
        process.create()
    except StoreError as error:
        return operation_error(error)
    except (OperationError, Crash) as error:
        return error
    return None


@by_error
def test_a_delete_goes_on_after_any_error(error: type[StoreError]) -> None:
    for number in range(1, calls_of(DELETE) + 1):
        world = World()
        first = world.process()
        first.create()
        first.flush()
        ((_, uuid),) = records(world)
        try:
            process = world.process(faults=FaultsAt({number: error("refused")}))
            process.delete(uuid)
        except (OperationError, StoreError):
            process = world.process()
            process.delete(uuid)
        process.flush()
        settle(world, process)
        audit(world)
        assert names_in(world) == {}
        empty(world, process)
