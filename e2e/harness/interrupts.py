"""Interrupted scripts clean up: SIGTERM and SIGHUP become the exception that Ctrl-C is."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_INTERRUPTS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupts_clean_up() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP too, so that `finally` clauses run."""
    before = {number: signal.signal(number, _interrupt) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
