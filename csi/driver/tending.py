"""The work that nobody calls for: recovery, purges, expiry, signs of life, flushes.

Each kind is a round on a thread of its own, so that none waits for another.  A round that fails is told
once and tried again at its next time: nothing of this may end the process.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from structlog.typing import FilteringBoundLogger

from csi.operations import purge_volume
from csi.session import DriverSession
from csi.sessions import Sessions
from executor.errors import OperationError
from executor.model import Object
from executor.operation_executor import OperationExecutor
from omap.store import Place, StoreError

BATCH_SECONDS = 60.0
"""How long the purge of one batch may hold up the next one."""


@dataclass(frozen=True, slots=True)
class Round:
    """Something to do again and again, `period` seconds after it last ended."""

    name: str
    period: float
    work: Callable[[], None]


class Tending:
    """Rounds on threads, which are daemons: a wait for a cluster must not keep the process from ending."""

    def __init__(self, rounds: Iterable[Round], log: FilteringBoundLogger) -> None:
        """Nothing begins before `start`."""
        self._log = log
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(each,), name=each.name, daemon=True)
            for each in rounds
        ]

    def start(self) -> None:
        """Begin with one round of each kind at once."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Begin no more rounds."""
        self._closing.set()

    def _repeat(self, each: Round) -> None:
        problem = ""
        while not self._closing.is_set():
            before, problem = problem, self._once(each)
            if problem and problem != before:
                self._log.warning("round failed", round=each.name, error=problem)
            self._closing.wait(each.period)

    def _once(self, each: Round) -> str:
        try:
            each.work()
        except (OperationError, StoreError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  whatever it is, it must not end the rounds
            self._log.exception("round failed", round=each.name)
            return type(error).__name__
        return ""


class Reach:
    """The directories that a controller looks after, and how it reaches them.

    Those met in requests, those that a predecessor worked in, and those that the configuration names.
    """

    def __init__(
        self, executor: OperationExecutor[DriverSession], sessions: Sessions, log: FilteringBoundLogger
    ) -> None:
        """Look for them in these."""
        self._context = executor.context
        self._sessions = sessions
        self._log = log
        self._unreached: dict[Place, str] = {}

    def places(self) -> dict[Place, DriverSession]:
        """Every one that an identity of ours reaches, with a session; each other one is told of once."""
        known = self._context.places.all()
        for place in sorted(self._named() - set(known)):
            try:
                session = self._sessions.open(place.cluster, None)
            except OperationError as error:
                if self._unreached.get(place) != str(error):
                    self._unreached[place] = str(error)
                    self._log.warning("place not reached", place=str(place), error=str(error))
                continue
            self._unreached.pop(place, None)
            self._context.places.add(place, session)
        return self._context.places.all()

    def _named(self) -> frozenset[Place]:
        configured = {
            Place(config.cluster_id, config.journal_pool, config.namespace)
            for config in self._sessions.configs()
            if config.journal_pool is not None
        }
        return self._context.instance.places() | configured


class ControllerRounds:
    """What a controller does in rounds, in each directory that it looks after."""

    def __init__(
        self, executor: OperationExecutor[DriverSession], reach: Reach, log: FilteringBoundLogger
    ) -> None:
        """Do it with this executor."""
        self._executor = executor
        self._reach = reach
        self._log = log

    def all(self) -> tuple[Round, ...]:
        """Every kind."""
        periods = self._executor.context.periods
        return (
            Round("recovery", periods.recovery, lambda: self._everywhere(self._recover)),
            Round("purge", periods.purge, lambda: self._everywhere(self._purge)),
            Round("expiry", periods.recovery, lambda: self._everywhere(self._executor.expire)),
            Round("beat", periods.beat, self._executor.beat),
            Round("flush", periods.flush, self._flush),
        )

    def _everywhere(self, work: Callable[[DriverSession, Place], object]) -> None:
        for place, session in self._reach.places().items():
            # One place that does not answer must not keep the others waiting for their turn for ever.
            try:
                work(session, place)
            except (OperationError, StoreError) as error:
                self._log.warning("place not tended", place=str(place), error=str(error))

    def _recover(self, session: DriverSession, place: Place) -> None:
        for begun in self._executor.recover(session, place):
            begun.add_done_callback(partial(self._tell, "recovery"))

    def _purge(self, session: DriverSession, place: Place) -> None:
        for batch in self._executor.purge(session, place, purge_volume.NAME):
            for begun in batch:
                begun.add_done_callback(partial(self._tell, "purge"))
            # The next batch does not wait for ever for one that hangs.
            concurrent.futures.wait(batch, BATCH_SECONDS)

    def _flush(self) -> None:
        self._executor.flush()

    def _tell(self, what: str, ended: Future[Object]) -> None:
        """Log the end of work that has no caller, if it failed: nobody else would hear of it."""
        error = None if ended.cancelled() else ended.exception()
        if error is not None:
            self._log.warning("failed, it is tried again", work=what, error=str(error))
