"""A cluster in memory, and stores that are handles onto it.

A `MemoryCluster` plays what outlives a process: pools with objects, the blocklist, and writes that are still
on their way.  A `MemoryStore` plays one process' connection: after a crash, open another one onto the same
cluster.  It refuses what RADOS refuses, and a `Faults` passed to it decides, before each call, what goes
wrong with that call.

One lock per cluster makes it safe for threads; used by one thread it is deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from omap import rules
from omap.faults import ApplyLate, Call, CallKind, Crash, Decision, Fault, Faults, NoFaults
from omap.store import (
    PAGE_KEYS,
    Answer,
    FencedError,
    ObjectMissingError,
    OmapUnsupportedError,
    Place,
    PlaceMissingError,
    StoreError,
    Write,
)


@dataclass(slots=True)
class _Pool:
    erasure_coded: bool
    objects: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)


@dataclass(slots=True)
class _Late:
    store: MemoryStore
    name: str
    write: Write
    due: int | None


class MemoryCluster:
    """What outlives processes.  `pools` are made at once; RADOS namespaces need no making, as in RADOS."""

    def __init__(self, pools: Sequence[str] = ("rbd",)) -> None:
        self.lock = threading.RLock()
        self._pools: dict[str, _Pool] = {}
        self._fenced: set[str] = set()
        self._late: list[_Late] = []
        self._calls = 0
        for pool in pools:
            self.add_pool(pool)

    def add_pool(self, pool: str, *, erasure_coded: bool = False) -> None:
        """Make an empty pool; one that is there by this name is replaced."""
        with self.lock:
            self._pools[pool] = _Pool(erasure_coded)

    def remove_pool(self, pool: str) -> None:
        """Remove a pool with all its objects.  Raises KeyError if it is not there."""
        with self.lock:
            del self._pools[pool]

    def pool_names(self) -> tuple[str, ...]:
        """Names of all pools."""
        with self.lock:
            return tuple(self._pools)

    def is_erasure_coded(self, place: Place) -> bool:
        """Whether the place's pool keeps no OMAP.  Raises PlaceMissingError."""
        with self.lock:
            return self.pool(place).erasure_coded

    def blocklist(self, address: str) -> None:
        """Fence a client: its calls raise FencedError, and none of its late writes is applied any more.

        That is what the blocklist gives together with the wait for its osdmap.
        """
        with self.lock:
            self._fenced.add(address)
            self._late = [late for late in self._late if late.store.address != address]

    def unblocklist(self, address: str) -> None:
        """End the fence, as its expiry does."""
        with self.lock:
            self._fenced.discard(address)

    def fenced(self) -> frozenset[str]:
        """Addresses on the blocklist."""
        with self.lock:
            return frozenset(self._fenced)

    def late_writes(self) -> int:
        """How many writes are still on their way."""
        with self.lock:
            return len(self._late)

    def deliver_late(self) -> list[Answer]:
        """Apply all writes that are still on their way, oldest first; the answers that nobody gets."""
        with self.lock:
            late, self._late = self._late, []
            return [self._deliver(each) for each in late]

    def contents(self, place: Place) -> dict[str, dict[str, bytes]]:
        """A copy of all objects of a place, for audits and tests.  Raises PlaceMissingError."""
        with self.lock:
            objects = self.pool(place).objects
            return {
                name: dict(keys)
                for (space, name), keys in sorted(objects.items())
                if space == place.namespace
            }

    # For the stores, who hold the lock

    def pool(self, place: Place) -> _Pool:
        """The pool of a place.  Raises PlaceMissingError."""
        pool = self._pools.get(place.pool)
        if pool is None:
            raise PlaceMissingError(f"{place}: there is no such pool; create it or correct the name")
        return pool

    def refuse_fenced(self, address: str, place: Place) -> None:
        """Raise FencedError if the address is on the blocklist."""
        if address in self._fenced:
            raise FencedError(f"{place}: this client ({address}) is on the cluster's blocklist")

    def queue(self, store: MemoryStore, name: str, write: Write, calls: int | None) -> None:
        """Keep a write that is on its way, until `deliver_late` or the `calls`-th later call."""
        self._late.append(_Late(store, name, write, None if calls is None else self._calls + calls))

    def count(self) -> None:
        """A call has ended: deliver what is due."""
        self._calls += 1
        due = [late for late in self._late if late.due is not None and late.due < self._calls]
        self._late = [late for late in self._late if late not in due]
        for late in due:
            self._deliver(late)

    @staticmethod
    def _deliver(late: _Late) -> Answer:
        try:
            return late.store.arrive(late.name, late.write)
        except StoreError:  # its pool is gone by now, and nobody is there to be told
            return Answer.MISSING


class MemoryStore:
    """One process' handle onto a place of a cluster.

    `address` plays the client address of its connection: handles of one process share it.  `reads` and
    `writes` count the calls made (listings are reads).
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        place: Place,
        *,
        address: str = "127.0.0.1:0/1",
        faults: Faults | None = None,
    ) -> None:
        self.cluster = cluster
        self.address = address
        self.faults: Faults = faults or NoFaults()
        self.reads = 0
        self.writes = 0
        self._place = place
        self._crashed = False
        self._number = 0

    @property
    def place(self) -> Place:
        """Where these objects live."""
        return self._place

    def read(self, name: str, *, prefix: str = "") -> dict[str, bytes]:
        """All keys that begin with `prefix`; each page is a call, so writes may come in between."""
        found: dict[str, bytes] = {}
        after = b""
        while True:
            matching = rules.selected(self._read(name), prefix)
            page = [(key, value) for key, value in matching.items() if key.encode() > after][:PAGE_KEYS]
            found.update(page)
            if len(page) < PAGE_KEYS:
                return found
            after = page[-1][0].encode()

    def read_keys(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Those of the keys that are there."""
        there = self._read(name)
        return {key: there[key] for key in keys if key in there}

    def write(self, name: str, write: Write) -> Answer:
        """Apply one write, unless the faults have it otherwise."""
        with self.cluster.lock:
            self.writes += 1
            decision = self._begin(CallKind.WRITE, name, write)
            answer = Answer.UNKNOWN
            if decision in {Fault.NONE, Fault.CRASH_AFTER, Fault.LOSE_REPLY}:
                answer = self.arrive(name, write)
            elif decision is not Fault.DROP:
                self._would_be_accepted(write)
                calls = decision.calls if isinstance(decision, ApplyLate) else None
                self.cluster.queue(self, name, write, calls)
            self.cluster.count()
            self._end(decision)
            return answer if decision is Fault.NONE else Answer.UNKNOWN

    def write_all(self, writes: Sequence[tuple[str, Write]]) -> list[Answer | StoreError]:
        """Apply writes one after the other, in the given order; each is a call of its own."""
        answers: list[Answer | StoreError] = []
        for name, write in writes:
            try:
                answers.append(self.write(name, write))
            except StoreError as error:
                answers.append(error)
        return answers

    def names(self, prefix: str) -> Iterator[str]:
        """Names of the objects there are when the listing begins."""
        with self.cluster.lock:
            self.reads += 1
            decision = self._begin_read(CallKind.NAMES, prefix)
            names = [name for name in self.cluster.contents(self._place) if name.startswith(prefix)]
            self.cluster.count()
            self._end(decision)
        return iter(names)

    def arrive(self, name: str, write: Write) -> Answer:
        """Have the cluster, whose lock is held, apply a write as it arrives there, now or late."""
        pool = self._would_be_accepted(write)
        place = (self._place.namespace, name)
        answer, after = rules.outcome(write, pool.objects.get(place))
        if after is None:
            pool.objects.pop(place, None)
        else:
            pool.objects[place] = after
        return answer

    def _would_be_accepted(self, write: Write) -> _Pool:
        pool = self.cluster.pool(self._place)
        if pool.erasure_coded and not write.remove_object:
            raise OmapUnsupportedError(
                f"{self._place} is erasure-coded and keeps no OMAP: use a replicated pool"
            )
        return pool

    def _read(self, name: str) -> dict[str, bytes]:
        with self.cluster.lock:
            self.reads += 1
            decision = self._begin_read(CallKind.READ, name)
            keys = self.cluster.pool(self._place).objects.get((self._place.namespace, name))
            copy = None if keys is None else dict(keys)
            self.cluster.count()
            self._end(decision)
            if copy is None:
                raise ObjectMissingError(f"{self._place} has no object {name}")
            return copy

    def _begin_read(self, kind: CallKind, name: str) -> Decision:
        decision = self._begin(kind, name, None)
        if decision in {Fault.LOSE_REPLY, Fault.DROP, Fault.APPLY_LATE} or isinstance(decision, ApplyLate):
            raise ValueError(f"{decision} is no fault of a {kind.value}: give it a StoreError")
        return decision

    def _begin(self, kind: CallKind, name: str, write: Write | None) -> Decision:
        if self._crashed:
            raise Crash(f"{self.address} is dead")
        self.cluster.refuse_fenced(self.address, self._place)
        self._number += 1
        decision = self.faults.decide(Call(self._number, kind, name, write))
        if isinstance(decision, StoreError):
            self.cluster.count()
            raise decision
        if decision is Fault.CRASH_BEFORE:
            self._crashed = True
            raise Crash(f"{self.address} ends before {kind.value} {name}")
        return decision

    def _end(self, decision: Decision) -> None:
        if decision is Fault.CRASH_AFTER:
            self._crashed = True
            raise Crash(f"{self.address} ends after a call")
