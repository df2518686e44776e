"""ControllerExpandVolume: the image becomes larger.

| stage | effect | probe |
|---|---|---|
| `resize` | the image gets its new size | whether it is that large |

An attempt that fails leaves the volume as it was.  The size that is told and recorded is the image's own.
What lies on the image grows on the node, in `csi.operations.node_expand_volume`.
"""

from __future__ import annotations

from collections.abc import Mapping

from csi.clusters import ClusterConfig
from csi.commands import ExpandVolume
from csi.images import ImageCondition
from csi.requests import capacity
from csi.session import DriverSession
from executor.change import Change
from executor.creation import IMAGE
from executor.errors import NotFoundError, OutOfRangeError, UnavailableError
from executor.model import Done, Finding, Intention, Operation, Policy, Stage, SubjectState, Verdict, Work
from omap.codec import JSON
from omap.store import Place

NAME = "expand_volume"

SIZE = "size_bytes"
"""Key of a request's and of a record's data."""

LIMIT = "limit_bytes"
"""Key of a request's data; 0 without a limit."""


def call(session: DriverSession, command: ExpandVolume, config: ClusterConfig) -> Change[DriverSession]:
    """The request to the executor.  Raises NotFoundError when the handle's pool is gone."""
    handle = command.handle
    home = Place(handle.cluster_id, session.pool_name(handle.pool_id), config.namespace)

    def settled(recorded: Mapping[str, JSON]) -> bool:
        has, features = _number(recorded, SIZE), _number(recorded, "features")
        _refuse_above(command.limit_bytes, f"volume {command.volume_id}", has)
        if has >= command.size_bytes:
            return True
        capacity.check_largest(command.size_bytes, features)
        return False

    return Change(
        operation=OPERATION,
        session=session,
        uuid=handle.uuid,
        home=home,
        request={SIZE: command.size_bytes, LIMIT: command.limit_bytes},
        requires=SubjectState.LIVE,
        settled=settled,
    )


def size_of(result: Mapping[str, JSON]) -> int:
    """The size that the volume has now."""
    return _number(result, SIZE)


def _refuse_above(limit: int, what: str, has: int) -> None:
    if limit and has > limit:
        raise OutOfRangeError(
            f"{what} has {has} bytes already, more than limit_bytes {limit}; a volume never becomes smaller"
        )


def _number(data: Mapping[str, JSON], key: str) -> int:
    value = data.get(key)
    return value if isinstance(value, int) else 0


def _prepare(work: Work[DriverSession]) -> Intention:
    found = work.session.images(work.home).probe(work.text(IMAGE))
    if found.condition is not ImageCondition.WHOLE:
        raise NotFoundError(
            f"image {work.text(IMAGE)} in {work.home} is {found.condition.value}: there is nothing to expand"
        )
    _refuse_above(_number(work.request, LIMIT), f"image {work.text(IMAGE)} in {work.home}", found.size_bytes)
    return Intention({"image_id": found.image_id})


def _apply(work: Work[DriverSession]) -> Done:
    wanted = _number(work.request, SIZE)
    try:
        size = work.session.images(work.home).expand(work.text("image_id"), wanted)
    except NotFoundError as error:
        # It was there when this began, and a full pool answers so too.
        raise UnavailableError(f"{error}; look at the cluster's health, it is tried again") from error
    return Done({SIZE: size})


def _probe(work: Work[DriverSession]) -> Finding:
    wanted, found = _number(work.request, SIZE), work.session.images(work.home).probe(work.text(IMAGE))
    is_done = found.condition is ImageCondition.WHOLE and found.size_bytes >= wanted
    return Finding(Verdict.DONE, {SIZE: found.size_bytes}) if is_done else Finding(Verdict.ABSENT)


OPERATION: Operation[DriverSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.KEEP,
    stages=(Stage("resize", probe=_probe, apply=_apply, prepare=_prepare),),
)
