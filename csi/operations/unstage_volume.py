"""NodeUnstageVolume: the file system is unmounted and the device goes.

| stage | effect | probe |
|---|---|---|
| `unmount` | the staging path is unmounted and removed | the mount table and the path |
| `unmap` | the device is taken away | the mapper |

It only goes forward, and needs neither a secret nor the cluster.
"""

from __future__ import annotations

from csi.commands import UnstageVolume
from csi.node.session import NodeSession
from csi.operations.publish_volume import PUBLISHED, published_in
from executor.errors import InUseError, PreconditionError
from executor.model import Done, Finding, Object, Operation, Policy, Stage, Verdict, Work
from executor.node_change import UNKNOWN_HOME, NodeChange, NodePlace
from executor.node_marks import STAGED, UNSTAGED
from executor.node_record import Kept

NAME = "unstage_volume"


def call(session: NodeSession, command: UnstageVolume, place: NodePlace) -> NodeChange[NodeSession]:
    """The request to the executor."""
    asked: Object = {"staging_path": command.staging_path}

    def plan(_recorded: object, kept: Kept) -> Object:
        # What the kernel no longer has (the host was restarted) needs no unpublish.
        published = [path for path in published_in(kept) if session.host.mounts.at(path) is not None]
        if published:
            where = ", ".join(sorted(published))
            msg = f"volume {command.volume_id} is still published at {where}; unpublish it first"
            raise InUseError(msg)
        recorded = kept.data.get("staging_path")
        if kept.state == STAGED and recorded != command.staging_path:
            msg = f"volume {command.volume_id} is staged at {recorded}, not at {command.staging_path}"
            raise PreconditionError(msg)
        return {**asked, PUBLISHED: {}}

    return NodeChange(
        operation=OPERATION,
        session=session,
        place=place,
        uuid=command.handle.uuid,
        label=command.volume_id,
        request=asked,
        home=lambda: UNKNOWN_HOME,
        plan=plan,
        same=lambda running: running.get("staging_path") == command.staging_path,
        settled=lambda kept: kept.state != STAGED,
        turns_back=frozenset({"stage_volume", "publish_volume", "node_expand_volume"}),
        after=UNSTAGED,
    )


def _unmount(work: Work[NodeSession]) -> Done:
    work.session.host.mounts.unmount(work.text("staging_path"))
    return Done()


def _probe_unmount(work: Work[NodeSession]) -> Finding:
    mounts, path = work.session.host.mounts, work.text("staging_path")
    return Finding(Verdict.DONE if mounts.at(path) is None and not mounts.exists(path) else Verdict.ABSENT)


def _unmap(work: Work[NodeSession]) -> Done:
    for mapper in work.session.host.mappers.values():
        mapper.unmap(work.uuid)
    return Done()


def _probe_unmap(work: Work[NodeSession]) -> Finding:
    is_clear = all(mapper.is_clear(work.uuid) for mapper in work.session.host.mappers.values())
    return Finding(Verdict.DONE if is_clear else Verdict.ABSENT)


OPERATION: Operation[NodeSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.FORWARD,
    stages=(
        Stage("unmount", probe=_probe_unmount, apply=_unmount),
        Stage("unmap", probe=_probe_unmap, apply=_unmap),
    ),
)
