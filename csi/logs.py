"""The log: one JSON object a line, to standard error or a file.

A call is one line at its end (`csi.interceptors`); the inner layers do not log.  Every line has `time`
(UTC), `level` and `event`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

LEVELS = ("debug", "info", "warning", "error")


def open_file(path: pathlib.Path) -> TextIO:
    """A file to append a log to, which only its owner may read.  Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8")


class _Forgiving:
    """Drops what its stream cannot take: no call fails because nobody reads the log, or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def to_stream(stream: TextIO, level: str) -> FilteringBoundLogger:
    """A log that drops lines below `level` (one of LEVELS); each line is written whole and at once."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", _Forgiving(stream))),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    ).bind()
    return log
