"""The operation executor: one door for every changing call.

`run` admits a request under its subject's key (or joins it to its own running operation), hands it to a
worker of a bounded pool for its cluster, and waits until the caller's deadline.  The end of a call is not
the end of its operation: the work goes on, and the retry joins it or gets the stored result.

Work that nobody asks for (recovery, purges, tombstones, flushes) is done by `tend`, in rounds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Generic, Protocol

from executor import recovery
from executor.change import Change, cancel_running
from executor.context import Context
from executor.crashpoints import CrashPoint
from executor.drive import Driver, ShutdownError
from executor.effects import Routine
from executor.errors import OperationError, OverloadedError, PendingError, UnavailableError
from executor.keys import Running
from executor.model import Object, Policy, S
from executor.store_errors import operation_error
from omap.store import FencedError, Place, StoreError


class Request(Protocol[S]):
    """What `run` takes: a creation, a change, a node's operation, or recovery's work on one mark."""

    @property
    def session(self) -> S:
        """With which identity, in which cluster."""

    @property
    def operation_name(self) -> str:
        """For messages and joining."""

    @property
    def key(self) -> str:
        """The subject's key."""

    @property
    def label(self) -> str:
        """The subject, for messages."""

    @property
    def request(self) -> Object:
        """What was asked, canonical."""

    def is_same(self, request: Object) -> bool:
        """Whether a running request is this very one."""

    def routine(self, context: Context[S], running: Running) -> Routine[Object]:
        """The work."""


class OperationExecutor(Generic[S]):
    """Runs operations on threads.  One for each process."""

    def __init__(
        self,
        context: Context[S],
        *,
        workers: int = 64,
        waiting: int = 256,
        crash: CrashPoint | None = None,
        on_fenced: Callable[[str], None] | None = None,
        on_fault: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        """At most `workers` operations at work and `waiting` more for each cluster.

        `on_fenced` is told when the cluster has shut this process out; `on_fault` of every unexpected
        exception.
        """
        self._context = context
        self._workers = workers
        self._limit = workers + waiting
        self._closing = threading.Event()
        self._driver = Driver(self._closing, crash)
        self._on_fenced = on_fenced
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._busy: Counter[str] = Counter()
        self._watch = recovery.Watch()

    @property
    def context(self) -> Context[S]:
        """What its routines share."""
        return self._context

    def run(self, request: Request[S], deadline: float) -> Object:
        """Run a request to its result, or join it to its running operation.

        `deadline` is by the context's monotonic clock.  Raises PendingError when it passes first (the work
        goes on) or when something else holds the subject; OverloadedError when no worker is free; else the
        operation's error.
        """
        running = self._admit(request, deadline)
        return self._await(running, deadline, request.session.cluster)

    def start(self, request: Request[S]) -> Future[Object]:
        """Begin a request, or join it, without waiting.  Raises PendingError, OverloadedError."""
        running, is_new = self._context.keys.admit(
            request.key, request.operation_name, request.label, request.request, request.is_same
        )
        if is_new:
            self._submit(request, running)
        return running.future

    def close(self, timeout: float) -> None:
        """End: nothing new begins, and what is at work is left at rest at its next step.

        Waits at most `timeout` s.
        """
        self._closing.set()
        wait([running.future for running in self._context.keys.running()], timeout)
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._context.served.flush()

    # Rounds

    def recover(self, session: S, place: Place) -> list[Future[Object]]:
        """One scan of a directory; returns the work begun on what it found.  Raises the store's errors."""
        # Asked before the scan: what a predecessor did just before it was shut out, the scan must have seen.
        shut_out = self._context.instance.shut_out(place)
        found = recovery.scan(session.store(place), self._context.clock.now())
        if found.corrupt:
            shut_out = frozenset()  # a mark that cannot be read may be anybody's
        self._context.instance.retire(shut_out - {entry.instance for entry in found.open}, place)
        begun = []
        for first, *others in found.by_subject():
            work = recovery.Settlement(session, place, first, self._watch, tuple(others))
            begun += self._begin_quietly(work)
        return begun

    def purge(
        self, session: S, place: Place, operation: str, *, at_a_time: int = 16
    ) -> Iterator[list[Future[Object]]]:
        """Purge all that one scan finds due: a batch is begun each time the next one is asked for.

        What fails keeps nothing that is due after it from its turn.  Raises the store's errors.
        """
        due = recovery.scan(session.store(place), self._context.clock.now()).due
        for start in range(0, len(due), at_a_time):
            batch = due[start : start + at_a_time]
            purges = [recovery.purge(self._context, session, entry, operation) for _, entry in batch]
            yield [future for purge in purges for future in self._begin_quietly(purge)]

    def expire(self, session: S, place: Place) -> int:
        """Remove tombstones whose time is over.  Raises the store's errors."""
        return recovery.expire(session.store(place), self._context.clock.now())

    def beat(self) -> None:
        """Show in each place that this process lives, while it has anything at work."""
        if not self._context.keys.running():
            return
        for place, session in self._context.places.all().items():
            if self._context.instance.is_entered(session, place):
                self._driver.drive(self._context.instance.beat(session.store(place)))

    def flush(self) -> int:
        """Remove served `open/` marks that found no write to go with."""
        return self._context.served.flush()

    # Admission

    def _admit(self, request: Request[S], deadline: float) -> Running:
        try:
            running, is_new = self._context.keys.admit(
                request.key, request.operation_name, request.label, request.request, request.is_same
            )
        except PendingError:
            self._cancel(request, deadline)
            raise
        if is_new:
            self._submit(request, running)
        return running

    def _cancel(self, request: Request[S], deadline: float) -> None:
        """A delete that meets its own subject's create at work leaves the wish that it be taken back."""
        holder = self._context.keys.holder_of(request.key)
        if holder is None or not isinstance(request, Change) or not request.operation.needs_unused:
            return
        if not any(
            o.policy is Policy.REVERT
            for (n, _), o in self._context.operations.items()
            if n == holder.operation
        ):
            return
        try:
            pool = self._pool(request.session.cluster)
            wish = pool.submit(lambda: self._driver.drive(cancel_running(request, self._context, holder)))
        except RuntimeError:  # shut down meanwhile
            return
        try:
            wish.result(timeout=max(0.0, deadline - self._context.clock.monotonic()))
        except (FutureTimeoutError, StoreError):
            return

    def _submit(self, request: Request[S], running: Running) -> None:
        error = self._begin_work(request, running)
        if error is not None:
            # Whoever joined in this moment is told the same.
            self._context.keys.leave(running)
            running.future.set_exception(error)
            raise error

    def _begin_work(self, request: Request[S], running: Running) -> OperationError | None:
        cluster = request.session.cluster
        with self._lock:
            if self._busy[cluster] >= self._limit:
                return OverloadedError(
                    f"{request.operation_name} of {request.label} cannot begin: {self._limit} operations of "
                    f"cluster {cluster} are at work or waiting already; retry later"
                )
            self._busy[cluster] += 1
        try:
            work = self._pool(cluster).submit(self._work, request, running)
        except RuntimeError:  # the pool is shut down
            self._give_up(running, cluster)
            return _shutdown()
        work.add_done_callback(partial(self._worked, running, cluster))
        return None

    def _worked(self, running: Running, cluster: str, work: Future[None]) -> None:
        self._give_up(running, cluster)
        if work.cancelled():
            running.future.set_exception(_shutdown())

    def _give_up(self, running: Running, cluster: str) -> None:
        self._context.keys.leave(running)
        with self._lock:
            self._busy[cluster] -= 1

    def _pool(self, cluster: str) -> ThreadPoolExecutor:
        with self._lock:
            if self._closing.is_set():
                msg = "this process is ending"
                raise RuntimeError(msg)
            if cluster not in self._pools:
                self._pools[cluster] = ThreadPoolExecutor(self._workers, f"operations-{cluster}")
            return self._pools[cluster]

    def _work(self, request: Request[S], running: Running) -> None:
        result: Object | None = None
        error: BaseException | None = None
        try:
            result = self._driver.drive(request.routine(self._context, running), running)
        except OperationError as problem:
            error = problem
        except FencedError as problem:
            error = operation_error(problem)
            if self._on_fenced is not None:
                self._on_fenced(str(problem))
        except StoreError as problem:
            error = operation_error(problem)
        except Exception as problem:  # noqa: BLE001  whatever it is, the callers are told to come again
            error = UnavailableError(
                f"internal fault in {request.operation_name} of {request.label} at {running.point}; "
                "it is safe to retry; the log has the details"
            )
            error.__cause__ = problem
        except BaseException as problem:  # noqa: BLE001  the key is released whatever ends this thread
            error = problem
        cause = error.__cause__ if isinstance(error, OperationError) else error
        if (
            cause is not None
            and not isinstance(cause, (OperationError, StoreError))
            and self._on_fault is not None
        ):
            self._on_fault(f"{request.operation_name} of {request.label}", cause)
        # The key goes before the answer: whoever got the answer may ask for the subject again at once.
        self._context.keys.leave(running)
        if error is None:
            running.future.set_result(result if result is not None else {})
        else:
            running.future.set_exception(error)

    def _await(self, running: Running, deadline: float, cluster: str) -> Object:
        clock = self._context.clock
        try:
            return running.future.result(timeout=max(0.0, deadline - clock.monotonic()))
        except FutureTimeoutError:
            if running.future.done():  # in this very moment, or with a time-out of its own
                return running.future.result()
            msg = f"{running.describe(clock.monotonic())} in cluster {cluster}; the work goes on; retry later"
            raise PendingError(msg) from None

    def _begin_quietly(self, request: Request[S]) -> list[Future[Object]]:
        try:
            return [self.start(request)]
        except (PendingError, OverloadedError):
            return []


def _shutdown() -> ShutdownError:
    return ShutdownError("this process is ending; retry")
