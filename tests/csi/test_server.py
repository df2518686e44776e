"""The server's socket and its end."""

from __future__ import annotations

import pathlib
import socket
import stat
import threading

import grpc
import pytest

from csi.server import EndpointError, Server
from csi.services.identity import Identity
from proto import csi_pb2, csi_pb2_grpc


def identity_on(path: pathlib.Path) -> Server:
    def register(server: grpc.Server) -> None:
        csi_pb2_grpc.add_IdentityServicer_to_server(Identity("a", "1", has_controller=False), server)

    return Server(path, 2, [], register)


def probe(path: pathlib.Path) -> bool:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        return csi_pb2_grpc.IdentityStub(channel).Probe(csi_pb2.ProbeRequest(), timeout=30).ready.value


def test_the_socket_is_the_owners_alone_and_goes_with_the_server(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "csi.sock"
    server = identity_on(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.start()
    assert probe(path)
    closed = threading.Event()
    server.stop(closed.set)

    assert closed.is_set()
    assert not path.exists()


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "csi.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    server = identity_on(path)
    server.start()

    assert probe(path)
    server.stop(lambda: None)


def test_a_socket_that_is_served_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "csi.sock"
    first = identity_on(path)
    first.start()

    with pytest.raises(EndpointError, match="another process serves it"):
        identity_on(path)

    assert probe(path)
    first.stop(lambda: None)


def test_what_is_no_socket_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "csi.sock"
    path.write_text("precious")

    with pytest.raises(EndpointError, match="no socket"):
        identity_on(path)

    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(EndpointError, match=str(tmp_path / "none")):
        identity_on(tmp_path / "none" / "csi.sock")
