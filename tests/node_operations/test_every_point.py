"""Every call of every node operation is disturbed in every way; the retry ends as if nothing had happened.

Whatever the disturbance: the same answer, the same kernel, state directory and record, no file system made
over one that was ever used, and after taking all away nothing left (`plays.perform` ends with that audit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from csi.operations import node_expand_volume, publish_volume, stage_volume
from executor.crashpoints import node_undo_points
from omap.faults import Call, CallKind, Decision, Fault
from tests.node_operations.catalogue import ALL, FAILING, HALF_DONE, POINTS, UNDISTURBED
from tests.node_operations.plays import Outcome, Play, disturbances, ends, perform

SPOOL = {"spool.tell", "spool.told", "spool.key", "spool.forget"}
"""The changes of telling the cluster and forgetting."""

ENTERING = {"instance.note"}

RESUMING = {
    "stage_volume.format.repair",
    "stage_volume.local.release",
    "publish_volume.local.release",
    "unpublish_volume.local.release",
    "unstage_volume.local.release",
    "node_expand_volume.local.release",
}
"""What only a disturbed operation does."""

UNDONE = {
    *node_undo_points(stage_volume.OPERATION, facts=("format",)),
    *node_undo_points(publish_volume.OPERATION),
    *node_undo_points(node_expand_volume.OPERATION),
}


def named(play: Play) -> str:
    return play.name.replace(" ", "-")


every_play = pytest.mark.parametrize("play", ALL, ids=named)


@every_play
def test_one_disturbance_at_any_call_changes_nothing(play: Play) -> None:
    undisturbed = perform(play)
    assert undisturbed.answer == play.fails
    plays = 0
    for disturbance in disturbances(undisturbed.lives[0]):
        outcome = perform(play, disturbance)
        same(undisturbed, outcome, disturbance)
        assert outcome.history == undisturbed.history, f"disturbed by {disturbance}"
        plays += 1
    assert plays > 0


@every_play
def test_the_end_of_the_host_at_any_change_changes_nothing(play: Play) -> None:
    """What was done before may be done once more then, so the history may be longer."""
    undisturbed = perform(play)
    for disturbance in ends(undisturbed.lives[0]):
        same(undisturbed, perform(play, disturbance, reboots=True), disturbance)


@pytest.mark.parametrize("play", [*UNDISTURBED, *FAILING], ids=named)
def test_two_ends_one_after_the_other_change_nothing(play: Play) -> None:
    """The plugin ends after a change of its, and the next one after one of its own."""
    undisturbed = perform(play)
    for first in ends_after(undisturbed.lives[0]):
        lives = perform(play, first).lives
        for second in ends_after(lives[1]) if len(lives) > 1 else ():
            same(undisturbed, perform(play, first, second), (first, second))


@pytest.mark.parametrize("name", ["stage", "publish"])
def test_what_was_half_taken_away_is_there_again_as_if_never_touched(name: str) -> None:
    (plain,) = (each for each in UNDISTURBED if each.name == name)
    expected = perform(plain)
    for play in HALF_DONE:
        if play.name.startswith(f"{name} after"):
            assert perform(play).state == expected.state, play.name


@pytest.mark.parametrize("name", POINTS)
def test_the_points_of_an_operation_are_all_known(name: str) -> None:
    (play,) = (each for each in UNDISTURBED if each.name == name)
    reached = [point for point in perform(play).points if point not in SPOOL | ENTERING]
    assert reached == POINTS[name]


def test_no_point_is_reached_that_no_list_names() -> None:
    known = {*SPOOL, *RESUMING, *UNDONE, *(point for points in POINTS.values() for point in points)}
    reached: set[str] = set()
    for play in ALL:
        undisturbed = perform(play)
        reached.update(undisturbed.points)
        for disturbance in disturbances(undisturbed.lives[0]):
            reached.update(perform(play, disturbance).points)
    assert reached - ENTERING == known


def ends_after(calls: list[Call]) -> Iterator[Mapping[int, Decision]]:
    """The end of a life right after each of its calls that change something."""
    for number, call in enumerate(calls, 1):
        if call.kind is CallKind.WRITE:
            yield {number: Fault.CRASH_AFTER}


def same(undisturbed: Outcome, outcome: Outcome, disturbed_by: object) -> None:
    """Answer and state are those of the undisturbed play."""
    assert (outcome.answer, outcome.state) == (undisturbed.answer, undisturbed.state), (
        f"disturbed by {disturbed_by}"
    )
