"""What a host loses: its kernel's state, its state directory, a mapper's daemon, a mount."""

from __future__ import annotations

import dataclasses

import pytest

from executor.errors import InUseError, PreconditionError, TransientError, UnavailableError
from omap import names
from tests.node_operations.nodes import OTHER_TARGET, STAGING, TARGET, Node, NodeWorld
from tests.node_operations.plays import clear_away, nothing_on_nodes


def mounted(world: NodeWorld) -> set[str]:
    return {mount.target for mount in world.host().mounts}


def test_after_a_restart_of_the_host_a_volume_is_staged_and_published_again(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    world.reboot()
    node = world.node()
    with pytest.raises(UnavailableError, match="stage it again"):
        node.publish()
    node.stage()
    node.publish()
    assert mounted(world) == {STAGING, TARGET}
    assert world.disks.lost == []
    clear_away(world, node)


def test_targets_that_a_restart_made_stale_do_not_hold_the_volume(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    node.publish(target=OTHER_TARGET)
    world.reboot()
    node = world.node()
    node.unstage()
    node.unpublish()
    node.unpublish(OTHER_TARGET)
    node.tell()
    assert nothing_on_nodes(world) == []
    clear_away(world, node)


def test_a_volume_unpublished_after_a_restart_is_staged_again(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    world.reboot()
    node = world.node()
    node.unpublish()
    node.stage()
    node.publish(target=OTHER_TARGET)
    assert mounted(world) == {STAGING, OTHER_TARGET}
    clear_away(world, node)


def test_without_an_identity_the_cluster_is_told_once_there_is_one(world: NodeWorld) -> None:
    """The kept one went with the host's power, and the driver has none of its own."""
    world.own_identity = None
    node = world.node()
    node.stage()
    world.reboot()
    node = world.node()
    node.unstage()
    with pytest.raises(PreconditionError, match="no identity"):
        node.tell()
    with pytest.raises(InUseError, match="staged on node n1"):
        world.delete_volume()
    node.stage()
    node.unstage()
    node.tell()
    clear_away(world, node)


def test_a_lost_state_directory_is_made_up_for_by_the_kernel(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    world.lose_state()
    node = world.node()
    node.stage()
    node.publish()
    assert mounted(world) == {STAGING, TARGET}
    assert len(world.host().mounts) == len({STAGING, TARGET})
    clear_away(world, node)


def test_what_a_lost_state_directory_does_not_tell_is_taken_away_and_told(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    node.publish()
    world.lose_state()
    node = world.node()
    node.unpublish()
    node.tell()
    assert world.record()[names.WRITER] == b"node/n1"
    with pytest.raises(InUseError, match="staged on node n1"):
        world.delete_volume()
    node.unstage()
    node.tell()
    assert nothing_on_nodes(world) == []
    assert world.record()[names.WRITER] == b"none"
    seqs = [parsed[1] for key in world.record() if (parsed := names.parse_node_tx_key(key)) is not None]
    assert len(seqs) == len(set(seqs)) == len(("stage", "unpublish", "unstage"))
    clear_away(world, node)


def test_a_stage_taken_back_leaves_what_it_did_not_make(
    world: NodeWorld,
) -> None:
    """Pods are on it: a device and a mount that this stage did not make are not its to take away."""
    node = world.node()
    node.stage()
    node.publish()
    world.lose_state()
    world.kill_at("stage_volume.mount.apply", Node.stage)
    node = world.node()
    node.unpublish()
    assert mounted(world) == {STAGING}
    clear_away(world, node)


@pytest.mark.parametrize("published", [False, True], ids=["staged", "published"])
def test_a_dead_mapper_is_not_replaced_under_what_is_mounted(world: NodeWorld, *, published: bool) -> None:
    node = world.node()
    node.stage()
    if published:
        node.publish()
    (mapping,) = world.host().mappings.values()
    mapping.daemon_alive = False
    before = mounted(world)
    with pytest.raises(InUseError, match="is mounted at"):
        node.stage()
    assert mounted(world) == before
    with pytest.raises(UnavailableError, match="is not mapped on this node any more"):
        node.publish()
    if published:
        node.unpublish()
    node.unstage()
    node.stage()
    (mapping,) = world.host().mappings.values()
    assert mapping.daemon_alive
    clear_away(world, node)


def test_a_mapper_that_dies_in_the_middle_of_a_stage_is_begun_anew(world: NodeWorld) -> None:
    world.kill_at("stage_volume.mount.apply", Node.stage)
    (mapping,) = world.host().mappings.values()
    mapping.daemon_alive = False
    node = world.node()
    node.stage()
    assert mounted(world) == {STAGING}
    (mapping,) = world.host().mappings.values()
    assert mapping.daemon_alive
    clear_away(world, node)


def test_a_device_that_shows_another_image_is_not_touched(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    (mapping,) = world.host().mappings.values()
    own = mapping.target
    mapping.target = dataclasses.replace(own, image_id="another")
    with pytest.raises(PreconditionError, match=r"shows image another of pool .*; it is not touched"):
        node.stage()
    with pytest.raises(PreconditionError, match="it is not touched"):
        node.publish()
    assert mounted(world) == {STAGING}
    mapping.target = own
    clear_away(world, node)


def test_somebody_elses_mount_at_a_path_is_left_alone(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    (staging,) = world.host().mounts
    foreign = dataclasses.replace(staging, source="/dev/other", target=TARGET)
    world.host().mounts.append(foreign)
    with pytest.raises(PreconditionError, match="already carries a mount of /dev/other"):
        node.publish()
    assert foreign in world.host().mounts
    world.host().mounts.remove(foreign)
    clear_away(world, node)


def test_a_rotated_key_is_kept_without_touching_what_is_in_use(world: NodeWorld) -> None:
    world.own_identity = None
    node = world.node()
    node.stage(key="old")
    node.publish()
    before = list(world.host().mounts)
    node.stage(key="new")
    kept = node.parts.stage_keys.get(world.handle.uuid)
    assert kept is not None
    assert kept.key == "new"
    assert world.host().mounts == before
    clear_away(world, node)


def test_a_stage_with_a_rotated_key_goes_on_from_a_killed_one(world: NodeWorld) -> None:
    world.kill_at("stage_volume.format.apply", Node.stage)
    node = world.node()
    node.stage(key="new")
    assert mounted(world) == {STAGING}
    clear_away(world, node)


def test_a_staging_path_in_use_is_let_go_later(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    world.host().busy[STAGING] = "a shell (process 7)"
    with pytest.raises((InUseError, TransientError), match="process 7"):
        node.unstage()
    assert mounted(world) == {STAGING}
    world.host().busy.clear()
    clear_away(world, node)


def test_a_stage_whose_notes_were_lost_holds_the_volume_until_it_is_unstaged(world: NodeWorld) -> None:
    world.kill_at("stage_volume.format.intent", Node.stage)
    world.lose_state()
    with pytest.raises(TransientError, match="stage_volume at key on node n1"):
        world.delete_volume()
    node = world.node()
    node.unstage()
    node.tell()
    assert nothing_on_nodes(world) == []
    clear_away(world, node)
