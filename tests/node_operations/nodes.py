"""Nodes for the small world: hosts that outlive plugins, and a plugin's life whose every call is numbered.

The calls of the state directory's store, the cluster's stores, the images, the host's parts and the kept keys
have one sequence of numbers, so a fault can be put at any of them.  A crash at one ends the whole plugin;
the next one finds the same host, the same state directory and the same run directory.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from csi import handles
from csi.commands import (
    AccessMode,
    Capability,
    NodeExpandVolume,
    PublishVolume,
    StageVolume,
    UnpublishVolume,
    UnstageVolume,
)
from csi.handles import VolumeHandle
from csi.memory_session import MemoryProcess
from csi.node.image_watcher import ImageWatcher
from csi.node.memory import MemoryDisks, MemoryHost, MemoryNode
from csi.node.ports import Credentials, Detected, MapTarget
from csi.node.session import HostParts, NodeSession
from csi.node.spool_round import SpoolRound
from csi.node.stage_keys import StageKeys
from csi.operations import (
    node_expand_volume,
    publish_volume,
    stage_volume,
    unpublish_volume,
    unstage_volume,
)
from executor.effects import Routine
from executor.errors import PermanentError, PreconditionError
from executor.model import Object, Operation
from executor.node_change import NodeChange, NodePlace
from omap import names
from omap.faults import Call, CallKind, Crash, Decision, Fault, Faults, NoFaults
from omap.memory import MemoryStore
from omap.store import Place
from tests.executor.world import CLUSTER, GIB, OPERATIONS, RBD, Process, World, command

STAGING = "/kubelet/staging"
TARGET = "/kubelet/pod-1"
OTHER_TARGET = "/kubelet/pod-2"

NODE_OPERATIONS: Mapping[tuple[str, int], Operation[NodeSession]] = {
    (operation.name, operation.version): operation
    for operation in (
        stage_volume.OPERATION,
        unstage_volume.OPERATION,
        publish_volume.OPERATION,
        unpublish_volume.OPERATION,
        node_expand_volume.OPERATION,
    )
}

MOUNT = Capability("mount", AccessMode.SINGLE_NODE_WRITER)
BLOCK = Capability("block", AccessMode.SINGLE_NODE_WRITER)
READER = Capability("mount", AccessMode.MULTI_NODE_READER_ONLY)

LOCAL, HOST, KEYS = "local: ", "host: ", "key: "
"""How the names of calls begin that do not go to the cluster."""

T = TypeVar("T")


class PreciousDisks(MemoryDisks):
    """What is on the images.  Whatever a node writes or discards on one that was ever in use is a loss."""

    def __init__(self, watcher: ImageWatcher) -> None:
        super().__init__(watcher)
        self.precious: set[tuple[int, str]] = set()
        self.lost: list[str] = []

    def put(self, target: MapTarget, found: Detected) -> None:
        if (target.pool_id, target.image_id) in self.precious:
            self.lost.append(f"{target.image_name} was made {found}")
        super().put(target, found)

    def plant(self, target: MapTarget, found: Detected) -> None:
        """What somebody else leaves on an image."""
        super().put(target, found)


class Numbered:
    """Passes calls on to a plugin's life, under names that say where they go.

    `refusals` are what the host refuses for good: beginnings of calls' names, with the error.
    """

    def __init__(self, life: MemoryProcess, where: str, refusals: Mapping[str, PermanentError]) -> None:
        self._life = life
        self._where = where
        self._refusals = refusals

    def decide(self, call: Call) -> Decision:
        for beginning, error in self._refusals.items():
            if call.name.startswith(beginning):
                raise error
        return self._life.decide(dataclasses.replace(call, name=f"{self._where}{call.name}"))


class NumberedKeys(StageKeys):
    """The kept keys, each call numbered with the plugin's others."""

    def __init__(self, run_dir: pathlib.Path, life: Faults) -> None:
        super().__init__(run_dir)
        self._life = life

    def keep(self, volume: str, credentials: Credentials) -> None:
        self._call(CallKind.WRITE, "keep", lambda: super(NumberedKeys, self).keep(volume, credentials))

    def get(self, volume: str) -> Credentials | None:
        return self._call(CallKind.READ, "get", lambda: super(NumberedKeys, self).get(volume))

    def forget(self, volume: str) -> None:
        self._call(CallKind.WRITE, "forget", lambda: super(NumberedKeys, self).forget(volume))

    def _call(self, kind: CallKind, name: str, perform: Callable[[], T]) -> T:
        decision = self._life.decide(Call(0, kind, KEYS + name))
        if decision is Fault.CRASH_BEFORE:
            raise Crash(f"before {name}")
        outcome = perform()
        if decision is Fault.CRASH_AFTER:
            raise Crash(f"after {name}")
        return outcome


class Node(Process):
    """One life of a node's plugin."""

    def __init__(self, world: NodeWorld, name: str, number: int, faults: Faults) -> None:
        state = f"node-{name}"
        super().__init__(world, state, number, faults)
        self.nodes = world
        self.host = world.host(name)
        self.local = MemoryStore(
            world.directories,
            Place("local", "node", state),
            address=f"local-{number}",
            faults=Numbered(self.life, LOCAL, {}),
        )
        self.place = NodePlace(name, self.local, f"boot-{world.boots.get(name, 0)}")
        parts = MemoryNode(self.host, Numbered(self.life, HOST, world.refusals))
        self.parts = HostParts(
            {parts.mapper.name: parts.mapper},
            parts.file_systems,
            parts.mounts,
            NumberedKeys(world.run_dir(name), self.life),
        )

    # Requests

    def staging(
        self,
        capability: Capability = MOUNT,
        *,
        path: str = STAGING,
        key: str = "secret",
        handle: VolumeHandle | None = None,
    ) -> NodeChange[NodeSession]:
        handle = handle or self.nodes.handle
        wanted = StageVolume(handles.encode(handle), handle, path, capability)
        return stage_volume.call(self.session_for(handle, Credentials("user", key)), wanted, self.place, "")

    def stage(self, capability: Capability = MOUNT, **how: Any) -> Object:
        return self.run_on_node(self.staging(capability, **how))

    def unstage(self, path: str = STAGING, *, handle: VolumeHandle | None = None) -> Object:
        handle = handle or self.nodes.handle
        wanted = UnstageVolume(handles.encode(handle), handle, path)
        return self.run_on_node(unstage_volume.call(self.session_for(handle), wanted, self.place))

    def publish(
        self,
        capability: Capability = MOUNT,
        *,
        target: str = TARGET,
        path: str = STAGING,
        readonly: bool = False,
    ) -> Object:
        handle = self.nodes.handle
        wanted = PublishVolume(handles.encode(handle), handle, path, target, capability, readonly)
        return self.run_on_node(publish_volume.call(self.session_for(handle), wanted, self.place))

    def unpublish(self, target: str = TARGET, *, handle: VolumeHandle | None = None) -> Object:
        handle = handle or self.nodes.handle
        wanted = UnpublishVolume(handles.encode(handle), handle, target)
        return self.run_on_node(unpublish_volume.call(self.session_for(handle), wanted, self.place))

    def expand_here(self, size_bytes: int = 2 * GIB, path: str = STAGING) -> Object:
        handle = self.nodes.handle
        wanted = NodeExpandVolume(handles.encode(handle), handle, path, size_bytes)
        return self.run_on_node(node_expand_volume.call(self.session_for(handle), wanted, self.place))

    def tell(self) -> None:
        """One round of the spool."""
        spool = SpoolRound(
            self.place,
            self.context.instance.id,
            self.context.keys,
            self.parts,
            self.session_for,
            lambda _cluster: "",
        )
        for uuid in spool.volumes():
            self.drive(spool.turn(uuid))

    def session_for(self, handle: VolumeHandle, given: Credentials | None = None) -> NodeSession:
        def credentials() -> Credentials:
            found = given or self.nodes.own_identity or self.parts.stage_keys.get(handle.uuid)
            if found is None:
                raise PreconditionError("there is no identity for this cluster")
            return found

        return NodeSession(
            CLUSTER, self.parts, credentials, lambda _given: self.session, lambda: ("192.0.2.1",)
        )

    # Driving

    def run_on_node(self, change: NodeChange[NodeSession]) -> Object:
        request: Any = change
        return self.run(request)

    def drive(self, routine: Routine[Any], between: Callable[[str], None] | None = None) -> Any:
        def before(point: str) -> None:
            self.nodes.note_use()
            self.nodes.between(point)
            if between is not None:
                between(point)

        try:
            return super().drive(routine, before)
        finally:
            self.nodes.note_use()


class NodeWorld(World):
    """A world with hosts and one volume."""

    def __init__(self, run: pathlib.Path) -> None:
        super().__init__(operations={**OPERATIONS, **NODE_OPERATIONS})
        self.disks = PreciousDisks(ImageWatcher(self.cluster))
        self.boots: dict[str, int] = {}
        self.refusals: dict[str, PermanentError] = {}
        self.own_identity: Credentials | None = Credentials("driver", "own")
        self.handle = VolumeHandle(CLUSTER, 0, "00000000-0000-4000-8000-00000000ffff")
        self.between: Callable[[str], None] = lambda _point: None
        self._hosts: dict[str, MemoryHost] = {}
        self._run = run

    def with_volume(self, **changes: Any) -> NodeWorld:
        """Make the volume."""
        controller = self.process("controller")
        made = controller.create(command(**changes))
        controller.flush()
        self.handle = VolumeHandle(CLUSTER, controller.session.pool_id(RBD.pool), str(made["uuid"]))
        return self

    def expand_volume(self, size_bytes: int = 2 * GIB) -> None:
        """Make the image larger; no node has noticed yet."""
        controller = self.process("controller")
        controller.expand(self.handle.uuid, size_bytes)
        controller.flush()

    def delete_volume(self) -> None:
        controller = self.process("controller")
        try:
            controller.delete(self.handle.uuid)
        finally:
            controller.flush()

    def node(self, name: str = "n1", faults: Faults | None = None) -> Node:
        """Start a node's plugin.  The one before is dead by then."""
        return Node(self, name, next(self._numbers), faults or NoFaults())

    def kill_at(self, point: str, ask: Callable[[Node], object], name: str = "n1") -> None:
        """Start a plugin, ask it for something, and kill it before this change of its."""

        def die(reached: str) -> None:
            if reached == point:
                raise Crash(point)

        self.between = die
        try:
            ask(self.node(name))
        except Crash:
            return
        finally:
            self.between = lambda _point: None
        raise AssertionError(f"{point} was not reached")

    def host(self, name: str = "n1") -> MemoryHost:
        return self._hosts.setdefault(name, MemoryHost(self.disks))

    def hosts(self) -> Mapping[str, MemoryHost]:
        return self._hosts

    def run_dir(self, name: str = "n1") -> pathlib.Path:
        return self._run / name

    def reboot(self, name: str = "n1") -> None:
        """The host starts anew: the kernel knows nothing, and the run directory was in memory."""
        self.host(name).reboot()
        shutil.rmtree(self.run_dir(name), ignore_errors=True)
        self.boots[name] = self.boots.get(name, 0) + 1

    def lose_state(self, name: str = "n1") -> None:
        """The state directory is gone."""
        objects = self.directories.pool(Place("local", "node")).objects
        for key in [key for key in objects if key[0] == f"node-{name}"]:
            del objects[key]

    def kept(self, name: str = "n1") -> dict[str, dict[str, bytes]]:
        """Every volume's object in the state directory."""
        found = self.directories.contents(Place("local", "node", f"node-{name}"))
        return {key: value for key, value in found.items() if names.parse_record_name(key) is not None}

    def record(self) -> dict[str, bytes]:
        """The volume's record; empty when it is not there."""
        return self.cluster.contents(RBD).get(f"csi.volume.{self.handle.uuid}", {})

    def note_use(self) -> None:
        """An image that is mounted or bound anywhere holds data from now on."""
        for host in self._hosts.values():
            sources = {mount.source for mount in host.mounts}
            for mapping in host.mappings.values():
                if mapping.path in sources:
                    self.disks.precious.add((mapping.target.pool_id, mapping.target.image_id))
