"""CreateVolume: an image under a name that the intent fixes.

| stage | effect | probe | undo |
|---|---|---|---|
| `image` | the RBD image is made | every object that librbd makes | it is removed, half-made or whole |
"""

from __future__ import annotations

from collections.abc import Mapping

from csi import handles
from csi.clusters import ClusterConfig
from csi.commands import CreateVolume
from csi.handles import VolumeHandle
from csi.images import ImageCondition, ImageSpec
from csi.node.mkfs_options import mkfs_options
from csi.services.ports import CreatedVolume
from csi.session import DriverSession
from executor.creation import IMAGE, Creation
from executor.errors import PreconditionError
from executor.model import Done, Finding, Object, Operation, Policy, Stage, SubjectState, Verdict, Work
from omap.codec import JSON
from omap.store import Place

NAME = "create_volume"

_FIXED: Mapping[str, str] = {
    "cluster": "clusterID",
    "pool": "pool",
    "namespace": "radosNamespace",
    "data_pool": "dataPool",
    "features": "imageFeatures",
    "access": "access type",
    "fs_type": "file system",
    "mkfs_options": "mkfsOptions",
    "mounter": "mounter",
    "map_options": "mapOptions",
    "name_prefix": "volumeNamePrefix",
}
"""What two requests for one volume must agree in, and how a person calls it.  The size is compared by its
range;
topology, metadata, secrets and mount flags are not part of what a volume is."""


def call(session: DriverSession, command: CreateVolume, config: ClusterConfig) -> Creation[DriverSession]:
    """The request to the executor."""
    parameters = command.parameters
    home = Place(parameters.cluster_id, parameters.pool, config.namespace)
    journal = Place(parameters.cluster_id, config.journal_pool or parameters.pool, config.namespace)
    asked = _asked(command, config)
    if command.access == "mount":
        # A class that no node could make a file system of is refused before anything is made.
        mkfs_options(command.fs_type, parameters.mkfs_options)

    def check() -> None:
        session.images(home).check_place(parameters.data_pool)
        session.pool_id(journal.pool)

    def plan(uuid: str) -> Object:
        pool_id = session.pool_id(parameters.pool)
        return {**asked, "pool_id": pool_id, IMAGE: f"{parameters.name_prefix}{uuid}"}

    return Creation(
        operation=OPERATION,
        session=session,
        name=command.name,
        journal=journal,
        home=home,
        request={**asked, "required_bytes": command.required_bytes, "limit_bytes": command.limit_bytes},
        plan=plan,
        difference=lambda recorded: difference(recorded, asked, command.required_bytes, command.limit_bytes),
        check=check,
    )


def difference(recorded: Mapping[str, JSON], asked: Mapping[str, JSON], required: int, limit: int) -> str:
    """In what a recorded volume differs from what is asked for; "" when it is what is asked for."""
    for key, name in _FIXED.items():
        if recorded.get(key) != asked[key]:
            return f"{name} is {_shown(recorded.get(key))}, asked for {_shown(asked[key])}"
    size = recorded.get("size_bytes")
    if not isinstance(size, int) or size < required or (limit and size > limit):
        wanted = f"at least {required}" + (f" and at most {limit}" if limit else "")
        return f"size is {size} bytes, asked for {wanted}"
    if not required and not limit and size != asked["size_bytes"]:
        return f"size is {size} bytes, asked for the default of {asked['size_bytes']}"
    return ""


def created(result: Mapping[str, JSON]) -> CreatedVolume:
    """The volume as its creator is told of it."""
    pool_id = result["pool_id"]
    handle = VolumeHandle(
        str(result["cluster"]), pool_id if isinstance(pool_id, int) else 0, str(result["uuid"])
    )
    size = result["size_bytes"]
    context = {
        "clusterID": str(result["cluster"]),
        "pool": str(result["pool"]),
        "imageName": str(result[IMAGE]),
    }
    return CreatedVolume(handles.encode(handle), size if isinstance(size, int) else 0, context)


def _asked(command: CreateVolume, config: ClusterConfig) -> Object:
    parameters = command.parameters
    return {
        "cluster": parameters.cluster_id,
        "pool": parameters.pool,
        "namespace": config.namespace,
        "data_pool": parameters.data_pool,
        "features": parameters.features,
        "access": command.access,
        "fs_type": command.fs_type,
        "mkfs_options": parameters.mkfs_options,
        "mounter": parameters.mounter,
        "map_options": parameters.map_options,
        "name_prefix": parameters.name_prefix,
        "size_bytes": command.size_bytes,
    }


def _shown(value: JSON) -> str:
    return "none" if value in (None, "") else str(value)


def _spec(work: Work[DriverSession]) -> ImageSpec:
    data_pool = work.data.get("data_pool")
    return ImageSpec(
        name=work.text(IMAGE),
        size_bytes=work.number("size_bytes"),
        features=work.number("features"),
        data_pool=data_pool if isinstance(data_pool, str) else None,
    )


def _apply(work: Work[DriverSession]) -> Done:
    work.session.images(work.home).create(_spec(work))
    return Done()


def _probe(work: Work[DriverSession]) -> Finding:
    spec = _spec(work)
    found = work.session.images(work.home).probe(spec.name)
    if found.condition is ImageCondition.ABSENT:
        return Finding(Verdict.ABSENT)
    if found.condition is ImageCondition.HALF_MADE:
        return Finding(Verdict.HALF_MADE)
    if found.size_bytes != spec.size_bytes:
        msg = (
            f"image {spec.name} in {work.home} has {found.size_bytes} bytes where {spec.size_bytes} were "
            "planned: "
            "somebody else changed it; look at it with `rbd info` before anything is done to it"
        )
        raise PreconditionError(msg)
    return Finding(Verdict.DONE, {"image_id": found.image_id})


def _repair(work: Work[DriverSession]) -> None:
    work.session.images(work.home).repair(work.text(IMAGE))


def _undo(work: Work[DriverSession]) -> Done:
    work.session.images(work.home).remove(work.text(IMAGE))
    return Done()


OPERATION: Operation[DriverSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.REVERT,
    stages=(Stage("image", probe=_probe, apply=_apply, undo=_undo, repair=_repair),),
    during=SubjectState.CREATING,
    after=SubjectState.LIVE,
)
