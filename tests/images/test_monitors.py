"""Where monitors may listen, and which of them greet."""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
from collections.abc import Iterator

import pytest

from csi.ceph.monitors import Endpoint, answering, endpoints
from e2e.harness.ceph import MicroCeph


@pytest.mark.parametrize(
    ("monitor", "expected"),
    [
        ("10.0.0.1", ["v2:10.0.0.1:3300", "v1:10.0.0.1:6789"]),
        ("mon.ceph.svc:6789", ["v1:mon.ceph.svc:6789"]),
        ("10.0.0.1:3300", ["v2:10.0.0.1:3300"]),
        ("10.0.0.1:4000", ["v2:10.0.0.1:4000", "v1:10.0.0.1:4000"]),
        ("v2:10.0.0.1:4000/0", ["v2:10.0.0.1:4000"]),
        ("[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0]", ["v2:10.0.0.1:3300", "v1:10.0.0.1:6789"]),
        ("[fd00::1]:6789", ["v1:[fd00::1]:6789"]),
        ("[v2:[fd00::1]:3300/0,v1:[fd00::1]:6789/0]", ["v2:[fd00::1]:3300", "v1:[fd00::1]:6789"]),
    ],
)
def test_an_address_says_where_a_monitor_may_listen(monitor: str, expected: list[str]) -> None:
    assert [str(endpoint) for endpoint in endpoints([monitor, monitor])] == expected


@contextlib.contextmanager
def listening() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, server.getsockname()[1]


@pytest.mark.parametrize(
    ("greeting", "protocols"), [(b"ceph v2\n", ["v2"]), (b"ceph v027", ["v1"]), (b"SSH-2.0-x\r\n", [])]
)
def test_only_a_monitors_greeting_counts(greeting: bytes, protocols: list[str]) -> None:
    def greet(server: socket.socket) -> None:
        for _ in range(2):
            peer, _ = server.accept()
            peer.sendall(greeting)
            peer.close()

    with listening() as (server, port), concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(greet, server)
        found = answering([f"127.0.0.1:{port}"], timeout=5)
    assert found == tuple(Endpoint(protocol, "127.0.0.1", port) for protocol in protocols)


def test_who_listens_and_says_nothing_does_not_count() -> None:
    with listening() as (_, port):
        assert answering([f"v2:127.0.0.1:{port}"], timeout=0.1) == ()
    assert answering([f"v2:127.0.0.1:{port}"], timeout=1) == ()
    assert answering([], timeout=1) == ()


@pytest.mark.ceph
def test_a_real_monitor_greets(ceph: MicroCeph) -> None:
    assert [endpoint.protocol for endpoint in answering([ceph.monitors], timeout=5)] == ["v2"]
