"""The stage of NodeStageVolume that makes a file system, and never over data.

A file system is made only on a device that looks empty, of an image without a single data object, and the
intent, with this proof and the image's id, is a fact in the record before mkfs begins.  While it stands, only
the same node may make it again, over its own remains: nothing was mounted yet.  That it was made is a fact
before the first mount.  Anything else that is found is refused, and the text says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from csi.node.mkfs_options import mkfs_options
from csi.node.ports import Content
from csi.node.session import NodeSession
from csi.operations import map_stage
from csi.operations.map_stage import device_of, is_read_only, mapper_of
from executor.creation import IMAGE
from executor.errors import PreconditionError
from executor.model import Done, Fact, Finding, Intention, Object, Stage, Verdict, Work
from omap import names
from omap.codec import JSON, decode_object, encode
from omap.store import ObjectMissingError


def _read_format(work: Work[NodeSession]) -> bytes | None:
    store = work.session.store(work.home)
    return store.read_keys(names.record_name(work.uuid), [names.FORMAT]).get(names.FORMAT)


def _prepare(work: Work[NodeSession]) -> Intention:
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
    if said:
        _refuse_intent(work, said)
    elif is_there:
        made: Object = {**_intent(work, wanted), "state": "formatted", "proof": "found with its file system"}
        return Intention(facts=(Fact(names.FORMAT, recorded, encode(made)),), skip=True)
    else:
        _refuse_data(work, found.content, found.kind)
    if is_read_only(work):
        msg = (
            f"volume {work.uuid} has no file system yet, and a read-only stage makes none; stage it for "
            "writing first"
        )
        raise PreconditionError(msg)
    mkfs_options(wanted, work.text("mkfs_options"))
    intent = _intent(work, wanted)
    return Intention(
        {"format": intent, "has_remains": bool(said)}, (Fact(names.FORMAT, recorded, encode(intent)),)
    )


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


def _refuse_intent(work: Work[NodeSession], said: Mapping[str, JSON]) -> None:
    """Refuse to go on from an intent that is not this node's, or was about another image.

    This node's own, of a stage that is not known here any more, is gone on from: nothing was ever mounted, so
    whatever is on the device is the remains of its mkfs, however whole it looks.
    """
    if said.get("node") != work.text("node"):
        msg = (
            f"node {said.get('node')} began to make a file system on volume {work.uuid} and has not "
            "finished; unstage it there first"
        )
        raise PreconditionError(msg)
    if said.get("image_id") != work.text("image_id"):
        msg = (
            f"a file system was begun on image {said.get('image_id')} of volume {work.uuid}, whose image is "
            f"{work.text('image_id')} now: it is not formatted; look at who replaced the image"
        )
        raise PreconditionError(msg)


def _refuse_data(work: Work[NodeSession], content: Content, kind: str) -> None:
    if content is not Content.EMPTY:
        msg = (
            f"the device of volume {work.uuid} carries {_shown(content, kind)} where {work.text('fs_type')} "
            "was to be made: nothing is formatted over it; use a volume of that kind, or discard the image "
            "if it is of no worth"
        )
        raise PreconditionError(msg)
    if work.session.ceph.images(work.home).is_allocated(work.text(IMAGE)):
        msg = (
            f"image {work.text(IMAGE)} of volume {work.uuid} looks empty but has data objects: it is not "
            "formatted; if they are of no worth, discard the image and stage again"
        )
        raise PreconditionError(msg)


def _shown(content: Content, kind: str) -> str:
    if content is Content.EMPTY:
        return "nothing"
    return kind or "data that no tool knows"


def _make(work: Work[NodeSession]) -> Done:
    intent = work.data.get("format")
    assert isinstance(intent, dict)
    options = mkfs_options(work.text("fs_type"), work.text("mkfs_options"))
    if work.data.get("has_remains"):
        _erase(work)
    work.session.host.file_systems.make(device_of(work).path, work.text("fs_type"), options)
    made = {**intent, "state": "formatted"}
    return Done(facts=(Fact(names.FORMAT, encode(intent), encode(made)),))


def _probe(work: Work[NodeSession]) -> Finding:
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


def _undo(work: Work[NodeSession]) -> Done:
    intent = work.data.get("format")
    if not isinstance(intent, dict):
        return Done()
    try:
        recorded = _read_format(work)
    except ObjectMissingError:
        return Done()  # with the volume its image is gone, and whatever was on it
    if recorded != encode(intent):
        return Done()
    if mapper_of(work).find(work.uuid) is None:
        map_stage.STAGE.apply(work)
    work.session.host.file_systems.erase(device_of(work).path)
    return Done(facts=(Fact(names.FORMAT, encode(intent), None),))


STAGE: Stage[NodeSession] = Stage(
    "format",
    probe=_probe,
    apply=_make,
    undo=_undo,
    prepare=_prepare,
    repair=_erase,
)
