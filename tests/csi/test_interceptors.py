"""What happens around every call, over a real socket."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.message import Message
from prometheus_client import generate_latest

from csi.admission import READING_CALLS
from executor.errors import PendingError, UnavailableError
from proto import csi_pb2, waymark_pb2
from tests.csi.conftest import HANDLE, MAX_CALLS, Served
from tests.csi.test_requests import KEY, SECRETS, create, refusal

CREATE = "/csi.v1.Controller/CreateVolume"


def failing(served: Served, error: Exception) -> None:
    def act(_command: object) -> None:
        raise error

    served.operations.act = act


def test_a_call_is_one_line_and_the_request_is_in_it_without_its_secrets(served: Served) -> None:
    served.controller.CreateVolume(create(secrets=SECRETS))

    (line,) = served.log_lines()
    request = line.pop("request")
    assert line.pop("time")
    assert isinstance(line.pop("seconds"), float)
    assert line == {
        "event": "call",
        "level": "info",
        "request_id": "request-1",
        "method": CREATE,
        "code": "OK",
        "subject": "pvc-1",
    }
    assert isinstance(request, dict)
    assert request["secrets"] == {"userID": "***", "userKey": "***"}
    assert KEY not in served.log_stream.getvalue()


def test_an_error_is_in_the_line_as_the_caller_got_it(served: Served) -> None:
    failing(served, PendingError("pvc-1 is being made"))

    assert refusal(served.controller.CreateVolume, create()) == (
        grpc.StatusCode.ABORTED,
        "pvc-1 is being made",
    )
    (line,) = served.log_lines()
    assert (line["code"], line["error"], line["subject"]) == ("ABORTED", "pvc-1 is being made", "pvc-1")


def test_a_fault_shows_in_the_log_alone_and_never_with_a_secret(served: Served) -> None:
    failing(served, ValueError(f"cannot connect with {KEY}"))

    code, text = refusal(served.controller.CreateVolume, create(secrets=SECRETS))

    assert code == grpc.StatusCode.UNAVAILABLE
    assert "request-1" in text
    assert "cannot connect" not in text
    (line,) = served.log_lines()
    assert line["level"] == "error"
    assert "ValueError: cannot connect with ***" in str(line["traceback"])
    assert KEY not in served.log_stream.getvalue()


def test_an_error_that_repeats_a_secret_is_sent_without_it(served: Served) -> None:
    failing(served, UnavailableError(f"the key {KEY} was not answered"))

    _, text = refusal(served.controller.CreateVolume, create(secrets=SECRETS))

    assert text == "the key *** was not answered"
    assert KEY not in served.log_stream.getvalue()


def test_probes_are_logged_only_in_detail(served: Served) -> None:
    assert served.identity.Probe(csi_pb2.ProbeRequest()).ready.value

    assert [line["level"] for line in served.log_lines()] == ["debug"]


def test_a_request_that_cannot_be_read_is_invalid(served: Served) -> None:
    send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = served.channel.unary_unary(CREATE)

    for content in (b"\xff\xff", b"\x0a\x02\xff\xfe"):  # no message at all; a name that is not UTF-8
        code, text = refusal(send, content)

        assert (code, CREATE in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_what_is_not_offered_is_unimplemented_and_logged(served: Served) -> None:
    code, text = refusal(served.controller.GetCapacity, csi_pb2.GetCapacityRequest())

    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "/csi.v1.Controller/GetCapacity is not offered" in text
    assert served.log_lines()[0]["code"] == "UNIMPLEMENTED"


def test_calls_are_counted_under_the_names_that_dashboards_know(served: Served) -> None:
    served.controller.CreateVolume(create())
    refusal(served.controller.CreateVolume, create(name=""))

    shown = generate_latest(served.registry).decode()

    for code in ("OK", "InvalidArgument"):
        labels = f'driver_name="test.waymark.dev",grpc_status_code="{code}",method_name="{CREATE}"'
        assert f"csi_plugin_operations_seconds_count{{{labels}}} 1.0" in shown
    assert 'le="0.1"' in shown
    assert 'le="600.0"' in shown


class Held:
    """Calls that stay inside their operations until they are let go."""

    def __init__(self, served: Served) -> None:
        self._inside = threading.Semaphore(0)
        self._go = threading.Event()
        self._threads: list[threading.Thread] = []
        served.operations.act = self._act

    def hold(self, call: Callable[..., object], request: Message) -> None:
        self._threads.append(threading.Thread(target=call, args=(request,)))
        self._threads[-1].start()
        assert self._inside.acquire(timeout=30)

    def let_go(self) -> None:
        self._go.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _act(self, _command: object) -> None:
        self._inside.release()
        assert self._go.wait(timeout=30)


def test_a_call_above_the_limit_is_refused_at_once_and_names_its_cluster(served: Served) -> None:
    held = Held(served)
    for _ in range(MAX_CALLS):
        held.hold(served.controller.CreateVolume, create())

    delete = csi_pb2.DeleteVolumeRequest(volume_id=HANDLE)
    for answer in (
        refusal(served.controller.CreateVolume, create()),
        refusal(served.controller.DeleteVolume, delete),
    ):
        code, text = answer
        assert code == grpc.StatusCode.UNAVAILABLE
        assert "cluster prod" in text

    held.let_go()
    served.operations.act = lambda _command: None
    served.controller.CreateVolume(create())


def test_identity_is_answered_while_every_other_call_is_held(served: Served) -> None:
    held = Held(served)
    for _ in range(READING_CALLS):
        held.hold(served.records.Get, waymark_pb2.GetRequest(volume_id=HANDLE))
    for _ in range(MAX_CALLS):
        held.hold(served.controller.CreateVolume, create())

    for _ in range(50):
        assert served.identity.Probe(csi_pb2.ProbeRequest(), timeout=30).ready.value
    code, _ = refusal(served.records.Get, waymark_pb2.GetRequest(volume_id=HANDLE))

    assert code == grpc.StatusCode.UNAVAILABLE
    held.let_go()


@pytest.mark.parametrize("number", range(3))
def test_every_call_has_an_id_of_its_own(served: Served, number: int) -> None:
    for _ in range(number):
        served.identity.Probe(csi_pb2.ProbeRequest())

    ids = [line["request_id"] for line in served.log_lines()]
    assert len(set(ids)) == number
