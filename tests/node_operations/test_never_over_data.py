"""When a file system is made, and when never."""

from __future__ import annotations

import dataclasses

import pytest

from csi import memory_images
from csi.node.ports import Content, Detected, MapTarget
from executor.errors import InvalidError, PendingError, PermanentError, PreconditionError
from executor.model import Object
from omap import names
from omap.codec import decode_object, encode
from tests.executor.world import RBD
from tests.node_operations.nodes import READER, STAGING, Node, NodeWorld
from tests.node_operations.plays import clear_away, nothing_on_nodes

EXT4 = Detected(Content.FILE_SYSTEM, "ext4")


def image_of(world: NodeWorld) -> MapTarget:
    """The image, as a mapper is told of it."""
    image = f"csi-vol-{world.handle.uuid}"
    image_id = world.cluster.contents(RBD)[f"rbd_id.{image}"]["id"].decode()
    return MapTarget(world.handle.uuid, RBD, world.handle.pool_id, image, image_id, 1 << 30, ())


def found_on(world: NodeWorld) -> Detected:
    return world.disks.get(image_of(world))


def formatted(world: NodeWorld) -> Object:
    """What the record says of the file system."""
    value = world.record().get(names.FORMAT)
    return {} if value is None else decode_object(value, names.FORMAT)


def say(world: NodeWorld, **changes: str) -> None:
    """Change what the record says of the file system."""
    keys = world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    keys[names.FORMAT] = encode({**formatted(world), **changes})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (Detected(Content.OTHER), "carries data that no tool knows where ext4 was to be made"),
        (Detected(Content.OTHER, "dos"), "carries dos where ext4"),
        (Detected(Content.OTHER, "crypto_LUKS"), "carries crypto_LUKS"),
        (Detected(Content.FILE_SYSTEM, "xfs"), "carries xfs"),
    ],
)
def test_whatever_else_is_found_is_left_as_it_is(world: NodeWorld, content: Detected, says: str) -> None:
    world.disks.plant(image_of(world), content)
    node = world.node()
    with pytest.raises(PreconditionError, match=says):
        node.stage()
    assert found_on(world) == content
    assert formatted(world) == {}
    node.tell()
    assert nothing_on_nodes(world) == []
    clear_away(world, node)


def test_zeroes_over_allocated_objects_are_data(world: NodeWorld) -> None:
    memory_images.write_data(world.cluster, RBD, image_of(world).image_id, offset=1 << 20)
    node = world.node()
    with pytest.raises(PreconditionError, match="looks empty but has data objects"):
        node.stage()
    assert formatted(world) == {}
    node.tell()
    assert nothing_on_nodes(world) == []
    clear_away(world, node)


def test_a_file_system_that_is_there_is_taken_as_it_is(world: NodeWorld) -> None:
    world.disks.plant(image_of(world), EXT4)
    world.disks.precious.add((image_of(world).pool_id, image_of(world).image_id))
    node = world.node()
    node.stage()
    assert world.disks.lost == []
    assert formatted(world)["proof"] == "found with its file system"
    clear_away(world, node)


@pytest.mark.parametrize(
    "content", [Detected(Content.EMPTY), Detected(Content.OTHER), Detected(Content.FILE_SYSTEM, "xfs")]
)
def test_a_formatted_volume_is_never_formatted_again(world: NodeWorld, content: Detected) -> None:
    node = world.node()
    node.stage()
    node.unstage()
    node.tell()
    world.disks.plant(image_of(world), content)
    with pytest.raises(PreconditionError, match=r"was formatted with ext4, but .* never formatted again"):
        node.stage()
    assert found_on(world) == content
    clear_away(world, node)


def test_another_nodes_unfinished_format_is_waited_for(world: NodeWorld) -> None:
    """The other node can have died with it, so its claim to write is gone by an admin's hand."""
    world.kill_at("stage_volume.format.apply", Node.stage)
    keys = world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    keys[names.WRITER] = b"none"
    other = world.node("n2")
    memory_images.close_image(world.cluster, RBD, image_of(world).image_id, "192.0.2.7:0/7")
    with pytest.raises(
        PreconditionError, match=r"node n1 began to make a file system .* unstage it there first"
    ):
        other.stage()
    other.tell()
    first = world.node("n1")
    first.unstage()
    first.tell()
    assert formatted(world) == {}
    other.stage()
    clear_away(world, other)


@pytest.mark.parametrize("remains", [Detected(Content.EMPTY), Detected(Content.OTHER), EXT4])
def test_ones_own_unfinished_format_is_made_again_whatever_it_looks_like(
    world: NodeWorld, remains: Detected
) -> None:
    """The state directory was lost meanwhile: only the record tells of it."""
    world.kill_at("stage_volume.mount.intent", Node.stage)
    assert formatted(world)["state"] == "intended"
    world.reboot()
    world.lose_state()
    world.disks.plant(image_of(world), remains)
    with pytest.raises(PreconditionError, match="a read-only stage makes none"):
        world.node().stage(READER)
    node = world.node()
    node.stage()
    assert formatted(world)["state"] == "formatted"
    assert found_on(world) == EXT4
    clear_away(world, node)


def test_an_intent_for_another_image_formats_nothing(world: NodeWorld) -> None:
    world.kill_at("stage_volume.mount.intent", Node.stage)
    world.reboot()
    world.lose_state()
    say(world, image_id="another")
    with pytest.raises(PreconditionError, match=r"begun on image another .* look at who replaced the image"):
        world.node().stage()
    assert formatted(world)["image_id"] == "another"


def test_an_image_replaced_under_a_stage_is_not_formatted(world: NodeWorld) -> None:
    """The one that was intended to be formatted is gone: what is mapped shows another."""
    world.kill_at("stage_volume.format.apply", Node.stage)
    (mapping,) = world.host().mappings.values()
    mapping.target = dataclasses.replace(mapping.target, image_id="another")
    with pytest.raises(PreconditionError, match="shows image another"):
        world.node().stage()
    assert found_on(world) == Detected(Content.EMPTY)


def test_a_fact_that_somebody_else_changed_stops_the_stage_before_its_effect(world: NodeWorld) -> None:
    def meddle(point: str) -> None:
        if point == "stage_volume.format.intent":
            say(world, state="intended", node="n2")

    world.between = meddle
    node = world.node()
    with pytest.raises(PendingError, match="was changed by another node meanwhile"):
        node.stage()
    world.between = lambda _point: None
    assert found_on(world) == Detected(Content.EMPTY)
    with pytest.raises(PermanentError, match="node n2 began"):
        node.stage()


@pytest.mark.parametrize("options", ["-X", "-b", "elsewhere"])
def test_options_that_mkfs_is_not_given_are_refused_before_anything_is_noted(
    empty_world: NodeWorld, options: str
) -> None:
    world = empty_world.with_volume()
    keys = world.cluster.pool(RBD).objects["", names.record_name(world.handle.uuid)]
    head = decode_object(keys[names.HEAD], names.HEAD)
    data = head["data"]
    assert isinstance(data, dict)
    keys[names.HEAD] = encode({**head, "data": {**data, "mkfs_options": options}})
    with pytest.raises(InvalidError, match="mkfsOptions"):
        world.node().stage()
    assert formatted(world) == {}


def test_what_a_volume_holds_outlives_everything_that_happens_to_its_nodes(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    node = world.node()
    node.unpublish()
    node.unstage()
    world.reboot()
    world.lose_state()
    node = world.node()
    node.tell()
    node.stage()
    assert {mount.target for mount in world.host().mounts} == {STAGING}
    world.kill_at("unstage_volume.unmap.apply", Node.unstage)
    node = world.node()
    node.stage()
    assert world.disks.lost == []
    assert world.disks.precious == {(image_of(world).pool_id, image_of(world).image_id)}
    clear_away(world, node)
