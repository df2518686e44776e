"""NodeExpandVolume: what lies on a volume fills the volume that became larger, in use or not.

| stage | effect | probe |
|---|---|---|
| `device` | the device shows the image's size | the device's size |
| `filesystem` | the file system fills the device | its own size |

It is the image that says how large the volume is, not the caller, who only passes on what it was told.
Neither stage has anything to undo: whoever comes in between (an unstage) drops what is unfinished.
"""

from __future__ import annotations

from csi.commands import NodeExpandVolume
from csi.images import ImageCondition
from csi.node.session import NodeSession
from csi.operations.map_stage import device_of, mapper_of
from csi.operations.publish_volume import published_in
from executor.creation import IMAGE
from executor.errors import NotFoundError
from executor.model import Done, Finding, Intention, Object, Operation, Policy, Stage, Verdict, Work
from executor.node_change import UNKNOWN_HOME, NodeChange, NodePlace
from executor.node_marks import STAGED
from executor.node_record import Kept

NAME = "node_expand_volume"

_KEPT = ("mounter", "pool_id", "image_id", "staging_path", "access", "fs_type", IMAGE)


def call(session: NodeSession, command: NodeExpandVolume, place: NodePlace) -> NodeChange[NodeSession]:
    """The request to the executor."""
    asked: Object = {"wanted_bytes": command.size_bytes}

    def check(kept: Kept) -> None:
        paths = {kept.data.get("staging_path"), *published_in(kept)}
        if kept.state != STAGED or command.volume_path not in paths:
            raise NotFoundError(
                f"volume {command.volume_id} is not at {command.volume_path} on this node; stage it first"
            )

    def plan(_recorded: object, kept: Kept) -> Object:
        check(kept)
        return {key: kept.data.get(key) for key in _KEPT}

    def settled(kept: Kept) -> bool:
        check(kept)
        mapper = session.host.mappers.get(str(kept.data.get("mounter")))
        device = mapper.find(command.handle.uuid) if mapper is not None else None
        # Without a size, or before the device has noticed, the image has to be asked how large it is.
        return device is not None and 0 < command.size_bytes <= session.host.mounts.device_size(device.path)

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
        turns_back=frozenset({NAME}),
    )


def _prepare(work: Work[NodeSession]) -> Intention:
    return Intention({"size_bytes": _image_bytes(work)})


def _image_bytes(work: Work[NodeSession]) -> int:
    found = work.session.ceph.images(work.home).probe(work.text(IMAGE))
    if found.condition is not ImageCondition.WHOLE or found.image_id != work.text("image_id"):
        raise NotFoundError(f"image {work.text(IMAGE)} in {work.home} is not the one that is mapped any more")
    return found.size_bytes


def _grow_device(work: Work[NodeSession]) -> Done:
    """Asks once more: what was intended may be long ago, and a mapper may make the image as large as told."""
    device_of(work)
    size = _image_bytes(work)
    mapper_of(work).expand(work.uuid, size)
    return Done({"size_bytes": size})


def _probe_device(work: Work[NodeSession]) -> Finding:
    size = work.session.host.mounts.device_size(device_of(work).path)
    return Finding(Verdict.DONE if size >= work.number("size_bytes") else Verdict.ABSENT)


def _prepare_filesystem(work: Work[NodeSession]) -> Intention:
    return Intention(skip=work.text("access") == "block")


def _grow_filesystem(work: Work[NodeSession]) -> Done:
    work.session.host.file_systems.grow(device_of(work).path, work.text("staging_path"), work.text("fs_type"))
    return Done()


def _probe_filesystem(work: Work[NodeSession]) -> Finding:
    if work.text("access") == "block":
        return Finding(Verdict.DONE)
    fills = work.session.host.file_systems.fills(
        device_of(work).path, work.text("staging_path"), work.text("fs_type")
    )
    return Finding(Verdict.DONE if fills else Verdict.ABSENT)


OPERATION: Operation[NodeSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.REVERT,
    stages=(
        Stage("device", probe=_probe_device, apply=_grow_device, prepare=_prepare),
        Stage("filesystem", probe=_probe_filesystem, apply=_grow_filesystem, prepare=_prepare_filesystem),
    ),
)
