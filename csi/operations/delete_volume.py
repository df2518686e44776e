"""DeleteVolume: the image leaves its name and waits in the trash for its purge.

| stage | effect | probe |
|---|---|---|
| `trash` | the image is moved to the trash | whether it is in the trash, or its name is no longer its own |

A delete only goes forward; as long as it changed nothing it can be refused, and the volume is live as before.
"""

from __future__ import annotations

from csi.clusters import ClusterConfig
from csi.commands import DeleteVolume
from csi.handles import VolumeHandle
from csi.images import ImageCondition
from csi.session import DriverSession
from executor.change import Change
from executor.creation import IMAGE
from executor.model import Done, Finding, Intention, Operation, Policy, Stage, SubjectState, Verdict, Work
from omap.store import Place

NAME = "delete_volume"

RETENTION_SECONDS = 365 * 86400.0
"""How long Ceph itself is told to keep the image; our own purge comes long before."""


def call(
    session: DriverSession, command: DeleteVolume, handle: VolumeHandle, config: ClusterConfig
) -> Change[DriverSession]:
    """The request to the executor.  Raises NotFoundError when the handle's pool is gone."""
    home = Place(handle.cluster_id, session.pool_name(handle.pool_id), config.namespace)
    return Change(
        operation=OPERATION,
        session=session,
        uuid=handle.uuid,
        home=home,
        request={"volume_id": command.volume_id},
        requires=SubjectState.LIVE,
    )


def _prepare(work: Work[DriverSession]) -> Intention:
    """Learn the image's id: under its name it may be another image by the time this is resumed."""
    found = work.session.images(work.home).probe(work.text(IMAGE))
    return Intention({"image_id": found.image_id or str(work.data.get("image_id", ""))})


def _apply(work: Work[DriverSession]) -> Done:
    images, name, image_id = work.session.images(work.home), work.text(IMAGE), work.text("image_id")
    if image_id:
        images.trash(name, image_id, RETENTION_SECONDS)
    else:
        images.remove(name)
    return Done()


def _probe(work: Work[DriverSession]) -> Finding:
    """The trash tells more than the name: the name goes before the move is over."""
    images, image_id = work.session.images(work.home), work.text("image_id")
    for entry in images.trash_entries() if image_id else ():
        if entry.image_id == image_id:
            return Finding(Verdict.HALF_MADE if entry.is_moving else Verdict.DONE)
    found = images.probe(work.text(IMAGE))
    if found.condition is ImageCondition.ABSENT:
        return Finding(Verdict.DONE)
    if found.condition is ImageCondition.WHOLE and image_id and found.image_id != image_id:
        return Finding(Verdict.DONE)
    return Finding(Verdict.ABSENT)


OPERATION: Operation[DriverSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.FORWARD,
    stages=(Stage("trash", probe=_probe, apply=_apply, prepare=_prepare),),
    during=SubjectState.DELETING,
    after=SubjectState.TRASHED,
    needs_unused=True,
)
