"""CSI and Operations clients of one plugin socket; each call has a deadline, retries go the sidecars' way."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar, cast

import grpc

from proto import csi_pb2, csi_pb2_grpc, waymark_pb2_grpc

NOT_FINAL = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNAVAILABLE,
    }
)
"""Codes after which the provisioner and kubelet go on asking."""

CALL_SECONDS = 30.0

_OPTIONS = [
    # A plugin that was just started again is looked for often, not after the usual growing pauses.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    # Two clients of one process are two connections: one ends with the plugin it was made for.
    ("grpc.use_local_subchannel_pool", 1),
]

Reply = TypeVar("Reply")


class Client:
    """Stubs of every service that a plugin may have on its socket. A context manager."""

    def __init__(self, socket: pathlib.Path) -> None:
        self.channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self.identity = csi_pb2_grpc.IdentityStub(self.channel)
        self.controller = csi_pb2_grpc.ControllerStub(self.channel)
        self.node = csi_pb2_grpc.NodeStub(self.channel)
        self.operations = waymark_pb2_grpc.OperationsStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def answers(self, seconds: float = 1.0) -> bool:
        """Whether Probe is answered within `seconds`, waiting for the socket if it is not there yet."""
        try:
            self.identity.Probe(csi_pb2.ProbeRequest(), timeout=seconds, wait_for_ready=True)
        except grpc.RpcError:
            return False
        return True


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """Return the status code of a failed call."""
    return cast("grpc.Call", error).code()  # every error of a stub is a Call too; the types do not say so


def details_of(error: grpc.RpcError) -> str:
    """Return the status message of a failed call."""
    return cast("grpc.Call", error).details() or ""


def retried(
    method: Callable[..., Reply],
    request: object,
    *,
    for_seconds: float = 60.0,
    call_seconds: float = CALL_SECONDS,
    told: Callable[[grpc.RpcError], None] = lambda _error: None,
) -> Reply:
    """Make a call until it succeeds or fails finally, as the sidecars do; pauses grow from 0.1 s to 2 s.

    `told` hears of each answer that was not final. Raises the last error after `for_seconds`.
    """
    deadline = time.monotonic() + for_seconds
    pause = 0.1
    while True:
        try:
            return method(request, timeout=call_seconds)
        except grpc.RpcError as error:
            if code_of(error) not in NOT_FINAL or time.monotonic() + pause > deadline:
                raise
            told(error)
        threading.Event().wait(pause)
        pause = min(2.0, pause * 1.5)
