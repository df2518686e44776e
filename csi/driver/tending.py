"""The work that nobody calls for: recovery, purges, expiry, signs of life, flushes.

Each kind is a round on a thread of its own, so that none waits for another.  A round that fails is told
once and tried again at its next time: nothing of this may end the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from structlog.typing import FilteringBoundLogger

from csi.operations import purge_volume
from csi.session import DriverSession
from csi.sessions import Sessions
from executor.errors import OperationError
from executor.operation_executor import OperationExecutor
from omap.store import Place, StoreError


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


def rounds(
    executor: OperationExecutor[DriverSession], reach: Reach, log: FilteringBoundLogger
) -> tuple[Round, ...]:
    """A controller's rounds."""

    def everywhere(work: Callable[[DriverSession, Place], object]) -> Callable[[], None]:
        def once() -> None:
            for place, session in reach.places().items():
                # One place that does not answer must not keep the others waiting for their turn for ever.
                try:
                    work(session, place)
                except (OperationError, StoreError) as error:
                    log.warning("place not tended", place=str(place), error=str(error))

        return once

    def purge(session: DriverSession, place: Place) -> None:
        # All that is due, a bounded number at a time; what fails is left to the next round.
        while begun := executor.purge(session, place, purge_volume.NAME):
            if any(each.exception() is not None for each in begun):
                return

    def flush() -> None:
        executor.flush()

    periods = executor.context.periods
    return (
        Round("recovery", periods.recovery, everywhere(executor.recover)),
        Round("purge", periods.purge, everywhere(purge)),
        Round("expiry", periods.recovery, everywhere(executor.expire)),
        Round("beat", periods.beat, executor.beat),
        Round("flush", periods.flush, flush),
    )
