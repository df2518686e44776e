"""Every call of every operation is disturbed in every way; the retry must end as if nothing had happened.

Whatever the disturbance: the same answer, the same state, nothing left over (`audit`), and after deleting all
and letting the tombstones expire nothing at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pytest

from csi.operations import create_volume, delete_volume, expand_volume, purge_volume
from executor.crashpoints import change_points, creation_points, undo_points
from omap.faults import Decision, Fault
from tests.executor.scenarios import SCENARIOS, Outcome, Scenario, disturbances, play

ENTERING = {f"instance.{what}" for what in ("note", "address", "taken", "fence", "barrier", "fenced")}
"""What a process does in each place before anything else."""

UNDISTURBED = {
    "create": creation_points(create_volume.OPERATION),
    "delete": change_points(delete_volume.OPERATION),
    "expand": change_points(expand_volume.OPERATION),
    "purge": change_points(purge_volume.OPERATION),
    "create refused half-way": [
        *creation_points(create_volume.OPERATION)[:-1],
        *undo_points(create_volume.OPERATION),
    ],
}

RESUMING = {
    "create_volume.adopt.open",
    "create_volume.adopt",
    "create_volume.image.repair",
    "delete_volume.adopt.open",
    "delete_volume.adopt",
    "expand_volume.adopt.open",
    "expand_volume.adopt",
    "purge_volume.adopt.open",
    "purge_volume.adopt",
    "recovery.tombstone",
}

by_name = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))


@by_name
def test_one_disturbance_at_any_call_changes_nothing(scenario: Scenario) -> None:
    undisturbed = play(scenario)
    writes = [call for call in undisturbed.lives[0] if call.write is not None]
    plays = 0
    for disturbance in disturbances(undisturbed.lives[0]):
        same(scenario, undisturbed, disturbance)
        plays += 1
    assert plays > 3 * len(writes) > 3


@by_name
def test_two_ends_one_after_the_other_change_nothing(scenario: Scenario) -> None:
    """The process ends at a call, and its successor at one of its own."""
    undisturbed = play(scenario)
    for first in ends_at_writes(undisturbed):
        second_life = play(scenario, first).lives[1:]
        writes = [number for number, call in enumerate(itertools.chain(*second_life), 1) if call.write]
        for number in writes:
            same(scenario, undisturbed, first, {number: Fault.CRASH_AFTER})


@pytest.mark.parametrize("name", UNDISTURBED)
def test_the_points_of_an_operation_are_all_known(name: str) -> None:
    (scenario,) = (each for each in SCENARIOS if each.name == name)
    reached = [point for point in play(scenario).points if point not in ENTERING]
    assert reached == UNDISTURBED[name]


def test_no_point_is_reached_that_no_list_names() -> None:
    known = ENTERING | RESUMING | {point for points in UNDISTURBED.values() for point in points}
    reached: set[str] = set()
    for scenario in SCENARIOS:
        undisturbed = play(scenario)
        reached.update(undisturbed.points)
        for first in ends_at_writes(undisturbed):
            reached.update(play(scenario, first).points)
    assert reached == known


def ends_at_writes(outcome: Outcome) -> Iterator[Mapping[int, Decision]]:
    """The end of the first process right after each of its writes."""
    for number, call in enumerate(outcome.lives[0], 1):
        if call.write is not None:
            yield {number: Fault.CRASH_AFTER}


def same(scenario: Scenario, undisturbed: Outcome, *lives: Mapping[int, Decision]) -> None:
    """Play it with these disturbances: answer and state are those of the undisturbed play."""
    outcome = play(scenario, *lives)
    assert (outcome.answer, outcome.summary) == (undisturbed.answer, undisturbed.summary), (
        f"disturbed by {lives}"
    )
