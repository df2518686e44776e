"""What happens around every call: request id, admission, error map, metrics, one log line.

Handlers raise; this is the only place where an error becomes an answer.  Whatever a request's secret fields
hold is taken out of texts before they are logged or sent.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError, Message
from structlog.typing import FilteringBoundLogger

from csi import errors, redact, subjects
from csi.admission import Admission
from csi.metrics import Metrics
from executor.errors import InvalidError

_Handler = Callable[[Any, grpc.ServicerContext], Any]

# Asked every few seconds by probes; at the level of other calls they would be most of the log.
_QUIET = "/csi.v1.Identity/"


_UNREADABLE = empty_pb2.Empty()
"""Stands for a request that is no message of its type."""


class Calls(grpc.ServerInterceptor):
    """Wraps every unary call; the services that are served have no others."""

    def __init__(
        self,
        log: FilteringBoundLogger,
        metrics: Metrics,
        admission: Admission,
        request_ids: Callable[[], str],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap calls with these parts; `seconds` is the clock that durations are measured by."""
        self._log = log
        self._metrics = metrics
        self._admission = admission
        self._request_ids = request_ids
        self._seconds = seconds

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Give gRPC the wrapped handler."""
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        inner, method = handler.unary_unary, handler_call_details.method

        def call(request: Message, context: grpc.ServicerContext) -> Any:
            return self._call(method, inner, request, context)

        return grpc.unary_unary_rpc_method_handler(
            call, _tolerant(handler.request_deserializer), handler.response_serializer
        )

    def _call(self, method: str, inner: _Handler, request: Message, context: grpc.ServicerContext) -> Any:
        request_id = self._request_ids()
        begun = self._seconds()
        try:
            with self._admission.admitted(method, request):
                _check_readable(method, request)
                reply = inner(request, context)
        except Exception as error:  # noqa: BLE001  whatever it is, the caller must get an answer of ours
            refusal = errors.refusal(error, method, request_id)
            secrets = redact.secret_values(request)
            text = redact.scrub(refusal.text, secrets)
            fault = redact.scrub(_traceback(error), secrets) if refusal.is_fault else ""
            self._ended(method, request, request_id, begun, refusal.code, text, fault)
            context.abort(refusal.code, text)
        self._ended(method, request, request_id, begun, grpc.StatusCode.OK, "", "")
        return reply

    def _ended(
        self,
        method: str,
        request: Message,
        request_id: str,
        begun: float,
        code: grpc.StatusCode,
        error: str,
        fault: str,
    ) -> None:
        seconds = self._seconds() - begun
        self._metrics.call_ended(method, code, seconds)
        log = self._log.bind(request_id=request_id, method=method, code=code.name, seconds=round(seconds, 6))
        subject = subjects.key(request)
        if subject:
            log = log.bind(subject=subject)
        if error:
            log = log.bind(error=error)
        if self._log.is_enabled_for(logging.DEBUG):
            log = log.bind(request=redact.loggable(request))
        if fault:
            log.error("call", traceback=fault)
        elif method.startswith(_QUIET) and not error:
            log.debug("call")
        else:
            log.info("call")


def _tolerant(deserialize: Callable[[bytes], Message] | None) -> Callable[[bytes], Message]:
    """Keep an unreadable request from ending inside gRPC, which would answer INTERNAL without a reason."""
    assert deserialize is not None

    def deserialized(content: bytes) -> Message:
        try:
            return deserialize(content)
        except DecodeError:
            return _UNREADABLE

    return deserialized


def _check_readable(method: str, request: Message) -> None:
    if request is _UNREADABLE:
        raise InvalidError(f"the request is no message that {method} takes, or a text in it is not UTF-8")


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))
