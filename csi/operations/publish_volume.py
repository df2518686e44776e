"""NodePublishVolume: the staged volume is shown at a container's path.

| stage | effect | probe | undo |
|---|---|---|---|
| `bind` | staging path, or device node, is bound to the target | the mount table | it is unmounted |

A mount that was at the target before is not undone.
"""

from __future__ import annotations

from collections.abc import Mapping

from csi.commands import PublishVolume
from csi.node.session import NodeSession
from csi.operations.map_stage import device_of, is_foreign
from executor.errors import MismatchError, PreconditionError
from executor.model import Done, Finding, Intention, Object, Operation, Policy, Stage, Verdict, Work
from executor.node_change import UNKNOWN_HOME, NodeChange, NodePlace
from executor.node_marks import STAGED
from executor.node_record import Kept
from omap.codec import JSON

NAME = "publish_volume"

PUBLISHED = "published"
"""Key of a node's data: target path -> how it is published there."""

_STAGED = ("mounter", "pool_id", "image_id", "staging_path", "access")


def call(session: NodeSession, command: PublishVolume, place: NodePlace) -> NodeChange[NodeSession]:
    """The request to the executor."""
    how: Object = {
        "readonly": command.readonly,
        "access": command.capability.access,
        "mode": command.capability.mode.value,
        "fs_type": command.capability.fs_type,
        "staging_path": command.staging_path,
    }
    asked: Object = {
        "target_path": command.target_path,
        "target_is_read_only": command.readonly or command.capability.mode.is_read_only,
        "target": how,
    }

    def plan(_recorded: Mapping[str, JSON], kept: Kept) -> Object:
        _refuse_unstaged(command, kept)
        published = published_in(kept)
        _refuse_difference(command.target_path, published.get(command.target_path), how)
        staged = {key: kept.data.get(key) for key in _STAGED}
        return {**staged, **asked, PUBLISHED: {**published, command.target_path: how}}

    def settled(kept: Kept) -> bool:
        _refuse_unstaged(command, kept)
        recorded = published_in(kept).get(command.target_path)
        _refuse_difference(command.target_path, recorded, how)
        return recorded is not None

    return NodeChange(
        operation=OPERATION,
        session=session,
        place=place,
        uuid=command.handle.uuid,
        label=command.volume_id,
        request=asked,
        home=lambda: UNKNOWN_HOME,
        plan=plan,
        same=lambda running: dict(running) == asked,
        settled=settled,
        turns_back=frozenset({NAME, "node_expand_volume"}),
    )


def published_in(kept: Kept) -> Object:
    """Where a node has published the volume, and how."""
    published = kept.data.get(PUBLISHED)
    return published if isinstance(published, dict) else {}


def _refuse_unstaged(command: PublishVolume, kept: Kept) -> None:
    if kept.state != STAGED:
        msg = f"volume {command.volume_id} is not staged on this node; stage it before it is published"
        raise PreconditionError(msg)
    if kept.data.get("staging_path") != command.staging_path:
        msg = (
            f"volume {command.volume_id} is staged at {kept.data.get('staging_path')}, not at "
            f"{command.staging_path}; "
            "publish it from there"
        )
        raise PreconditionError(msg)
    if kept.data.get("access") != command.capability.access:
        msg = f"volume {command.volume_id} is staged for {kept.data.get('access')} access; publish it as that"
        raise MismatchError(msg)


def _refuse_difference(target: str, recorded: JSON, how: Mapping[str, JSON]) -> None:
    if isinstance(recorded, dict) and recorded != how:
        differing = ", ".join(sorted(key for key in how if recorded.get(key) != how[key]))
        msg = f"{target} shows the volume already and differs in: {differing}; unpublish it first"
        raise MismatchError(msg)


def _prepare(work: Work[NodeSession]) -> Intention:
    return Intention({"was_bound": work.session.host.mounts.at(work.text("target_path")) is not None})


def _bind(work: Work[NodeSession]) -> Done:
    mounts = work.session.host.mounts
    is_device = work.text("access") == "block"
    device = device_of(work)
    source = device.path if is_device else work.text("staging_path")
    if not is_device:
        staged = mounts.at(source)
        if staged is None or staged.source != device.path:
            msg = (
                f"nothing of the volume is mounted at {source}: a plain folder is never published; stage it "
                "again"
            )
            raise PreconditionError(msg)
    mounts.bind(source, work.text("target_path"), read_only=_is_read_only(work), is_device=is_device)
    return Done()


def _is_read_only(work: Work[NodeSession]) -> bool:
    return bool(work.data.get("target_is_read_only"))


def _probe(work: Work[NodeSession]) -> Finding:
    mounts, target = work.session.host.mounts, work.text("target_path")
    mount = mounts.at(target)
    if mount is None:
        return Finding(Verdict.ABSENT)
    device = device_of(work)
    if is_foreign(work, target):
        msg = f"{target} carries a mount of {mount.source}, not of {device.path}; unmount that first"
        raise PreconditionError(msg)
    # A bind is made in two steps, the second of which makes it read-only.
    is_whole = "ro" in mount.options or not _is_read_only(work)
    return Finding(Verdict.DONE if is_whole else Verdict.ABSENT)


def _unbind(work: Work[NodeSession]) -> Done:
    target = work.text("target_path")
    if not work.data.get("was_bound") and not is_foreign(work, target):
        work.session.host.mounts.unmount(target)
    return Done()


OPERATION: Operation[NodeSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.REVERT,
    stages=(Stage("bind", probe=_probe, apply=_bind, undo=_unbind, prepare=_prepare),),
)
