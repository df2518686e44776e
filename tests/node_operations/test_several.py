"""Two nodes, and a controller that deletes what a node stages: one gets it, the other is told who has it."""

from __future__ import annotations

import pathlib
import tempfile

import pytest

from executor.errors import InUseError, NotFoundError, PendingError
from omap import names
from tests.node_operations.nodes import READER, Node, NodeWorld
from tests.node_operations.plays import clear_away, nothing_on_nodes
from tests.node_operations.stepper import Stepper, orders

SEEN_BY_OTHERS = {"stage_volume.read", "stage_volume.begin.look", "stage_volume.begin", "stage_volume.commit"}
"""Where a stage touches what a delete touches."""

SEEN_BY_NODES = {
    f"delete_volume.{point}"
    for point in ("read", "trash.prepare", "record", "nodes", "trash.apply", "commit")
} | {"delete_volume.unchanged"}
"""And the other way round."""


def test_one_node_alone_writes(world: NodeWorld) -> None:
    first, second = world.node("n1"), world.node("n2")
    first.stage()
    with pytest.raises(InUseError, match="in use on node n1, which alone may write to it; unstage it there"):
        second.stage()
    with pytest.raises(InUseError, match="n1"):
        second.stage(READER)
    assert world.kept("n2") != {}
    second.tell()
    assert world.kept("n2") == {}
    assert not world.host("n2").mappings
    first.unstage()
    first.tell()
    second.stage()
    assert world.record()[names.WRITER] == b"node/n2"
    clear_away(world, second)


def test_a_node_that_has_not_told_yet_still_has_it(world: NodeWorld) -> None:
    first, second = world.node("n1"), world.node("n2")
    first.stage()
    first.unstage()
    with pytest.raises(InUseError, match="n1"):
        second.stage()
    first.tell()
    second.tell()
    second.stage()
    clear_away(world, second)


def test_several_nodes_read(world: NodeWorld) -> None:
    first, second = world.node("n1"), world.node("n2")
    first.stage()
    first.unstage()
    first.tell()
    first.stage(READER)
    second.stage(READER)
    assert world.record()[names.WRITER] == b"none"
    first.unstage()
    first.tell()
    with pytest.raises(InUseError, match="staged on node n2"):
        world.delete_volume()
    clear_away(world, second)


def test_a_staged_volume_is_not_deleted(world: NodeWorld) -> None:
    node = world.node()
    node.stage()
    with pytest.raises(InUseError, match="staged on node n1"):
        world.delete_volume()
    assert world.record()[names.STATE] == b"live"
    clear_away(world, node)


def test_a_volume_is_not_deleted_while_a_stage_of_it_is_open(world: NodeWorld) -> None:
    world.kill_at("stage_volume.map.apply", Node.stage)
    with pytest.raises(PendingError, match="stage_volume at key on node n1"):
        world.delete_volume()
    node = world.node()
    node.stage()
    clear_away(world, node)


def test_a_stage_and_a_delete_never_both_succeed_in_whatever_order_they_go() -> None:
    stages, deletes = steps_of_each()
    both_failed = stage_won = delete_won = 0
    for order in orders(stages, deletes):
        with tempfile.TemporaryDirectory() as run:
            world = NodeWorld(pathlib.Path(run)).with_volume()
            node, stage, delete = begun(world)
            for is_stage in order:
                each = stage if is_stage else delete
                if not each.is_over:
                    each.step()
            stage.finish()
            delete.finish()
            delete.process.flush()
            assert not (stage.is_done and delete.is_done), order
            node.tell()
            if delete.is_done:
                delete_won += 1
                assert isinstance(stage.error, (NotFoundError, PendingError))
                assert nothing_on_nodes(world) == []
                continue
            assert isinstance(delete.error, (InUseError, PendingError))
            assert world.record()[names.STATE] == b"live"
            if stage.is_done:
                stage_won += 1
            else:
                both_failed += 1
                assert isinstance(stage.error, PendingError)
                node.stage()
            clear_away(world, node)
    assert stage_won > 0
    assert delete_won > 0
    assert stage_won + delete_won > both_failed


def begun(world: NodeWorld) -> tuple[Node, Stepper, Stepper]:
    node, controller = world.node(), world.process("controller")
    stage = Stepper(node, node.staging(), SEEN_BY_OTHERS)
    delete = Stepper(controller, controller.deletion(world.handle.uuid), SEEN_BY_NODES)
    return node, stage, delete


def steps_of_each() -> tuple[int, int]:
    """How many steps each takes alone."""
    counts = []
    for number in (1, 2):
        with tempfile.TemporaryDirectory() as run:
            each = begun(NodeWorld(pathlib.Path(run)).with_volume())[number]
            assert isinstance(each, Stepper)
            steps = 0
            while not each.is_over:
                each.step()
                steps += 1
            assert each.is_done
            counts.append(steps)
    return counts[0], counts[1]
