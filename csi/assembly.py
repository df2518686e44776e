"""A driver process put together from its settings.

Controller and node work only under the lock of the state directory: it proves that no predecessor, and no
child of one that uses a device, is still at work.  While the lock is not to be had the process serves all the
same, and its calls are answered with who holds it.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from structlog.typing import FilteringBoundLogger

from csi.ceph.connection import ConnectionSettings
from csi.ceph.sessions import CephSessions
from csi.clusters import ClusterConfigs
from csi.driver.controller import ControllerVolumes, Core
from csi.driver.node import NodeVolumes
from csi.driver.node_core import NodeCore
from csi.driver.records import RecordReader
from csi.driver.spool import Spool
from csi.driver.tending import ControllerRounds, Reach, Round, Tending
from csi.handles import VolumeHandle
from csi.host import RandomIds, SystemClock, boot_id, instance_id
from csi.identities import Keyring
from csi.node.filesystems import HostFileSystems
from csi.node.fuse import FuseMapper
from csi.node.krbd import KrbdMapper
from csi.node.lock import Held, StateLock
from csi.node.mounts import HostMounts
from csi.node.ports import Credentials, Mapper
from csi.node.run import Runner
from csi.node.session import HostParts, NodeSession
from csi.node.stage_keys import StageKeys
from csi.operations import (
    create_volume,
    delete_volume,
    expand_volume,
    node_expand_volume,
    publish_volume,
    purge_volume,
    stage_volume,
    unpublish_volume,
    unstage_volume,
)
from csi.session import DriverSession
from csi.sessions import Sessions
from csi.settings import Settings, SettingsError
from executor import crashpoints
from executor.context import Context
from executor.crashpoints import CrashPoint
from executor.directory import Served
from executor.errors import UnavailableError
from executor.instance import Instance
from executor.keys import Keys
from executor.model import Operation
from executor.node_change import NodePlace
from executor.operation_executor import OperationExecutor
from executor.ports import Session
from omap.files import FileStore
from omap.store import Place, StoreError

CLOSE_SECONDS = 8.0
"""How long operations at work may take to their next step once the process is asked to end."""

S = TypeVar("S", bound=Session)

_CONTROLLER: tuple[Operation[DriverSession], ...] = (
    create_volume.OPERATION,
    delete_volume.OPERATION,
    expand_volume.OPERATION,
    purge_volume.OPERATION,
)
_NODE: tuple[Operation[NodeSession], ...] = (
    stage_volume.OPERATION,
    publish_volume.OPERATION,
    unpublish_volume.OPERATION,
    unstage_volume.OPERATION,
    node_expand_volume.OPERATION,
)


def crash_points() -> tuple[str, ...]:
    """Every point at which `WAYMARK_CRASH_AT` can end a driver."""
    return crashpoints.listed(
        (
            crashpoints.creation_points(create_volume.OPERATION),
            crashpoints.undo_points(create_volume.OPERATION),
            crashpoints.change_points(delete_volume.OPERATION),
            crashpoints.change_points(expand_volume.OPERATION),
            crashpoints.change_points(purge_volume.OPERATION),
            crashpoints.node_points(stage_volume.OPERATION, claims=True, facts=("format", "mount")),
            crashpoints.node_undo_points(stage_volume.OPERATION, facts=("format",)),
            crashpoints.node_points(publish_volume.OPERATION),
            crashpoints.node_undo_points(publish_volume.OPERATION),
            crashpoints.node_points(unpublish_volume.OPERATION),
            crashpoints.node_points(unstage_volume.OPERATION),
            crashpoints.node_points(node_expand_volume.OPERATION),
            crashpoints.node_undo_points(node_expand_volume.OPERATION),
        )
    )


def open_driver(settings: Settings, log: FilteringBoundLogger) -> StandingDriver:
    """The driver that the settings describe.

    Raises SettingsError for folders or a crash point that cannot be used, ConfigError for config.json.
    """
    driver = StandingDriver(settings, log)
    try:
        driver.standing()
    except UnavailableError as error:
        log.warning("waiting for the state directory", error=str(error))
    except (OSError, StoreError) as error:
        raise SettingsError(f"--state-dir {settings.state_dir} cannot be used: {error}") from error
    return driver


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is under the state directory's lock."""

    controller: Core
    node: NodeCore
    spool: Spool
    tending: Tending
    reach: Reach


class StandingDriver:
    """`Driver`: all that stands behind the services."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        """Read what there is to read; nothing is connected or begun.  Raises SettingsError, ConfigError."""
        self.clock = SystemClock()
        self._settings = settings
        self._log = log
        self._crash = _crash_point()
        self._sessions = Sessions(
            ClusterConfigs(
                settings.config, on_broken=lambda problem: log.warning("config.json", error=problem)
            ),
            Keyring(settings.keys),
            CephSessions(ConnectionSettings(settings.connect_timeout, settings.store_timeout)),
            self.clock,
        )
        self._stage_keys = StageKeys(settings.run_dir)
        self._lock = threading.Lock()
        self._standing: Standing | None = None
        self._closing = threading.Event()
        self.controller = ControllerVolumes(lambda: self.standing().controller)
        self.node = NodeVolumes(lambda: self.standing().node, lambda: self.standing().spool)
        self.records = RecordReader(self._sessions, self.clock, self._places, self._kept)

    def start(self) -> None:
        """Begin the work that nobody calls for, as soon as the state directory is ours."""
        threading.Thread(target=self._tend, name="tend", daemon=True).start()

    def close(self) -> None:
        """End: nothing new begins, what is at work is left at rest."""
        self._closing.set()
        with self._lock:
            standing = self._standing
        if standing is not None:
            standing.tending.close()
            closings = [
                threading.Thread(target=executor.close, args=(CLOSE_SECONDS,), daemon=True)
                for executor in (standing.controller.executor, standing.node.executor)
            ]
            for closing in closings:
                closing.start()
            for closing in closings:
                closing.join(CLOSE_SECONDS)

    def standing(self) -> Standing:
        """All parts, put together by the first call that gets the lock.

        Raises UnavailableError naming who holds it; OSError or StoreError if the directory cannot be used.
        """
        with self._lock:
            if self._standing is None:
                held = StateLock(self._settings.state_dir).try_acquire()
                if not isinstance(held, Held):
                    raise UnavailableError(
                        f"the state directory {self._settings.state_dir} is still in use by {held};"
                        " this process begins once that has ended; retry later"
                    )
                self._standing = self._stand(held)
            return self._standing

    def _tend(self) -> None:
        while not self._closing.is_set():
            try:
                self.standing().tending.start()
            except UnavailableError:
                self._closing.wait(1.0)
            else:
                return

    def _stand(self, held: Held) -> Standing:
        settings = self._settings
        instance = Instance(instance_id(), FileStore(settings.state_dir / "instances"), self.clock)
        controller = self._executor(instance, {(each.name, each.version): each for each in _CONTROLLER})
        node = self._executor(instance, {(each.name, each.version): each for each in _NODE})
        runner = Runner(held.fd)
        mappers: tuple[Mapper, ...] = (
            KrbdMapper(settings.run_dir, runner),
            FuseMapper(settings.run_dir, runner),
        )
        by_name = {mapper.name: mapper for mapper in mappers}
        host = HostParts(by_name, HostFileSystems(runner), HostMounts(runner), self._stage_keys)
        place = NodePlace(settings.node_id, FileStore(settings.state_dir / "volumes"), boot_id())
        node_core = NodeCore(node, self._sessions, host, place, str(settings.kubelet_dir))
        spool = Spool(node_core, self._log)
        reach = Reach(controller, self._sessions, self._log)
        rounds: tuple[Round, ...] = ()
        if settings.controller:
            rounds += ControllerRounds(controller, reach, self._log).all()
        if settings.node:
            rounds += (spool.round(),)
        return Standing(Core(controller, self._sessions), node_core, spool, Tending(rounds, self._log), reach)

    def _executor(
        self, instance: Instance, operations: Mapping[tuple[str, int], Operation[S]]
    ) -> OperationExecutor[S]:
        context: Context[S] = Context(
            instance=instance,
            served=Served(),
            keys=Keys(self.clock, instance.id),
            clock=self.clock,
            ids=RandomIds(),
            periods=self._settings.periods,
            operations=operations,
        )
        return OperationExecutor(
            context,
            workers=self._settings.workers,
            crash=self._crash,
            on_fenced=self._fenced,
            on_fault=self._fault,
        )

    def _fenced(self, problem: str) -> None:
        """This process was shut out, so another one has taken its work over: end, and let a new one begin."""
        self._log.error("shut out of a cluster; this process ends", error=problem)
        os.kill(os.getpid(), signal.SIGTERM)

    def _fault(self, what: str, error: BaseException) -> None:
        self._log.error("fault", operation=what, traceback="".join(traceback.format_exception(error)))

    def _places(self) -> Iterable[Place]:
        return self.standing().reach.places()

    def _kept(self, handle: VolumeHandle) -> Credentials | None:
        return self._stage_keys.get(handle.uuid)


def _crash_point() -> CrashPoint | None:
    text = os.environ.get(crashpoints.VARIABLE)
    if not text:
        return None
    try:
        return CrashPoint.parse(text)
    except ValueError as error:
        raise SettingsError(str(error)) from None
