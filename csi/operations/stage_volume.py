"""NodeStageVolume: a volume becomes a device of this node, and its file system is mounted.

| stage | effect | probe | undo |
|---|---|---|---|
| `key` | the identity is kept for calls that carry none | whether this one is kept | none |
| `map` | the image becomes a device | the mapper, by pool and image id | it is unmapped |
| `format` | a file system is made, on proof that nothing is there | fact and device | remains go |
| `mount` | the file system is mounted | the mount table | it is unmounted |

**Never over data.**  A file system is made only on a device that looks empty, of an image without a single
data object, and the intent, with this proof and the image's id, is a fact in the record before mkfs begins.
While it stands, only the same stage may make it again, over its own remains: nothing was mounted yet.  That
it was made is a fact before the first mount.  Anything else that is found is refused, and the text says what
it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from csi.commands import StageVolume
from csi.images import ImageCondition
from csi.node.mkfs_options import mkfs_options
from csi.node.ports import Content, Device, Mapper, MapTarget
from csi.node.session import NodeSession
from executor.creation import IMAGE
from executor.errors import InvalidError, MismatchError, NotFoundError, PreconditionError, UnavailableError
from executor.model import (
    Done,
    Fact,
    Finding,
    Intention,
    Object,
    Operation,
    Policy,
    Stage,
    Verdict,
    Work,
)
from executor.node_change import NodeChange, NodePlace
from executor.node_marks import STAGED
from executor.node_record import Claim, Kept
from omap import names
from omap.codec import JSON, decode_object, encode
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
        turns_back=frozenset({"publish_volume"}),
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


# Stage map


def mapper_of(work: Work[NodeSession]) -> Mapper:
    """The mapper that the volume's class names.  Raises PreconditionError for one that this node has not."""
    mounter = work.text("mounter")
    mapper = work.session.host.mappers.get(mounter)
    if mapper is None:
        has = ", ".join(sorted(work.session.host.mappers))
        msg = f"the volume's mounter is {mounter!r}, and this node has: {has}"
        raise PreconditionError(msg)
    return mapper


def device_of(work: Work[NodeSession]) -> Device:
    """The volume's device, its identity checked just now.

    Raises UnavailableError when it is not mapped and PreconditionError when the device shows another image.
    """
    device = mapper_of(work).find(work.uuid)
    if device is None:
        msg = f"volume {work.uuid} is not mapped on this node any more; stage it again"
        raise UnavailableError(msg)
    if (device.pool_id, device.image_id) != (work.number("pool_id"), work.text("image_id")):
        msg = (
            f"{device.path} shows image {device.image_id} of pool {device.pool_id}, where the volume is "
            "image "
            f"{work.text('image_id')} of pool {work.number('pool_id')}; it is not touched"
        )
        raise PreconditionError(msg)
    return device


def _prepare_map(work: Work[NodeSession]) -> Intention:
    mapper_of(work)
    home = work.home
    found = work.session.ceph.images(home).probe(work.text(IMAGE))
    if found.condition is not ImageCondition.WHOLE:
        msg = (
            f"image {work.text(IMAGE)} in {home} is {found.condition.value}: the volume has no data to stage"
        )
        raise NotFoundError(msg)
    is_single = work.data.get("mode") == "SINGLE_NODE_WRITER"
    if is_single and found.watchers and mapper_of(work).find(work.uuid) is None:
        msg = (
            f"image {work.text(IMAGE)} in {home} is open at {', '.join(found.watchers)}; retry once it is "
            "closed "
            "there (a client that died is let go after its watch time-out)"
        )
        raise UnavailableError(msg)
    return Intention({"image_id": found.image_id, "size_bytes": found.size_bytes})


def _map(work: Work[NodeSession]) -> Done:
    target = MapTarget(
        volume=work.uuid,
        place=work.home,
        pool_id=work.number("pool_id"),
        image_name=work.text(IMAGE),
        image_id=work.text("image_id"),
        size_bytes=work.number("size_bytes"),
        monitors=work.session.monitors,
        read_only=_is_read_only(work),
        options=map_options(work.text("map_options"), work.text("mounter")),
    )
    device = mapper_of(work).map(target, work.session.credentials)
    return Done({"device": device.path})


def map_options(given: str, mounter: str) -> tuple[str, ...]:
    """This mounter's options in a parameter such as `krbd:a,b;nbd:c`; a part without a mounter is for all."""
    options: list[str] = []
    for part in given.split(";"):
        name, colon, rest = part.partition(":")
        if not colon:
            rest = name
        elif name.strip() != mounter:
            continue
        options += [option.strip() for option in rest.split(",") if option.strip()]
    return tuple(options)


def _is_read_only(work: Work[NodeSession]) -> bool:
    return str(work.data.get("mode", "")).endswith("READER_ONLY")


def _probe_map(work: Work[NodeSession]) -> Finding:
    device = mapper_of(work).find(work.uuid)
    if device is None or "image_id" not in work.data:
        return Finding(Verdict.ABSENT)
    return Finding(Verdict.DONE, {"device": device_of(work).path})


def _unmap(work: Work[NodeSession]) -> Done:
    mapper_of(work).unmap(work.uuid)
    return Done()


# Stage format


def _read_format(work: Work[NodeSession]) -> bytes | None:
    store = work.session.store(work.home)
    return store.read_keys(names.record_name(work.uuid), [names.FORMAT]).get(names.FORMAT)


def _prepare_format(work: Work[NodeSession]) -> Intention:
    if work.text("access") == "block":
        return Intention(skip=True)
    wanted = work.text("fs_type")
    device = device_of(work)
    recorded = _read_format(work)
    said = decode_object(recorded, names.FORMAT) if recorded else {}
    found = work.session.host.file_systems.detect(device.path)
    is_there = found.content is Content.FILE_SYSTEM and found.kind == wanted
    if said.get("state") == "formatted":
        if not is_there:
            msg = (
                f"volume {work.uuid} was formatted with {said.get('fs_type')}, but its device carries "
                f"{_shown(found.content, found.kind)}: it is never formatted again; look at the image "
                "before anything else"
            )
            raise PreconditionError(msg)
        return Intention(skip=True)
    if said and not _is_mine(said, work):
        msg = (
            f"node {said.get('node')} began to make a file system on volume {work.uuid} and has not "
            "finished; "
            "unstage it there first"
        )
        raise PreconditionError(msg)
    if is_there:
        made: Object = {**_intent(work, wanted), "state": "formatted", "proof": "found with its file system"}
        return Intention(facts=(Fact(names.FORMAT, recorded, encode(made)),), skip=True)
    _refuse_content(work, found.content, found.kind)
    if work.session.ceph.images(work.home).is_allocated(work.text(IMAGE)):
        msg = (
            f"image {work.text(IMAGE)} of volume {work.uuid} looks empty but has data objects: it is not "
            "formatted; "
            "if they are of no worth, discard the image and stage again"
        )
        raise PreconditionError(msg)
    if _is_read_only(work):
        msg = (
            f"volume {work.uuid} has no file system yet, and a read-only stage makes none; stage it for "
            "writing first"
        )
        raise PreconditionError(msg)
    intent = _intent(work, wanted)
    return Intention({"format": intent}, (Fact(names.FORMAT, recorded, encode(intent)),))


def _intent(work: Work[NodeSession], fs_type: str) -> Object:
    return {
        "state": "intended",
        "node": work.text("node"),
        "boot": work.text("boot"),
        "image_id": work.text("image_id"),
        "size_bytes": work.number("size_bytes"),
        "fs_type": fs_type,
        "proof": "no allocated object",
    }


def _is_mine(said: Mapping[str, JSON], work: Work[NodeSession]) -> bool:
    return said.get("node") == work.text("node") and said.get("image_id") == work.text("image_id")


def _refuse_content(work: Work[NodeSession], content: Content, kind: str) -> None:
    if content is not Content.EMPTY:
        msg = (
            f"the device of volume {work.uuid} carries {_shown(content, kind)} where {work.text('fs_type')} "
            "was to be "
            "made: nothing is formatted over it; use a volume of that kind, or discard the image if it is "
            "of no worth"
        )
        raise PreconditionError(msg)


def _shown(content: Content, kind: str) -> str:
    if content is Content.EMPTY:
        return "nothing"
    return kind or "data that no tool knows"


def _format(work: Work[NodeSession]) -> Done:
    intent = work.data.get("format")
    assert isinstance(intent, dict)
    options = mkfs_options(work.text("fs_type"), work.text("mkfs_options"))
    work.session.host.file_systems.make(device_of(work).path, work.text("fs_type"), options)
    made = {**intent, "state": "formatted"}
    return Done(facts=(Fact(names.FORMAT, encode(intent), encode(made)),))


def _probe_format(work: Work[NodeSession]) -> Finding:
    if work.text("access") == "block" or "format" not in work.data:
        return Finding(Verdict.DONE)
    recorded = _read_format(work)
    if recorded is not None and decode_object(recorded, names.FORMAT).get("state") == "formatted":
        return Finding(Verdict.DONE)
    # However whole it looks, mkfs may have been cut short: only the recorded fact says that it ended.
    found = work.session.host.file_systems.detect(device_of(work).path)
    is_allocated = work.session.ceph.images(work.home).is_allocated(work.text(IMAGE))
    is_absent = found.content is Content.EMPTY and not is_allocated
    return Finding(Verdict.ABSENT if is_absent else Verdict.HALF_MADE)


def _erase(work: Work[NodeSession]) -> None:
    """Discard the remains of one's own mkfs: its intent stands recorded, and no mount was ever intended."""
    intent = work.data.get("format")
    recorded = _read_format(work)
    if not isinstance(intent, dict) or recorded != encode(intent):
        msg = (
            f"the record of volume {work.uuid} holds no intent of this stage to format it: nothing is erased"
        )
        raise PreconditionError(msg)
    work.session.host.file_systems.erase(device_of(work).path)


def _undo_format(work: Work[NodeSession]) -> Done:
    intent = work.data.get("format")
    if not isinstance(intent, dict):
        return Done()
    recorded = _read_format(work)
    if recorded != encode(intent):
        return Done()
    mapper = mapper_of(work)
    if mapper.find(work.uuid) is None:
        _map(work)
    _erase(work)
    return Done(facts=(Fact(names.FORMAT, encode(intent), None),))


# Stage mount


def _prepare_mount(work: Work[NodeSession]) -> Intention:
    return Intention(skip=work.text("access") == "block")


def _mount(work: Work[NodeSession]) -> Done:
    flags = [*sorted(_flags(work.data))]
    if _is_read_only(work) and "ro" not in flags:
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
    if work.text("access") != "block":
        work.session.host.mounts.unmount(work.text("staging_path"))
    return Done()


OPERATION: Operation[NodeSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.REVERT,
    stages=(
        Stage("key", probe=_probe_key, apply=_keep_key),
        Stage("map", probe=_probe_map, apply=_map, undo=_unmap, prepare=_prepare_map),
        Stage(
            "format",
            probe=_probe_format,
            apply=_format,
            undo=_undo_format,
            prepare=_prepare_format,
            repair=_erase,
        ),
        Stage("mount", probe=_probe_mount, apply=_mount, undo=_unmount, prepare=_prepare_mount),
    ),
)
