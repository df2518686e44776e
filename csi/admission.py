"""How many calls are let in at a time.

Calls that wait for a cluster hold a thread each.  So that Identity always finds a free one (else kubelet
restarts the driver in the middle of an outage, which is the last thing it needs), every other service has a
share of the threads, and a call above the share is refused at once.  It is refused here and not by grpcio,
whose own refusal would be a final code.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from google.protobuf.message import Message

from csi import subjects
from executor.errors import OverloadedError

SPARE_THREADS = 4
"""Threads that no limited call can hold."""

READING_CALLS = 4
"""Calls of the Operations service at a time: they read from clusters too and must leave what is spare."""

_UNLIMITED = ("/csi.v1.Identity/", "/grpc.health.v1.Health/")
_READING = "/waymark.v1.Operations/"


class Admission:
    """The shares.  Safe for use by many threads."""

    def __init__(self, max_calls: int) -> None:
        """Let in `max_calls` calls at a time that are neither unlimited nor of the Operations service."""
        self._max_calls = max_calls
        self._calls = threading.BoundedSemaphore(max_calls)
        self._reading = threading.BoundedSemaphore(READING_CALLS)

    @property
    def threads(self) -> int:
        """How many threads the server needs, so that limited calls can never use up all."""
        return self._max_calls + READING_CALLS + SPARE_THREADS

    @contextlib.contextmanager
    def admitted(self, method: str, request: Message) -> Iterator[None]:
        """Hold a place of the method's share.  Raises OverloadedError if there is none."""
        if method.startswith(_UNLIMITED):
            yield
            return
        is_reading = method.startswith(_READING)
        share = self._reading if is_reading else self._calls
        if not share.acquire(blocking=False):
            limit = READING_CALLS if is_reading else self._max_calls
            cluster_id = subjects.cluster_id(request)
            where = f"; this one is for cluster {cluster_id}" if cluster_id else ""
            raise OverloadedError(f"{limit} calls are being served, no more are taken on{where}; retry later")
        try:
            yield
        finally:
            share.release()
