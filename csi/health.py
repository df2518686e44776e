"""`/healthz`: whether the driver answers on its own socket, for Kubernetes' liveness probes.

A probe goes all the way round, through the socket, so that a driver whose threads all hang is noticed.  It
says nothing of Ceph: a restart in an outage helps nobody.
"""

from __future__ import annotations

import http.server
import pathlib
import socket
import socketserver
import threading
from typing import cast

import grpc

from proto import csi_pb2, csi_pb2_grpc

PROBE_SECONDS = 3.0
PATH = "/healthz"


class HealthEndpoint:
    """Answers HTTP on `host:port` until closed."""

    def __init__(
        self, address: tuple[str, int], csi_socket: pathlib.Path, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        """Bind the address; the host "" is every one, of IPv6 too.  Raises OSError if it cannot be had."""

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                """Tell whether the driver answers."""
                if self.path.partition("?")[0] != PATH:
                    self._say(404, f"only {PATH} is served here")
                    return
                problem = problem_of(csi_socket, probe_seconds)
                self._say(503 if problem else 200, problem or "ok")

            def _say(self, status: int, text: str) -> None:
                body = f"{text}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                """A probe every few seconds is nothing to tell."""

        self._server = _Server(address, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    # Not http.server's: that one asks DNS for this host's name, and waits for it where no DNS answers.
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self._any = not address[0] and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if self._any or ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind; kubelet asks at the pod's first address, which may be of either family."""
        if self._any:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def problem_of(csi_socket: pathlib.Path, seconds: float = PROBE_SECONDS) -> str:
    """Why the driver cannot be used; "" if it answers Probe in time."""
    with grpc.insecure_channel(f"unix:{csi_socket}") as channel:
        try:
            csi_pb2_grpc.IdentityStub(channel).Probe(csi_pb2.ProbeRequest(), timeout=seconds)
        except grpc.RpcError as error:
            # Every error of a finished call is a Call too, which grpcio's types do not tell.
            code = cast("grpc.Call", error).code()
            return f"the driver does not answer Probe within {seconds:g} s: {code.name}"
    return ""
