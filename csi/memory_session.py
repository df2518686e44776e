"""A driver's session on a cluster in memory, as one process has it.

All calls of a process, its stores' and its images', are numbered in one sequence before the process' `Faults`
are asked, and a crash at any of them ends the whole process: every later call raises `Crash`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from csi.image_backend import Images
from csi.memory_images import memory_images
from csi.memory_objects import pool_number
from executor.errors import NotFoundError, PreconditionError
from executor.store_errors import operation_error
from omap.faults import Call, CallKind, Crash, Decision, Fault, Faults, NoFaults
from omap.memory import MemoryCluster, MemoryStore
from omap.store import Place, StoreError


class MemoryProcess:
    """One process' life: it numbers its calls and is dead after a crash.  These are its handles' `Faults`."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.calls = 0
        self.dead = False
        self._faults: Faults = faults or NoFaults()

    def decide(self, call: Call) -> Decision:
        """What goes wrong with this call, numbered among all calls of the process."""
        if self.dead:
            raise Crash("the process is dead")
        self.calls += 1
        decision = self._faults.decide(dataclasses.replace(call, number=self.calls))
        self.dead = decision in {Fault.CRASH_BEFORE, Fault.CRASH_AFTER}
        return decision

    def end(self) -> None:
        """The process ends, outside any call or in one that never returns."""
        self.dead = True


class MemorySession:
    """`DriverSession` on a `MemoryCluster`.

    `client` names the process' connections and must be unique among all processes that ever use the cluster.
    Pass the same `process` to several sessions that one process has.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        cluster_id: str = "memory",
        *,
        client: str = "1",
        process: MemoryProcess | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.process = process or MemoryProcess(faults)
        self.memory = cluster
        self._cluster_id = cluster_id
        self._store_address, self._image_address = f"127.0.0.1:0/{client}1", f"127.0.0.1:0/{client}2"
        self._stores: dict[Place, MemoryStore] = {}
        self._images: dict[Place, Images] = {}

    @property
    def cluster(self) -> str:
        """The `clusterID`."""
        return self._cluster_id

    @property
    def fsid(self) -> str:
        """The cluster's own id."""
        return f"fsid-of-{self._cluster_id}"

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses of the stores' and of the images' connection."""
        return (self._store_address, self._image_address)

    def store(self, place: Place) -> MemoryStore:
        """The store of a place, always the same, so that its counters can be read."""
        return self._stores.setdefault(place, self._open(place, self._store_address))

    def images(self, place: Place) -> Images:
        """The images of a place."""
        if place not in self._images:
            handle = self._open(place, self._image_address)
            self._images.setdefault(place, memory_images(handle, self.process.end, self.addresses))
        return self._images[place]

    def pool_id(self, pool: str) -> int:
        """The number of a pool."""
        if pool not in self.memory.pool_names():
            raise NotFoundError(f"cluster {self.cluster} has no pool {pool}: create it or correct the name")
        return pool_number(pool)

    def pool_name(self, pool_id: int) -> str:
        """The name of a pool."""
        for pool in self.memory.pool_names():
            if pool_number(pool) == pool_id:
                return pool
        raise NotFoundError(f"cluster {self.cluster} has no pool with number {pool_id}")

    def fence(self, addresses: Sequence[str]) -> None:
        """Put addresses on the blocklist; one call, whose faults without an answer end the process."""
        own = sorted(set(addresses) & set(self.addresses))
        if own:
            raise PreconditionError(f"{', '.join(own)} is this process itself, which is not fenced")
        with self.memory.lock:
            decision = self.process.decide(Call(0, CallKind.WRITE, f"blocklist {' '.join(addresses)}"))
            if isinstance(decision, StoreError):
                raise operation_error(decision)
            if decision not in {Fault.CRASH_BEFORE, Fault.DROP}:
                for address in addresses:
                    self.memory.blocklist(address)
            if decision is not Fault.NONE:
                self.process.end()
                raise Crash(f"the process ends while it fences {', '.join(addresses)}")

    def barrier(self) -> None:
        """Nothing to wait for: the blocklist counts at once here."""

    def _open(self, place: Place, address: str) -> MemoryStore:
        return MemoryStore(self.memory, place, address=address, faults=self.process)
