"""The plays whose every call is disturbed."""

from __future__ import annotations

from csi.commands import AccessMode, Capability
from csi.operations import (
    node_expand_volume,
    publish_volume,
    stage_volume,
    unpublish_volume,
    unstage_volume,
)
from executor.crashpoints import node_points
from executor.errors import DeniedError, InvalidError, PermanentError, PreconditionError
from tests.node_operations.nodes import BLOCK, OTHER_TARGET, Node, NodeWorld
from tests.node_operations.plays import Play, Prepare, fresh, interrupted, published, staged, used_before

BAD_FLAG = Capability("mount", AccessMode.SINGLE_NODE_WRITER, "ext4", ("no-such-flag",))

POINTS: dict[str, list[str]] = {
    "stage": node_points(stage_volume.OPERATION, claims=True, facts=("format", "mount")),
    "publish": node_points(publish_volume.OPERATION),
    "unpublish": node_points(unpublish_volume.OPERATION),
    "unstage": node_points(unstage_volume.OPERATION),
    "expand": node_points(node_expand_volume.OPERATION),
}


def block_volume(world: NodeWorld) -> None:
    world.with_volume(access="block", fs_type="")


def xfs_volume(world: NodeWorld) -> None:
    world.with_volume(fs_type="xfs")


def staged_block(world: NodeWorld) -> None:
    block_volume(world)
    world.node().stage(BLOCK)


def published_block(world: NodeWorld) -> None:
    staged_block(world)
    world.node().publish(BLOCK)


def expanded(world: NodeWorld) -> None:
    staged(world)
    world.expand_volume()


def expanded_block(world: NodeWorld) -> None:
    staged_block(world)
    world.expand_volume()


def refusing(beginning: str, error: PermanentError, before: Prepare = fresh) -> Prepare:
    def prepare(world: NodeWorld) -> None:
        before(world)
        world.refusals[beginning] = error

    return prepare


def stage_block(node: Node) -> object:
    return node.stage(BLOCK)


def publish_block(node: Node) -> object:
    return node.publish(BLOCK)


def publish_readonly(node: Node) -> object:
    return node.publish(readonly=True)


def stage_with_bad_flag(node: Node) -> object:
    return node.stage(BAD_FLAG)


def publish_elsewhere(node: Node) -> object:
    return node.publish(target=OTHER_TARGET)


UNDISTURBED = (
    Play("stage", fresh, Node.stage),
    Play("stage of xfs", xfs_volume, Node.stage),
    Play("stage of a block volume", block_volume, stage_block),
    Play("stage of a volume used before", used_before, Node.stage),
    Play("publish", staged, Node.publish, Node.stage),
    Play("publish read-only", staged, publish_readonly, Node.stage),
    Play("publish of a block volume", staged_block, publish_block, stage_block),
    Play("unpublish", published, Node.unpublish, Node.stage),
    Play("unpublish of a block volume", published_block, Node.unpublish, stage_block),
    Play("expand", expanded, Node.expand_here, Node.stage),
    Play("expand of a block volume", expanded_block, Node.expand_here, stage_block),
    Play("unstage", staged, Node.unstage),
    Play("unstage of a block volume", staged_block, Node.unstage),
)

FAILING = (
    Play("stage with a flag that mount refuses", fresh, stage_with_bad_flag, fails="InvalidError"),
    Play(
        "stage whose mapper refuses at once",
        refusing("map 00000000-0000-4000-8000-000000000001: daemon", DeniedError("the key may not")),
        Node.stage,
        fails="DeniedError",
    ),
    Play(
        "stage whose mapper refuses half-way",
        refusing("map 00000000-0000-4000-8000-000000000001: device", DeniedError("no device is free")),
        Node.stage,
        fails="DeniedError",
    ),
    Play(
        "stage whose mkfs refuses at once",
        refusing("mkfs /dev/loop0: begin", InvalidError("mkfs knows no such option")),
        Node.stage,
        fails="InvalidError",
    ),
    Play(
        "stage whose mkfs refuses half-way",
        refusing("mkfs /dev/loop0: end", InvalidError("mkfs finds the device too small")),
        Node.stage,
        fails="InvalidError",
    ),
    Play(
        "stage whose mount is refused half-way",
        refusing("mount /kubelet/staging: mount", InvalidError("the kernel knows no such flag")),
        Node.stage,
        fails="InvalidError",
    ),
    Play(
        "expand whose file system cannot grow",
        refusing("grow /dev/loop0", PreconditionError("it has to be checked first"), expanded),
        Node.expand_here,
        Node.stage,
        fails="PreconditionError",
    ),
    Play(
        "publish that is refused half-way",
        refusing("bind /kubelet/pod-1: bind", PreconditionError("the kernel binds nothing here"), staged),
        Node.publish,
        Node.stage,
        fails="PreconditionError",
    ),
)

HALF_DONE = (
    *(
        Play(
            f"unstage after {point} was not reached",
            interrupted(expanded, Node.expand_here, point),
            Node.unstage,
        )
        for point in POINTS["expand"]
    ),
    *(
        Play(f"unstage after {point} was not reached", interrupted(fresh, Node.stage, point), Node.unstage)
        for point in POINTS["stage"]
    ),
    *(
        Play(f"stage after {point} was not reached", interrupted(staged, Node.unstage, point), Node.stage)
        for point in POINTS["unstage"]
    ),
    *(
        Play(
            f"unpublish after {point} was not reached",
            interrupted(staged, Node.publish, point),
            Node.unpublish,
            Node.stage,
        )
        for point in POINTS["publish"]
    ),
    *(
        Play(
            f"publish after {point} was not reached",
            interrupted(published, Node.unpublish, point),
            Node.publish,
            Node.stage,
        )
        for point in POINTS["unpublish"]
    ),
    *(
        Play(
            f"publish elsewhere after {point} was not reached",
            interrupted(staged, Node.publish, point),
            publish_elsewhere,
            Node.stage,
        )
        for point in POINTS["publish"]
    ),
)

ALL = (*UNDISTURBED, *FAILING, *HALF_DONE)
