"""Driving a routine on a thread: perform what it yields, send back what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from executor.crashpoints import CrashPoint
from executor.effects import Effect, Routine, Step, T, Wait
from executor.errors import UnavailableError
from executor.keys import Running


class ShutdownError(UnavailableError):
    """This process is ending; the operation was left at rest and goes on in the next one."""


class Driver:
    """Performs effects on the calling thread, one after the other."""

    def __init__(self, closing: threading.Event, crash: CrashPoint | None = None) -> None:
        """Once `closing` is set, each routine is told to end before its next change."""
        self._closing = closing
        self._crash = crash

    def drive(self, routine: Routine[T], running: Running | None = None) -> T:
        """Run a routine to its end and return its result, or raise its error."""
        outcome: object = None
        error: Exception | None = None
        told = False
        while True:
            try:
                step: Step = routine.send(outcome) if error is None else routine.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            outcome, error = None, None
            if self._closing.is_set() and not told and (isinstance(step, Wait) or step.changes):
                told = True
                error = ShutdownError("this process is ending; the operation is left at rest; retry")
                continue
            try:
                outcome = self._perform(step, running)
            except Exception as problem:  # noqa: BLE001 - whatever an effect raises is the routine's to judge
                error = problem

    def _perform(self, step: Step, running: Running | None) -> object:
        if isinstance(step, Wait):
            if running is not None:
                running.waiting = step.why
            self._closing.wait(step.seconds)
            return None
        if running is not None:
            running.point, running.waiting = step.point.partition(".")[2] or step.point, ""
        return self._at(step)

    def _at(self, step: Effect) -> object:
        run: Callable[[], object] = step.run
        if self._crash is None:
            return run()
        self._crash.reach(step.point, "before")
        outcome = run()
        self._crash.reach(step.point, "after")
        return outcome
