"""A small world for the executor: a cluster and a state directory that outlive processes; virtual time.

A process runs routines one effect after another on the test's own thread; a wait advances the clock.  A
crash ends it, and the next process of the same state directory has fresh memory, a new instance id and new
client addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from csi import handles
from csi.clusters import ClusterConfig
from csi.commands import AccessMode, CreateVolume, DeleteVolume, ExpandVolume
from csi.memory_objects import pool_number
from csi.memory_session import MemoryProcess, MemorySession
from csi.operations import create_volume, delete_volume, expand_volume, purge_volume
from csi.parameters import ClassParameters
from csi.session import DriverSession
from executor import recovery
from executor.change import Change, cancel_running
from executor.context import Context, Periods
from executor.creation import Creation
from executor.directory import Served
from executor.effects import Routine, Step, Wait
from executor.errors import PendingError
from executor.instance import Instance
from executor.keys import Keys, Running
from executor.model import Object, Operation
from executor.operation_executor import Request
from executor.recovery import Settlement, Watch
from omap.faults import Faults, NoFaults
from omap.memory import MemoryCluster, MemoryStore
from omap.store import Place

CLUSTER = "c"
RBD = Place(CLUSTER, "rbd")
FAST = Place(CLUSTER, "fast")
META = Place(CLUSTER, "meta")
GIB = 1 << 30

OPERATIONS: Mapping[tuple[str, int], Operation[DriverSession]] = {
    (operation.name, operation.version): operation
    for operation in (
        create_volume.OPERATION,
        delete_volume.OPERATION,
        expand_volume.OPERATION,
        purge_volume.OPERATION,
    )
}

MOST_WAITS = 200
"""A routine that waits more often than this would never end."""


class ManualClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return 1_700_000_000.0 + self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class CountedIds:
    """UUIDs in order: the same in each run."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def uuid(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._numbers):012x}"


class StuckError(Exception):
    """A routine waits without end."""


def command(name: str = "pvc-1", **changes: Any) -> CreateVolume:
    """CreateVolume of 1 GiB with ext4 in the pool `rbd`, with changes."""
    pool = changes.pop("pool", RBD.pool)
    fields: dict[str, Any] = {
        "name": name,
        "required_bytes": GIB,
        "limit_bytes": 0,
        "size_bytes": GIB,
        "access": "mount",
        "fs_type": "ext4",
        "mount_flags": (),
        "access_modes": (AccessMode.SINGLE_NODE_WRITER,),
        "parameters": ClassParameters(CLUSTER, pool),
    }
    return CreateVolume(**{**fields, **changes})


class Process:
    """One life of a controller process."""

    def __init__(self, world: World, state: str, number: int, faults: Faults) -> None:
        self.world = world
        self.life = MemoryProcess(faults)
        self.session = MemorySession(world.cluster, CLUSTER, client=f"{number}", process=self.life)
        local = MemoryStore(
            world.directories, Place("local", "node", state), address=f"local-{number}", faults=self.life
        )
        self.points: list[str] = []
        """Every change made, by its point."""
        self.name = f"p{number}"
        self.context: Context[DriverSession] = Context(
            instance=Instance(self.name, local, world.clock),
            served=Served(),
            keys=Keys(world.clock, self.name),
            clock=world.clock,
            ids=world.ids,
            periods=world.periods,
            operations=world.operations,
        )
        self.watch = Watch()

    # Requests

    def create(self, wanted: CreateVolume | None = None) -> Object:
        return self.run(self.creation(wanted))

    def creation(self, wanted: CreateVolume | None = None) -> Creation[DriverSession]:
        return create_volume.call(self.session, wanted or command(), self.world.config)

    def delete(self, uuid: str, pool: str = RBD.pool) -> Object:
        return self.run(self.deletion(uuid, pool))

    def deletion(self, uuid: str, pool: str = RBD.pool) -> Change[DriverSession]:
        handle = handles.VolumeHandle(CLUSTER, pool_number(pool), uuid)
        wanted = DeleteVolume(handles.encode(handle), handle)
        return delete_volume.call(self.session, wanted, handle, self.world.config)

    def expand(self, uuid: str, size_bytes: int, limit_bytes: int = 0) -> Object:
        return self.run(self.expansion(uuid, size_bytes, limit_bytes))

    def expansion(self, uuid: str, size_bytes: int, limit_bytes: int = 0) -> Change[DriverSession]:
        handle = handles.VolumeHandle(CLUSTER, pool_number(RBD.pool), uuid)
        wanted = ExpandVolume(handles.encode(handle), handle, size_bytes, limit_bytes)
        return expand_volume.call(self.session, wanted, self.world.config)

    def run(self, request: Request[DriverSession], between: Callable[[str], None] | None = None) -> Object:
        """Run a request as the executor does.

        `between` is told each change's point before it is made; what it raises, the change raises.
        """
        keys = self.context.keys
        running, is_new = keys.admit(
            request.key, request.operation_name, request.label, request.request, request.is_same
        )
        assert is_new
        try:
            result: Object = self.drive(request.routine(self.context, running), between)
            return result
        finally:
            keys.leave(running)

    def cancel(self, change: Change[DriverSession]) -> None:
        """What a delete does that is refused because its subject's create runs in this process."""
        holder = self.context.keys.holder_of(change.key)
        assert holder is not None
        self.drive(cancel_running(change, self.context, holder))

    # Work that nobody asks for

    def recover(self) -> None:
        """One scan, and the work on everything it finds; what is not to be had now is left."""
        for place in self.world.journals():
            for settlement in self.settlements(place):
                self._quietly(settlement)

    def settlements(self, place: Place = RBD) -> list[Settlement[DriverSession]]:
        """The work on everything that one scan finds open."""
        session: DriverSession = self.session
        found = recovery.scan(session.store(place), self.world.clock.now())
        return [Settlement(session, place, entry, self.watch) for entry in found.open]

    def purge(self) -> None:
        """End everything whose time in the trash is over."""
        for place in self.world.journals():
            found = recovery.scan(self.session.store(place), self.world.clock.now())
            for _, entry in found.due:
                self._quietly(recovery.purge(self.context, self.session, entry, purge_volume.NAME))

    def expire(self) -> int:
        """Remove tombstones whose time is over."""
        now = self.world.clock.now()
        return sum(recovery.expire(self.session.store(place), now) for place in self.world.journals())

    def flush(self) -> int:
        """Remove served marks."""
        return self.context.served.flush()

    def _quietly(self, request: Request[DriverSession]) -> None:
        try:
            self.run(request)
        except PendingError:
            return

    # Driving

    def drive(self, routine: Routine[Any], between: Callable[[str], None] | None = None) -> Any:
        """Perform what a routine yields, one effect after another."""
        outcome: object = None
        error: Exception | None = None
        waits = 0
        while True:
            try:
                step: Step = routine.send(outcome) if error is None else routine.throw(error)
            except StopIteration as stop:
                return stop.value
            outcome, error = None, None
            if isinstance(step, Wait):
                waits += 1
                if waits > MOST_WAITS:
                    raise StuckError(step.why)
                self.world.clock.advance(step.seconds)
                continue
            if step.changes:
                self.points.append(step.point)
            try:
                if step.changes and between is not None:
                    between(step.point)
                outcome = step.run()
            except AssertionError:
                raise
            except Exception as problem:  # noqa: BLE001 - whatever an effect raises is the routine's to judge
                error = problem

    def held(self) -> Sequence[Running]:
        return self.context.keys.running()


class World:
    """What outlives processes."""

    def __init__(
        self,
        *,
        journal_pool: str | None = None,
        operations: Mapping[tuple[str, int], Operation[Any]] = OPERATIONS,
    ) -> None:
        self.cluster = MemoryCluster([RBD.pool, FAST.pool, META.pool])
        self.directories = MemoryCluster(["node"])
        self.clock = ManualClock()
        self.ids = CountedIds()
        self.periods = Periods()
        self.config = ClusterConfig(CLUSTER, ("192.0.2.1",), journal_pool=journal_pool)
        self.operations = operations
        self.instances: set[str] = set()
        self._numbers = itertools.count(1)

    def process(self, state: str = "a", faults: Faults | None = None) -> Process:
        """Start a process on a state directory.  Whoever had it before is dead by then."""
        number = next(self._numbers)
        self.instances.add(f"p{number}")
        return Process(self, state, number, faults or NoFaults())

    def journals(self) -> tuple[Place, ...]:
        """The places of directories."""
        return (META,) if self.config.journal_pool == META.pool else (RBD, FAST)
