"""The agent of a guest: it runs commands there for the host.  Only the standard library, and a bare start.

    agent.py ADDRESS                      serve, in the guest, as process 1
    agent.py ADDRESS COMMAND [ARG ...]    run a command there, from the host; streams and exit code pass

Frames both ways: a letter, a length of four bytes, the content.  J is the job, I its input, S a signal to it,
O and E its output, X its exit code.  A job whose caller goes away is killed with its process group.  SIGTERM
to the caller reaches the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import IO

PORT = 1022
LOST = 125
"""Exit code when the guest went away."""

_CONNECT_SECONDS = 10

_jobs: set[int] = set()
_jobs_lock = threading.Lock()


def _put(connection: socket.socket, kind: bytes, content: bytes = b"") -> None:
    connection.sendall(kind + struct.pack(">I", len(content)) + content)


def _get(connection: socket.socket) -> tuple[bytes, bytes]:
    head = _take(connection, 5)
    return head[:1], _take(connection, struct.unpack(">I", head[1:])[0])


def _take(connection: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        more = connection.recv(count - len(taken))
        if not more:
            raise EOFError
        taken += more
    return taken


def serve(address: str) -> None:
    """Take jobs for ever, and collect what processes leave behind."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listener = socket.create_server((address, PORT), backlog=64)
    while True:
        if select.select([listener], [], [], 1)[0]:
            connection = listener.accept()[0]
            threading.Thread(target=_serve_one, args=(connection,), daemon=True).start()
        with _jobs_lock, contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in _jobs:  # its own thread waits for it
                    break
                os.waitpid(found.si_pid, 0)


def _serve_one(connection: socket.socket) -> None:
    with connection:
        job = json.loads(_get(connection)[1])
        try:
            with _jobs_lock:
                process = subprocess.Popen(
                    job["argv"],
                    env={**os.environ, **job["env"]},
                    cwd=job["cwd"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                _jobs.add(process.pid)
        except OSError as error:
            _put(connection, b"E", f"{job['argv'][0]}: {error}\n".encode())
            _put(connection, b"X", b"127")
            return
        sending = threading.Lock()
        threading.Thread(target=_feed, args=(connection, process), daemon=True).start()
        pumps = [
            threading.Thread(target=_pump, args=(connection, sending, stream, kind), daemon=True)
            for stream, kind in ((process.stdout, b"O"), (process.stderr, b"E"))
        ]
        for pump in pumps:
            pump.start()
        code = process.wait()
        with _jobs_lock:
            _jobs.discard(process.pid)
        for pump in pumps:
            pump.join(1)  # a daemon that was left behind may hold the pipes
        with contextlib.suppress(OSError), sending:
            _put(connection, b"X", str(code if code >= 0 else 128 - code).encode())


def _feed(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        while True:
            kind, content = _get(connection)
            if kind == b"S":
                process.send_signal(int(content))
            elif content:
                process.stdin.write(content)
                process.stdin.flush()
            else:
                process.stdin.close()
    except (EOFError, ConnectionError):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    except (OSError, ValueError):
        pass  # the process ended and takes no more


def _pump(connection: socket.socket, sending: threading.Lock, stream: IO[bytes], kind: bytes) -> None:
    with contextlib.suppress(OSError):
        while content := os.read(stream.fileno(), 65536):
            with sending:
                _put(connection, kind, content)


def run(address: str, argv: list[str]) -> int:
    """Run a command in the guest; its exit code, or `LOST`.

    The variables named in GUEST_ENVIRONMENT go with it.
    """
    names = os.environ.get("GUEST_ENVIRONMENT", "").split()
    job = {"argv": argv, "env": {n: os.environ[n] for n in names if n in os.environ}, "cwd": "/"}
    try:
        connection = socket.create_connection((address, PORT), timeout=_CONNECT_SECONDS)
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a guest that died says nothing
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        _put(connection, b"J", json.dumps(job).encode())
        sending = threading.RLock()

        def pass_on(number: int, _frame: object) -> None:
            with contextlib.suppress(OSError), sending:
                _put(connection, b"S", str(number).encode())

        signal.signal(signal.SIGTERM, pass_on)
        threading.Thread(target=_send_input, args=(connection, sending), daemon=True).start()
        while True:
            kind, content = _get(connection)
            if kind == b"X":
                return int(content)
            stream = sys.stdout if kind == b"O" else sys.stderr
            stream.buffer.write(content)
            stream.flush()
    except (OSError, EOFError) as error:
        sys.stderr.write(f"the guest is lost: {error!r}\n")
        return LOST


def _send_input(connection: socket.socket, sending: threading.RLock) -> None:
    with contextlib.suppress(OSError):
        more = True
        while more:
            content = os.read(0, 65536)
            more = bool(content)
            with sending:
                _put(connection, b"I", content)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        ended = run(sys.argv[1], sys.argv[2:])
        sys.stdout.flush()
        os._exit(ended)  # a thread may still be waiting for input
    serve(sys.argv[1])
