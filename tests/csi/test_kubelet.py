"""What kubelet and its probes see of a driver process, on real sockets."""

from __future__ import annotations

import http.client
import io
import pathlib
import socket
from collections.abc import Iterator

import grpc
import pytest

from csi import logs
from csi.cli.arguments import parser, to_settings
from csi.health import HealthEndpoint
from csi.server import Server
from csi.services.registration import THREADS, Registration, socket_path
from csi.settings import SettingsError
from proto import pluginregistration_pb2, pluginregistration_pb2_grpc
from tests.csi.conftest import Served

DRIVER = "rbd.test.waymark.dev"


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def registration(tmp_path: pathlib.Path, log: io.StringIO) -> Iterator[pathlib.Path]:
    path = socket_path(tmp_path, DRIVER)
    asked = Registration(DRIVER, pathlib.Path("/kubelet/plugins/x/csi.sock"), logs.to_stream(log, "info"))
    server = Server(
        path,
        THREADS,
        [],
        lambda server: pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(asked, server),
    )
    server.start()
    yield path
    server.stop(lambda: None)
    assert not path.exists()


def test_kubelet_is_told_who_and_where_the_driver_is(registration: pathlib.Path) -> None:
    assert registration.name == f"{DRIVER}-reg.sock"
    assert registration.stat().st_mode & 0o777 == 0o600
    with grpc.insecure_channel(f"unix:{registration}") as channel:
        info = pluginregistration_pb2_grpc.RegistrationStub(channel).GetInfo(
            pluginregistration_pb2.InfoRequest()
        )
    assert (info.type, info.name, info.endpoint) == ("CSIPlugin", DRIVER, "/kubelet/plugins/x/csi.sock")
    assert list(info.supported_versions) == ["1.0.0"]


@pytest.mark.parametrize(("taken", "level"), [(True, "info"), (False, "error")])
def test_what_kubelet_says_is_logged(
    registration: pathlib.Path, log: io.StringIO, taken: bool, level: str
) -> None:
    status = pluginregistration_pb2.RegistrationStatus(
        plugin_registered=taken, error="" if taken else "a driver of that name is there already"
    )
    with grpc.insecure_channel(f"unix:{registration}") as channel:
        pluginregistration_pb2_grpc.RegistrationStub(channel).NotifyRegistrationStatus(status)
    assert f'"level": "{level}"' in log.getvalue()
    assert status.error in log.getvalue()


def ask(health: HealthEndpoint, path: str = "/healthz", host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, health.port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_driver_that_answers_is_healthy(served: Served) -> None:
    health = HealthEndpoint(("127.0.0.1", 0), served.socket)
    health.start()
    assert ask(health) == (200, "ok\n")
    assert ask(health, "/etc/passwd")[0] == 404
    health.close()


def test_a_driver_that_does_not_answer_is_not(tmp_path: pathlib.Path) -> None:
    health = HealthEndpoint(("127.0.0.1", 0), tmp_path / "absent.sock")
    health.start()
    status, text = ask(health)
    assert status == 503
    assert "does not answer Probe" in text
    health.close()


def test_a_driver_that_takes_the_probe_and_never_answers_is_not_healthy(tmp_path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "csi.sock"))
        hung.listen()
        health = HealthEndpoint(("127.0.0.1", 0), tmp_path / "csi.sock", probe_seconds=0.2)
        health.start()
        status, text = ask(health)
        health.close()
    assert status == 503
    assert text == "the driver does not answer Probe within 0.2 s: DEADLINE_EXCEEDED\n"


def test_an_endpoint_without_a_host_is_reached_by_either_family(served: Served) -> None:
    health = HealthEndpoint(("", 0), served.socket)
    health.start()
    hosts = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
    assert [ask(health, host=host) for host in hosts] == [(200, "ok\n")] * len(hosts)
    health.close()


def serve(*words: str) -> list[str]:
    return ["serve", "--endpoint", "unix:///run/csi.sock", *words]


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:9808", ("127.0.0.1", 9808)), (":9808", ("", 9808)), ("[::1]:1", ("::1", 1))],
)
def test_a_health_address_is_host_and_port(text: str, found: tuple[str, int]) -> None:
    asked = parser().parse_args(serve("--node", "--node-id", "n", "--health-address", text))
    assert to_settings(asked).health_address == found


@pytest.mark.parametrize("text", ["9808", "host:", "host:99999", "host:x"])
def test_what_is_no_address_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(serve("--node", "--node-id", "n", "--health-address", text))
    assert text in capsys.readouterr().err


def test_only_a_node_registers_with_kubelet() -> None:
    asked = parser().parse_args(serve("--controller", "--registration-dir", "/registry"))
    with pytest.raises(SettingsError, match="--registration-dir is for a node"):
        to_settings(asked)
