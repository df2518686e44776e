"""NodeStageVolume: a volume becomes a device of this node, and its file system is mounted.

| stage | effect | probe | undo |
|---|---|---|---|
| `key` | the identity is kept for calls that carry none | whether this one is kept | none |
| `map` | the image becomes a device | the mapper, by pool and image id | it is unmapped |
| `format` | a file system is made, on proof that nothing is there | fact and device | remains go |
| `mount` | the file system is mounted | the mount table | it is unmounted |

Only what a stage made itself is undone: a device or mount that was there before it stays, for it may be in
use.
"""

from __future__ import annotations

from collections.abc import Mapping

from csi.commands import StageVolume
from csi.node.session import NodeSession
from csi.operations import format_stage, map_stage
from csi.operations.map_stage import device_of, is_foreign, is_read_only
from executor.creation import IMAGE
from executor.errors import InvalidError, MismatchError, PreconditionError
from executor.model import Done, Finding, Intention, Object, Operation, Policy, Stage, Verdict, Work
from executor.node_change import NodeChange, NodePlace
from executor.node_marks import STAGED
from executor.node_record import Claim, Kept
from omap.codec import JSON
from omap.store import Place

NAME = "stage_volume"

_COPIED = (
    "cluster",
    "pool",
    "namespace",
    "pool_id",
    "size_bytes",
    IMAGE,
    "access",
    "mounter",
    "map_options",
    "mkfs_options",
)


def call(
    session: NodeSession, command: StageVolume, place: NodePlace, namespace: str
) -> NodeChange[NodeSession]:
    """The request to the executor."""
    handle = command.handle
    asked: Object = {
        "staging_path": command.staging_path,
        "access": command.capability.access,
        "fs_type": command.capability.fs_type,
        "mount_flags": list(command.capability.mount_flags),
        "mode": command.capability.mode.value,
    }

    def plan(recorded: Mapping[str, JSON], kept: Kept) -> Object:
        if kept.state == STAGED:
            _refuse_difference(kept.data, asked)
        return _plan(recorded, asked, handle.uuid)

    def settled(kept: Kept) -> bool:
        if kept.state != STAGED:
            return False
        _refuse_difference(kept.data, asked)
        return True

    return NodeChange(
        operation=OPERATION,
        session=session,
        place=place,
        uuid=handle.uuid,
        label=command.volume_id,
        request=asked,
        home=lambda: Place(handle.cluster_id, session.ceph.pool_name(handle.pool_id), namespace),
        plan=plan,
        same=lambda running: not difference(running, asked),
        settled=settled,
        turns_back=frozenset({"publish_volume", "node_expand_volume"}),
        after=STAGED,
        claim=Claim(takes_writer=command.capability.mode.is_single_writer),
    )


def difference(recorded: Mapping[str, JSON], asked: Mapping[str, JSON]) -> str:
    """In what a stage differs from another; "" when they are the same.

    No file system named is the volume's own.
    """
    for key, name in (("staging_path", "staging path"), ("access", "access type"), ("mode", "access mode")):
        if recorded.get(key) != asked[key]:
            return f"{name} is {recorded.get(key)}, asked for {asked[key]}"
    fs_type = recorded.get("fs_type")
    if asked["fs_type"] and fs_type and fs_type != asked["fs_type"]:
        return f"file system is {fs_type}, asked for {asked['fs_type']}"
    if _flags(recorded) != _flags(asked):
        return f"mount flags are {sorted(_flags(recorded))}, asked for {sorted(_flags(asked))}"
    return ""


def _flags(data: Mapping[str, JSON]) -> set[str]:
    flags = data.get("mount_flags")
    return {str(flag) for flag in flags} if isinstance(flags, list) else set()


def _refuse_difference(recorded: Mapping[str, JSON], asked: Mapping[str, JSON]) -> None:
    differs = difference(recorded, asked)
    if differs:
        msg = (
            f"the volume is staged at {recorded.get('staging_path')} already and differs: {differs}; "
            "unstage it first"
        )
        raise MismatchError(msg)


def _plan(recorded: Mapping[str, JSON], asked: Mapping[str, JSON], uuid: str) -> Object:
    if recorded.get("access") != asked["access"]:
        msg = f"the volume was made for {recorded.get('access')} access and is asked for as {asked['access']}"
        raise InvalidError(msg)
    fs_type = str(recorded.get("fs_type", ""))
    if asked["fs_type"] and asked["fs_type"] != fs_type:
        msg = f"the volume was made for {fs_type} and is asked for with {asked['fs_type']}"
        raise InvalidError(msg)
    return {**{key: recorded.get(key) for key in _COPIED}, **asked, "fs_type": fs_type, "volume": uuid}


# Stage key


def _keep_key(work: Work[NodeSession]) -> Done:
    work.session.host.stage_keys.keep(work.uuid, work.session.credentials)
    return Done()


def _probe_key(work: Work[NodeSession]) -> Finding:
    is_kept = work.session.host.stage_keys.get(work.uuid) == work.session.credentials
    return Finding(Verdict.DONE if is_kept else Verdict.ABSENT)


# Stage mount


def _prepare_mount(work: Work[NodeSession]) -> Intention:
    if work.text("access") == "block":
        return Intention(skip=True)
    return Intention({"was_mounted": work.session.host.mounts.at(work.text("staging_path")) is not None})


def _mount(work: Work[NodeSession]) -> Done:
    flags = [*sorted(_flags(work.data))]
    if is_read_only(work) and "ro" not in flags:
        flags.append("ro")
    work.session.host.mounts.mount(
        device_of(work).path, work.text("staging_path"), work.text("fs_type"), flags
    )
    return Done()


def _probe_mount(work: Work[NodeSession]) -> Finding:
    if work.text("access") == "block":
        return Finding(Verdict.DONE)
    mount = work.session.host.mounts.at(work.text("staging_path"))
    if mount is None:
        return Finding(Verdict.ABSENT)
    device = device_of(work)
    if mount.source != device.path:
        msg = f"{mount.target} carries a mount of {mount.source}, not of {device.path}; unmount that first"
        raise PreconditionError(msg)
    return Finding(Verdict.DONE)


def _unmount(work: Work[NodeSession]) -> Done:
    path = work.text("staging_path")
    if work.text("access") != "block" and not work.data.get("was_mounted") and not is_foreign(work, path):
        work.session.host.mounts.unmount(path)
    return Done()


OPERATION: Operation[NodeSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.REVERT,
    stages=(
        Stage("key", probe=_probe_key, apply=_keep_key),
        map_stage.STAGE,
        format_stage.STAGE,
        Stage("mount", probe=_probe_mount, apply=_mount, undo=_unmount, prepare=_prepare_mount),
    ),
)
