"""The stage of NodeStageVolume that makes the image a device, and what others ask of that device."""

from __future__ import annotations

from csi.images import ImageCondition
from csi.node.ports import Device, Mapper, MapTarget
from csi.node.session import NodeSession
from executor.creation import IMAGE
from executor.errors import NotFoundError, PreconditionError, UnavailableError
from executor.model import Done, Finding, Intention, Stage, Verdict, Work


def mapper_of(work: Work[NodeSession]) -> Mapper:
    """The mapper that the volume's class names.  Raises PreconditionError for one that this node has not."""
    mounter = work.text("mounter")
    mapper = work.session.host.mappers.get(mounter)
    if mapper is None:
        has = ", ".join(sorted(work.session.host.mappers))
        msg = f"the volume's mounter is {mounter!r}, and this node has: {has}"
        raise PreconditionError(msg)
    return mapper


def device_of(work: Work[NodeSession], image_id: str = "") -> Device:
    """The volume's device, its identity checked just now against this image's, or the recorded one's.

    Raises UnavailableError when it is not mapped and PreconditionError when the device shows another image.
    """
    image_id = image_id or work.text("image_id")
    device = mapper_of(work).find(work.uuid)
    if device is None:
        msg = f"volume {work.uuid} is not mapped on this node any more; stage it again"
        raise UnavailableError(msg)
    if (device.pool_id, device.image_id) != (work.number("pool_id"), image_id):
        msg = (
            f"{device.path} shows image {device.image_id} of pool {device.pool_id}, where the volume is "
            f"image {image_id} of pool {work.number('pool_id')}; it is not touched; unstage the volume first"
        )
        raise PreconditionError(msg)
    return device


def is_foreign(work: Work[NodeSession], path: str) -> bool:
    """Whether something is mounted at this path that is not the volume's device.

    While the device is not there nothing can be told, and the answer is no.
    """
    mounts = work.session.host.mounts
    device = mapper_of(work).find(work.uuid)
    if device is None or mounts.at(path) is None:
        return False
    return all(mount.target != path for mount in mounts.of_device(device.path))


def _prepare(work: Work[NodeSession]) -> Intention:
    mapper = mapper_of(work)
    home = work.home
    found = work.session.ceph.images(home).probe(work.text(IMAGE))
    if found.condition is not ImageCondition.WHOLE:
        msg = (
            f"image {work.text(IMAGE)} in {home} is {found.condition.value}: the volume has no data to stage"
        )
        raise NotFoundError(msg)
    was_clear = mapper.is_clear(work.uuid)
    if not was_clear and mapper.find(work.uuid) is not None:
        device_of(work, found.image_id)
    own = mapper.watching(work.uuid)
    others = () if own is None else tuple(each for each in found.watchers if each not in own)
    if others and work.data.get("mode") == "SINGLE_NODE_WRITER":
        msg = (
            f"image {work.text(IMAGE)} in {home} is open at {', '.join(others)}; retry once it is closed "
            "there (a client that died is let go after its watch time-out)"
        )
        raise UnavailableError(msg)
    return Intention(
        {
            "image_id": found.image_id,
            "size_bytes": found.size_bytes,
            "features": found.features,
            "fsid": work.session.ceph.fsid,
            "was_mapped": not was_clear,
        }
    )


def _map(work: Work[NodeSession]) -> Done:
    target = MapTarget(
        volume=work.uuid,
        place=work.home,
        pool_id=work.number("pool_id"),
        image_name=work.text(IMAGE),
        image_id=work.text("image_id"),
        size_bytes=work.number("size_bytes"),
        monitors=work.session.monitors,
        read_only=is_read_only(work),
        options=map_options(work.text("map_options"), work.text("mounter")),
        fsid=work.text("fsid"),
        features=work.number("features"),
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


def is_read_only(work: Work[NodeSession]) -> bool:
    """Whether the stage is for reading only."""
    return str(work.data.get("mode", "")).endswith("READER_ONLY")


def _probe(work: Work[NodeSession]) -> Finding:
    device = mapper_of(work).find(work.uuid)
    if device is None or "image_id" not in work.data:
        return Finding(Verdict.ABSENT)
    return Finding(Verdict.DONE, {"device": device_of(work).path})


def _unmap(work: Work[NodeSession]) -> Done:
    if not work.data.get("was_mapped"):
        mapper_of(work).unmap(work.uuid)
    return Done()


STAGE: Stage[NodeSession] = Stage("map", probe=_probe, apply=_map, undo=_unmap, prepare=_prepare)
