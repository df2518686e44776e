"""What stands open on a node when something else is asked for, and what the world refuses meanwhile."""

from __future__ import annotations

import dataclasses

import pytest

from csi import memory_images
from csi.commands import AccessMode, Capability
from executor.errors import MismatchError, NotFoundError, PendingError, PreconditionError, UnavailableError
from executor.keys import subject_key
from omap import names
from omap.codec import decode_object, encode
from omap.faults import Call, CallKind, Decision, Fault
from omap.store import StoreUnavailableError
from tests.executor.world import RBD
from tests.node_operations.nodes import READER, STAGING, TARGET, Node, NodeWorld
from tests.node_operations.plays import clear_away, nothing_on_nodes


def change_head(world: NodeWorld, **changes: str) -> None:
    """Change the data of the volume's record."""
    keys = world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    head = decode_object(keys[names.HEAD], names.HEAD)
    data = head["data"]
    assert isinstance(data, dict)
    keys[names.HEAD] = encode({**head, "data": {**data, **changes}})


def test_a_stage_that_differs_waits_until_the_open_one_is_taken_back(world: NodeWorld) -> None:
    world.kill_at("stage_volume.mount.apply", Node.stage)
    node = world.node()
    with pytest.raises(PendingError, match=r"is not finished .* repeat it, or take it back"):
        node.stage(READER)
    with pytest.raises(PendingError, match="so no publish_volume can begin"):
        node.publish()
    node.unstage()
    node.tell()
    node.stage(Capability("mount", AccessMode.SINGLE_NODE_WRITER, "", ("noatime",)))
    clear_away(world, node)


def test_a_running_request_is_joined_only_by_its_like(world: NodeWorld) -> None:
    node = world.node()
    asked = node.staging()
    assert asked.is_same(node.staging().request)
    assert not asked.is_same(node.staging(READER).request)


def test_an_open_stage_whose_volume_is_gone_is_taken_back(world: NodeWorld) -> None:
    """An admin removed the record: nobody is left to be told."""
    world.kill_at("stage_volume.map.apply", Node.stage)
    del world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    node = world.node()
    with pytest.raises(NotFoundError, match="is not there"):
        node.stage()
    node.tell()
    assert nothing_on_nodes(world) == []


def test_an_open_format_whose_volume_is_gone_is_taken_back(world: NodeWorld) -> None:
    world.kill_at("stage_volume.format.apply", Node.stage)
    del world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    node = world.node()
    node.unstage()
    node.tell()
    assert nothing_on_nodes(world) == []


def test_an_open_stage_of_a_volume_being_deleted_waits(world: NodeWorld) -> None:
    world.kill_at("stage_volume.begin", Node.stage)
    keys = world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    keys[names.STATE] = b"deleting"
    with pytest.raises(PendingError, match="is deleting, so it cannot be staged"):
        world.node().stage()
    keys[names.STATE] = b"live"
    node = world.node()
    node.stage()
    clear_away(world, node)


def test_an_image_that_is_not_whole_is_not_staged(world: NodeWorld) -> None:
    del world.cluster.pool(RBD).objects["", f"rbd_id.csi-vol-{world.handle.uuid}"]
    node = world.node()
    with pytest.raises(NotFoundError, match="the volume has no data to stage"):
        node.stage()
    node.tell()
    assert nothing_on_nodes(world) == []


def test_an_image_that_somebody_has_open_is_waited_for(world: NodeWorld) -> None:
    image_id = world.cluster.contents(RBD)[f"rbd_id.csi-vol-{world.handle.uuid}"]["id"].decode()
    memory_images.open_image(world.cluster, RBD, image_id, "192.0.2.99:0/1")
    node = world.node()
    with pytest.raises(UnavailableError, match=r"is open at 192\.0\.2\.99:0/1; retry once"):
        node.stage()
    memory_images.close_image(world.cluster, RBD, image_id, "192.0.2.99:0/1")
    node.stage()
    clear_away(world, node)


def test_a_mounter_that_the_node_has_not_is_named(world: NodeWorld) -> None:
    change_head(world, mounter="nbd")
    with pytest.raises(PreconditionError, match="mounter is 'nbd', and this node has: krbd"):
        world.node().stage()


@pytest.mark.parametrize(
    ("given", "options"),
    [("", ()), ("a, b", ("a", "b")), ("krbd:a,b;nbd:c", ("a", "b")), ("nbd:c;d", ("d",))],
)
def test_map_options_are_the_mounters_own(world: NodeWorld, given: str, options: tuple[str, ...]) -> None:
    change_head(world, map_options=given)
    node = world.node()
    node.stage()
    (mapping,) = world.host().mappings.values()
    assert mapping.target.options == options
    clear_away(world, node)


@pytest.mark.parametrize("point", ["stage_volume.mount.apply", "publish_volume.bind.apply"])
def test_a_foreign_mount_that_came_meanwhile_is_neither_taken_for_ones_own_nor_taken_away(
    world: NodeWorld, point: str
) -> None:
    ask = Node.stage if point.startswith("stage") else Node.publish
    path = STAGING if ask is Node.stage else TARGET
    node = world.node()
    node.stage()
    (own,) = world.host().mounts
    foreign = dataclasses.replace(own, source="/dev/other", target=path)
    if ask is Node.stage:
        node.unstage()
        node.tell()
    world.kill_at(point, ask)
    world.host().mounts.append(foreign)
    with pytest.raises(PreconditionError, match="carries a mount of /dev/other, not of /dev/loop0"):
        ask(world.node())
    world.host().mounts.remove(foreign)
    node = world.node()
    ask(node)
    clear_away(world, node)


def test_what_is_wrong_at_a_path_is_told_before_what_differs(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    with pytest.raises(MismatchError):
        node.publish(readonly=True)
    clear_away(world, node)


class LostThenAway:
    """The first write to a record gets no answer, and after the second one the cluster is away for a read."""

    def __init__(self, record: str) -> None:
        self._record = record
        self._writes = 0

    def decide(self, call: Call) -> Decision:
        if call.name != self._record:
            return Fault.NONE
        if call.kind is CallKind.WRITE:
            self._writes += 1
            return Fault.LOSE_REPLY if self._writes == 1 else Fault.NONE
        if self._writes == len(("lost", "made again")):
            self._writes += 1
            return StoreUnavailableError("no answer")
        return Fault.NONE


def test_a_write_that_is_judged_while_the_cluster_goes_away_is_begun_again(world: NodeWorld) -> None:
    """Its condition failed, for the first try had come in: but that could not be read."""
    node = world.node(faults=LostThenAway(names.record_name(world.handle.uuid)))
    with pytest.raises(StoreUnavailableError):
        node.stage()
    node.stage()
    clear_away(world, node)


def test_a_volume_at_work_keeps_its_place_in_the_spool(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.unstage()
    key = subject_key(world.handle.uuid)
    running, _ = node.context.keys.admit(key, "stage_volume", "at work", {}, lambda _: False)
    node.tell()
    assert world.kept() != {}
    node.context.keys.leave(running)
    node.tell()
    assert nothing_on_nodes(world) == []
    clear_away(world, node)


def test_two_turns_of_a_volume_do_no_harm_to_each_other(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.unstage()
    other = world.node()

    def tell_too(point: str) -> None:
        if point in {"spool.tell", "spool.told", "spool.key"}:
            world.between = lambda _point: None
            other.tell()

    for _ in range(3):
        world.between = tell_too
        node.tell()
    world.between = lambda _point: None
    assert nothing_on_nodes(world) == []
    clear_away(world, node)
