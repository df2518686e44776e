"""Routines of two processes, taken forward by hand in every order."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

from executor.effects import Effect, Wait
from executor.errors import OperationError
from executor.store_errors import operation_error
from omap.store import StoreError
from tests.executor.world import Process


class Stepper:
    """A request's routine.  A step performs effects up to the next one named in `stops` (None: each one)."""

    def __init__(self, process: Process, request: Any, stops: Collection[str] | None = None) -> None:
        keys = process.context.keys
        self.process = process
        self._running, _ = keys.admit(
            request.key, request.operation_name, request.label, request.request, request.is_same
        )
        self._routine = request.routine(process.context, self._running)
        self._stops = stops
        self._next: Effect | Wait | None = None
        self.is_over = False
        self.error: OperationError | None = None
        self._go_on(None, None)

    @property
    def is_done(self) -> bool:
        """Whether it ended well."""
        return self.is_over and self.error is None

    def step(self) -> None:
        """Perform the next effect, and those after it that nobody else sees."""
        self._perform()
        while not self.is_over and not self._is_stop():
            self._perform()

    def finish(self) -> None:
        """Perform all that is left."""
        while not self.is_over:
            self._perform()

    def _is_stop(self) -> bool:
        return self._stops is None or (isinstance(self._next, Effect) and self._next.point in self._stops)

    def _perform(self) -> None:
        step, outcome, error = self._next, None, None
        if isinstance(step, Wait):
            self.process.world.clock.advance(step.seconds)
        elif step is not None:
            try:
                outcome = step.run()
            except (OperationError, StoreError) as problem:
                error = problem
        self._go_on(outcome, error)

    def _go_on(self, outcome: object, error: Exception | None) -> None:
        try:
            self._next = self._routine.send(outcome) if error is None else self._routine.throw(error)
        except StopIteration:
            self._end(None)
        except StoreError as problem:
            self._end(operation_error(problem))
        except OperationError as problem:
            self._end(problem)

    def _end(self, error: OperationError | None) -> None:
        self.is_over, self.error = True, error
        self.process.context.keys.leave(self._running)


def orders(first: int, second: int) -> Iterator[tuple[bool, ...]]:
    """Every order of so many steps of one and so many of the other; True is a step of the first."""
    for chosen in itertools.combinations(range(first + second), first):
        yield tuple(turn in chosen for turn in range(first + second))
