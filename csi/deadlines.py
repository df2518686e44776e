"""How long a handler may wait.

A handler answers shortly before its caller's deadline, because an answer that says which stage is at work,
and who holds it, helps where "deadline exceeded" does not.  The work itself goes on.
"""

from __future__ import annotations

from typing import Protocol

from executor.ports import Clock

DEFAULT_SECONDS = 150.0
"""What a caller that sets no deadline gets, and the most that any caller gets."""

MARGIN_SECONDS = 1.0
"""Kept back for the answer's way to the caller."""


class Call(Protocol):
    """The part of grpc.ServicerContext that tells the caller's deadline."""

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up; None without a deadline."""


def deadline(call: Call, clock: Clock) -> float:
    """The moment by `clock.monotonic()` at which a handler must answer, whatever it has by then."""
    remaining = call.time_remaining()
    if remaining is None:
        return clock.monotonic() + DEFAULT_SECONDS
    return clock.monotonic() + max(0.0, min(remaining - MARGIN_SECONDS, DEFAULT_SECONDS))
