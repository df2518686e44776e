"""From errors to gRPC codes: the one table, and the texts that may leave the process.

A sidecar forgets a volume after a *final* code, so a code is final only where nothing half-made is left;
that is what makes an error a PermanentError.  Everything else, a fault of our own included, is answered
with a code after which callers keep asking: a defect must show in the log, not as an image that nobody
deletes.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from executor import errors
from omap.store import StoreError

MAX_TEXT_CHARACTERS = 1000
"""Sidecars copy the text into Kubernetes events, which hold 1,024."""

CODES: dict[type[BaseException], grpc.StatusCode] = {
    errors.InvalidError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OutOfRangeError: grpc.StatusCode.OUT_OF_RANGE,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.MismatchError: grpc.StatusCode.ALREADY_EXISTS,
    errors.InUseError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermanentError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PendingError: grpc.StatusCode.ABORTED,
    errors.OverloadedError: grpc.StatusCode.UNAVAILABLE,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.TransientError: grpc.StatusCode.UNAVAILABLE,
    errors.OperationError: grpc.StatusCode.UNAVAILABLE,
    StoreError: grpc.StatusCode.UNAVAILABLE,
}
"""Looked up along the class's ancestors, nearest first."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the caller is told.  `is_fault`: the error is ours, and the log needs its traceback."""

    code: grpc.StatusCode
    text: str
    is_fault: bool = False


def refusal(error: Exception, method: str, request_id: str) -> Refusal:
    """The answer for an error that ended a call.

    The text of an error that is not meant for callers never leaves the process: it could hold anything.
    """
    for ancestor in type(error).__mro__:
        code = CODES.get(ancestor)
        if code is not None:
            return Refusal(code, _clean(str(error)) or type(error).__name__)
    if isinstance(error, NotImplementedError):
        return Refusal(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not offered by this driver")
    return Refusal(
        grpc.StatusCode.UNAVAILABLE,
        f"internal fault in {method}; what was begun stays recorded and a retry goes on from there;"
        f" the driver's log has the details under request id {request_id}",
        is_fault=True,
    )


def _clean(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT_CHARACTERS else line[: MAX_TEXT_CHARACTERS - 1] + "…"
