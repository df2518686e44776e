"""The purge: an image whose time in the trash is over goes for good, and its record becomes a tombstone.

| stage | effect | probe |
|---|---|---|
| `purge` | the image is removed from the trash with all its objects | whether the trash still has it |
"""

from __future__ import annotations

from csi.session import DriverSession
from executor.model import Done, Finding, Operation, Policy, Stage, SubjectState, Verdict, Work

NAME = "purge_volume"


def _apply(work: Work[DriverSession]) -> Done:
    image_id = str(work.data.get("image_id", ""))
    if image_id:
        work.session.images(work.home).purge(image_id)
    return Done()


def _probe(work: Work[DriverSession]) -> Finding:
    """The trash entry goes last, so while it is there the removal is not over."""
    image_id = str(work.data.get("image_id", ""))
    entries = work.session.images(work.home).trash_entries() if image_id else ()
    is_there = any(entry.image_id == image_id for entry in entries)
    return Finding(Verdict.ABSENT if is_there else Verdict.DONE)


OPERATION: Operation[DriverSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.FORWARD,
    stages=(Stage("purge", probe=_probe, apply=_apply),),
    during=SubjectState.PURGING,
    after=SubjectState.GONE,
)
