"""What a routine yields: effects on the world outside, one at a time, each with a name.

A routine is a generator.  It decides and never acts: it yields an `Effect` and is sent the outcome, or has
the effect's exception thrown in.  Whoever drives it (threads in production, a test that crashes at a chosen
effect) sees every touch of the world, and where it is.  The name of an effect is its **point**,
`<operation>.<what>`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from omap.store import Answer, FencedError, StoreError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """One touch of the world: `run` performs it, blocking; `changes` tells a change from a look."""

    point: str
    run: Callable[[], Any]
    changes: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Let time pass before going on: the cluster did not answer."""

    seconds: float
    why: str


Step = Effect | Wait
Routine = Generator[Step, Any, T]


def look(point: str, run: Callable[[], T]) -> Routine[T]:
    """Perform a read or a probe."""
    outcome: T = yield Effect(point, run, changes=False)
    return outcome


def act(point: str, run: Callable[[], T]) -> Routine[T]:
    """Perform a change."""
    outcome: T = yield Effect(point, run)
    return outcome


def pauses() -> Generator[float, None, None]:
    """How long to wait before each further try at a cluster that does not answer: seconds, doubling to 5."""
    seconds = 0.1
    while True:
        yield seconds
        seconds = min(seconds * 2, 5.0)


def settle(attempt: Callable[[], Routine[Answer]]) -> Routine[Answer]:
    """Make a conditional write until its fate is known; the very same write each time.

    A write that timed out may still be applied.  Made again under the same condition, at most one of the two
    can be: the answer "condition failed" then says that the record moved, and the caller reads who moved it.
    Once an answer was lost, an error of a later try proves nothing about the first, so only a fence ends the
    trying.
    """
    unknown = False
    for seconds in pauses():
        try:
            answer = yield from attempt()
        except FencedError:
            raise
        except StoreError:
            if not unknown:
                raise
            answer = Answer.UNKNOWN
        if answer is not Answer.UNKNOWN:
            return answer
        unknown = True
        yield Wait(seconds, "the cluster did not answer a write")
    raise AssertionError  # pauses never end
