"""NodeUnpublishVolume: a container's path is unmounted and removed.

| stage | effect | probe |
|---|---|---|
| `unbind` | the target path is unmounted and removed | the mount table and the path |

It only goes forward, and needs neither a secret nor the cluster.
"""

from __future__ import annotations

from csi.commands import UnpublishVolume
from csi.node.session import NodeSession
from csi.operations.publish_volume import PUBLISHED, published_in
from executor.model import Done, Finding, Object, Operation, Policy, Stage, Verdict, Work
from executor.node_change import UNKNOWN_HOME, NodeChange, NodePlace
from executor.node_record import Kept

NAME = "unpublish_volume"


def call(session: NodeSession, command: UnpublishVolume, place: NodePlace) -> NodeChange[NodeSession]:
    """The request to the executor."""
    asked: Object = {"target_path": command.target_path}

    def plan(_recorded: object, kept: Kept) -> Object:
        remaining = {path: how for path, how in published_in(kept).items() if path != command.target_path}
        return {**asked, PUBLISHED: remaining}

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
        turns_back=frozenset({"stage_volume", "publish_volume", "node_expand_volume"}),
        settled=lambda kept: command.target_path not in published_in(kept),
    )


def _unbind(work: Work[NodeSession]) -> Done:
    work.session.host.mounts.unmount(work.text("target_path"))
    return Done()


def _probe(work: Work[NodeSession]) -> Finding:
    mounts, path = work.session.host.mounts, work.text("target_path")
    return Finding(Verdict.DONE if mounts.at(path) is None and not mounts.exists(path) else Verdict.ABSENT)


OPERATION: Operation[NodeSession] = Operation(
    name=NAME,
    version=1,
    policy=Policy.FORWARD,
    stages=(Stage("unbind", probe=_probe, apply=_unbind),),
)
