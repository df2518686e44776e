"""Calls in all orders, on one node: what is done, what is repeated, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from csi.commands import AccessMode, Capability
from csi.handles import VolumeHandle
from csi.memory_objects import pool_number
from executor.errors import (
    InUseError,
    InvalidError,
    MismatchError,
    NotFoundError,
    PendingError,
    PreconditionError,
)
from omap import names
from tests.executor.world import CLUSTER, RBD
from tests.node_operations.nodes import BLOCK, OTHER_TARGET, READER, STAGING, TARGET, Node, NodeWorld
from tests.node_operations.plays import clear_away, nothing_on_nodes

UNKNOWN = VolumeHandle(CLUSTER, pool_number(RBD.pool), "00000000-0000-4000-8000-0000000000ff")


def targets(world: NodeWorld) -> dict[str, tuple[str, bool]]:
    """What is mounted where: its kind, and whether it is read-only."""
    return {mount.target: (mount.fs_type, "ro" in mount.options) for mount in world.host().mounts}


@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_a_file_system_is_staged_published_and_taken_away(empty_world: NodeWorld, fs_type: str) -> None:
    world = empty_world.with_volume(fs_type=fs_type)
    node = world.node()
    node.stage()
    node.publish()
    node.publish(target=OTHER_TARGET, readonly=True)
    assert targets(world) == {
        STAGING: (fs_type, False),
        TARGET: (fs_type, False),
        OTHER_TARGET: (fs_type, True),
    }
    node.unpublish()
    node.unpublish(OTHER_TARGET)
    node.unstage()
    assert targets(world) == {}
    clear_away(world, node)


def test_a_device_is_published(empty_world: NodeWorld) -> None:
    world = empty_world.with_volume(access="block", fs_type="")
    node = world.node()
    node.stage(BLOCK)
    assert targets(world) == {}
    node.publish(BLOCK)
    assert targets(world) == {TARGET: ("devtmpfs", False)}
    assert world.host().files == {TARGET}
    clear_away(world, node)


def test_a_reader_stages_read_only_what_is_formatted(world: NodeWorld) -> None:
    with pytest.raises(PreconditionError, match="a read-only stage makes none"):
        world.node().stage(READER)
    assert nothing_but_records(world)
    world.node().stage()
    world.node().unstage()
    world.node().tell()
    node = world.node()
    node.stage(READER)
    node.publish(READER)
    assert targets(world) == {STAGING: ("ext4", True), TARGET: ("ext4", True)}
    (mapping,) = world.host().mappings.values()
    assert mapping.target.read_only
    clear_away(world, node)


def nothing_but_records(world: NodeWorld) -> bool:
    """Whether nothing of the volume is on the host; the state directory may have something to tell."""
    host = world.host()
    return not (host.mounts or host.mappings or host.folders or host.files)


def test_the_same_again_answers_the_same_and_does_nothing(world: NodeWorld) -> None:
    node = world.node()
    made: list[str] = []
    for call in (node.stage, node.publish, node.unpublish, node.unstage):
        first = call()
        world.between = made.append
        second = world_call(world, call.__name__)()
        world.between = lambda _point: None
        assert made == []
        assert first.items() <= second.items() or call.__name__.startswith("un")
    clear_away(world, node)


def world_call(world: NodeWorld, name: str) -> Callable[[], dict[str, object]]:
    """The same call on the next plugin."""
    call: Callable[[], dict[str, object]] = getattr(world.node(), name)
    return call


def test_a_repeated_stage_lists_flags_in_any_order_and_needs_no_file_system_named(world: NodeWorld) -> None:
    node = world.node()
    node.stage(Capability("mount", AccessMode.SINGLE_NODE_WRITER, "ext4", ("noatime", "nodev")))
    node.stage(Capability("mount", AccessMode.SINGLE_NODE_WRITER, "", ("nodev", "noatime")))
    clear_away(world, node)


@pytest.mark.parametrize(
    ("again", "says"),
    [
        (lambda node: node.stage(path="/kubelet/elsewhere"), "staging path is /kubelet/staging"),
        (lambda node: node.stage(READER), "access mode is SINGLE_NODE_WRITER"),
        (lambda node: node.stage(BLOCK), "access type is mount"),
        (
            lambda node: node.stage(Capability("mount", AccessMode.SINGLE_NODE_WRITER, "xfs")),
            "file system is ext4, asked for xfs",
        ),
        (
            lambda node: node.stage(Capability("mount", AccessMode.SINGLE_NODE_WRITER, "", ("noatime",))),
            "mount flags are",
        ),
        (lambda node: node.publish(readonly=True), "differs in: readonly"),
        (lambda node: node.publish(READER), "differs in: mode"),
        (lambda node: node.publish(BLOCK), "staged for mount access"),
    ],
)
def test_another_thing_at_the_same_place_is_refused(
    world: NodeWorld, again: Callable[[Node], object], says: str
) -> None:
    node = world.node()
    node.stage()
    node.publish()
    before = targets(world)
    with pytest.raises(MismatchError, match=says):
        again(node)
    assert targets(world) == before
    clear_away(world, node)


@pytest.mark.parametrize(
    "wrong", [BLOCK, Capability("mount", AccessMode.SINGLE_NODE_WRITER, "xfs")], ids=["block", "xfs"]
)
def test_a_stage_for_what_the_volume_was_not_made_for_is_invalid(world: NodeWorld, wrong: Capability) -> None:
    node = world.node()
    with pytest.raises(InvalidError, match="was made for"):
        node.stage(wrong)
    assert nothing_on_nodes(world) == []


def test_nothing_is_published_that_is_not_staged(world: NodeWorld) -> None:
    node = world.node()
    with pytest.raises(PreconditionError, match="is not staged on this node"):
        node.publish()
    node.stage()
    with pytest.raises(PreconditionError, match="is staged at /kubelet/staging"):
        node.publish(path="/kubelet/elsewhere")
    clear_away(world, node)


def test_a_plain_folder_is_never_published(world: NodeWorld) -> None:
    """Somebody unmounted the staging path: its folder is there, and nothing of the volume in it."""
    node = world.node()
    node.stage()
    world.host().mounts.clear()
    with pytest.raises(PreconditionError, match="a plain folder is never published"):
        node.publish()
    assert targets(world) == {}
    node.stage()
    node.publish()
    assert set(targets(world)) == {STAGING, TARGET}
    clear_away(world, node)


def test_a_published_volume_is_not_unstaged(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    with pytest.raises(InUseError, match="still published at /kubelet/pod-1"):
        node.unstage()
    assert set(targets(world)) == {STAGING, TARGET}
    clear_away(world, node)


def test_a_volume_is_unstaged_only_where_it_is_staged(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    with pytest.raises(PreconditionError, match="is staged at /kubelet/staging, not at"):
        node.unstage("/kubelet/elsewhere")
    clear_away(world, node)


def test_taking_away_what_is_not_there_succeeds_and_leaves_nothing(world: NodeWorld) -> None:
    node = world.node()
    for handle in (world.handle, UNKNOWN):
        node.unpublish(handle=handle)
        node.unstage(handle=handle)
    assert nothing_on_nodes(world) == []


def test_an_empty_folder_of_an_unknown_volume_is_removed_and_the_call_forgotten(world: NodeWorld) -> None:
    """The record is gone, or was never there: nobody wants to be told."""
    node = world.node()
    world.host().folders |= {STAGING, TARGET}
    node.unpublish(handle=UNKNOWN)
    node.unstage(handle=UNKNOWN)
    assert world.kept() != {}
    node.tell()
    assert nothing_on_nodes(world) == []


def test_a_pool_that_is_gone_wants_to_know_nothing(world: NodeWorld) -> None:
    node = world.node()
    world.host().folders.add(STAGING)
    node.unstage(handle=VolumeHandle(CLUSTER, 4711, UNKNOWN.uuid))
    node.tell()
    assert nothing_on_nodes(world) == []


def test_a_second_unpublish_is_not_answered_with_the_first_ones_success(world: NodeWorld) -> None:
    """The plugin was killed in the one; the other is asked for."""
    node = world.node()
    node.stage()
    node.publish()
    node.publish(target=OTHER_TARGET)
    world.kill_at("unpublish_volume.unbind.apply", Node.unpublish)
    node = world.node()
    node.unpublish(OTHER_TARGET)
    assert set(targets(world)) == {STAGING}
    clear_away(world, node)


def test_a_target_in_use_stays_published_until_it_is_let_go(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    world.host().busy[TARGET] = "nginx (process 42)"
    with pytest.raises(InUseError, match="nginx"):
        node.unpublish()
    world.host().busy.clear()
    clear_away(world, node)


@pytest.mark.parametrize(
    "gone", ["never made", "trashed", "being made", "being deleted"], ids=lambda text: text.replace(" ", "-")
)
def test_what_is_no_live_volume_is_not_staged(world: NodeWorld, gone: str) -> None:
    expected: type[Exception] = NotFoundError
    handle = None
    if gone == "never made":
        handle = UNKNOWN
    elif gone == "trashed":
        world.delete_volume()
    else:
        expected = PendingError
        state = b"creating" if gone == "being made" else b"deleting"
        world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)][names.STATE] = state
    with pytest.raises(expected):
        world.node().stage(handle=handle)
    assert nothing_on_nodes(world) == []
