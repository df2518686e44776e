"""Crash points: the product can be told to die or to stop at a named touch of the world.

`WAYMARK_CRASH_AT=<point>:{before,after}[:kill|stop]` arms one.  `kill` (the default) is SIGKILL to oneself,
`stop` is SIGSTOP; each happens once.  Points are the names of effects (`executor.effects`), so every change
that an operation makes has two of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from executor.model import Operation, S, SubjectState

VARIABLE = "WAYMARK_CRASH_AT"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Where to crash and how."""

    point: str
    when: str
    how: signal.Signals

    @classmethod
    def parse(cls, text: str) -> CrashPoint:
        """From the variable's text.  Raises ValueError that says what it should be."""
        point, _, rest = text.partition(":")
        when, _, how = rest.partition(":")
        signals = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}
        if not point or when not in {"before", "after"} or how not in signals:
            msg = f"{VARIABLE}={text!r} should be <point>:{{before,after}}[:kill|stop]"
            raise ValueError(msg)
        return cls(point, when, signals[how])

    def reach(self, point: str, when: str) -> None:
        """Die or stop if this is the place."""
        if (point, when) == (self.point, self.when):
            os.kill(os.getpid(), self.how)


def creation_points(operation: Operation[S]) -> list[str]:
    """The changes that an undisturbed creation makes, in order."""
    points = ["claim", "record"]
    for number, stage in enumerate(operation.stages):
        points += [f"{stage.name}.intent"] if number else []
        points += [f"{stage.name}.apply"]
    return [f"{operation.name}.{point}" for point in (*points, "commit")]


def change_points(operation: Operation[S]) -> list[str]:
    """The changes that an undisturbed change makes, in order."""
    points = ["open", "record"]
    for number, stage in enumerate(operation.stages):
        points += [f"{stage.name}.intent"] if number else []
        points += [f"{stage.name}.apply"]
    if operation.after is SubjectState.GONE:
        points += ["tombstone", "record.remove"]
    elif operation.after is SubjectState.TRASHED:
        points += ["directory", "commit"]
    else:
        points += ["commit"]
    return [f"{operation.name}.{point}" for point in points]


def node_points(operation: Operation[S], *, claims: bool = False, facts: Sequence[str] = ()) -> list[str]:
    """The changes that an undisturbed operation of a node makes, in order.

    `claims`: it tells the cluster when it begins and ends; `facts`: stages whose intent tells the cluster
    something.
    """
    points = ["local.begin", *(["begin"] if claims else [])]
    for number, stage in enumerate(operation.stages):
        points += [f"{stage.name}.intent"] if stage.name in facts else []
        points += [f"local.{stage.name}.intent"] if number else []
        points += [f"{stage.name}.apply"]
    points += [*(["commit"] if claims else []), "local.commit"]
    return [f"{operation.name}.{point}" for point in points]


def node_undo_points(operation: Operation[S], *, facts: Sequence[str] = ()) -> list[str]:
    """The further changes that an operation of a node makes which failed for good at its last stage.

    `facts`: stages whose undo tells the cluster something, before the next stage is undone.
    """
    points, last = ["local.undo"], ""
    for stage in reversed(operation.stages):
        if stage.undo is None:
            continue
        if last in facts:
            points += [f"{stage.name}.undo.intent", f"local.{stage.name}.undo.intent"]
        points += [f"{stage.name}.undo"]
        last = stage.name
    return [f"{operation.name}.{point}" for point in (*points, "local.commit")]


def undo_points(operation: Operation[S]) -> list[str]:
    """The further changes that a creation makes which fails for good."""
    points = [
        "undo",
        *(f"{s.name}.undo" for s in reversed(operation.stages) if s.undo),
        "tombstone",
        "record.remove",
    ]
    return [f"{operation.name}.{point}" for point in points]


def listed(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """All points once, in order."""
    return tuple(dict.fromkeys(point for group in groups for point in group))
