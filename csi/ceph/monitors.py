"""A knock at the monitors: which of them answer at all.

librados reports a refused key and an absent cluster alike, as a time-out.  Whoever listens on a monitor's
port greets first, so a short look at the greeting tells the two apart.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

_PORTS = {"v2": 3300, "v1": 6789}
_ADDRESS = re.compile(
    r"(?:(?P<protocol>v[12]|any):)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\],:/\s]+)(?::(?P<port>\d+))?(?:/\d+)?"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a monitor may listen.  `protocol` is `v2` or `v1`."""

    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}:{host}:{self.port}"


def endpoints(monitors: Sequence[str]) -> tuple[Endpoint, ...]:
    """Every place where these monitors may listen.

    An entry is an address as `mon_host` takes it: `host`, `host:port`, `v2:host:port/nonce`, or several of
    them in brackets.  Without a protocol the port decides: 3300 is v2, 6789 is v1, any other may be either.
    """
    found: dict[Endpoint, None] = {}
    for monitor in monitors:
        inner = monitor[1:-1] if monitor.startswith(("[v", "[any:")) and monitor.endswith("]") else monitor
        for match in _ADDRESS.finditer(inner):
            for endpoint in _candidates(match["protocol"], match["host"].strip("[]"), match["port"]):
                found[endpoint] = None
    return tuple(found)


def answering(monitors: Sequence[str], timeout: float) -> tuple[Endpoint, ...]:
    """Those of the endpoints whose listener greets as a Ceph monitor within `timeout` seconds."""
    candidates = endpoints(monitors)
    pool = concurrent.futures.ThreadPoolExecutor(max(1, len(candidates)), thread_name_prefix="knock")
    try:
        futures = {pool.submit(_greets, endpoint, timeout): endpoint for endpoint in candidates}
        done, _ = concurrent.futures.wait(futures, timeout=timeout)
        return tuple(endpoint for future, endpoint in futures.items() if future in done and future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _candidates(protocol: str | None, host: str, port: str | None) -> list[Endpoint]:
    protocols = [protocol] if protocol in _PORTS else ["v2", "v1"]
    if port is None:
        return [Endpoint(each, host, _PORTS[each]) for each in protocols]
    if len(protocols) > 1 and int(port) in _PORTS.values():
        protocols = [each for each in protocols if _PORTS[each] == int(port)]
    return [Endpoint(each, host, int(port)) for each in protocols]


def _greets(endpoint: Endpoint, timeout: float) -> bool:
    greeting = b"ceph v2" if endpoint.protocol == "v2" else b"ceph v0"
    with (
        contextlib.suppress(OSError),
        socket.create_connection((endpoint.host, endpoint.port), timeout) as peer,
    ):
        return peer.recv(len(greeting), socket.MSG_WAITALL) == greeting
    return False
