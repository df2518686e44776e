"""The gRPC server on its Unix socket: how it comes up, and how it goes down without losing anything.

Going down: no new calls are taken, those that wait are answered, and whatever is still at work stays
recorded and is finished by the next process.  All of it is bounded, because Kubernetes kills what takes
longer than 30 seconds.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from types import FrameType

import grpc

DRAIN_SECONDS = 10.0
"""How long calls that wait may take to be answered after a stop was asked for."""

_PRIVATE = 0o177
"""The umask under which a socket is born 0600."""


class EndpointError(Exception):
    """The socket cannot be served on; the text names its path and says why."""


class Server:
    """A gRPC server on one socket."""

    def __init__(
        self,
        path: pathlib.Path,
        threads: int,
        interceptors: Sequence[grpc.ServerInterceptor],
        register: Callable[[grpc.Server], None],
    ) -> None:
        """Bind the socket, but serve nothing before `start`.

        `register` adds the services.  Raises EndpointError; one reason is that another process listens there.
        """
        self._path = path
        self._server = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="call"), interceptors=list(interceptors)
        )
        register(self._server)
        _remove_stale(path)
        with _umask(_PRIVATE):
            try:
                self._server.add_insecure_port(f"unix:{path}")
            except RuntimeError as error:
                raise EndpointError(f"cannot listen on {path}: {error}") from error
        self._identity = _identity(path)

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    def stop(self, close: Callable[[], None], drain_seconds: float = DRAIN_SECONDS) -> None:
        """Take no new calls, run `close` while the open ones are answered, and remove the socket."""
        # The close runs meanwhile, not after: it is what wakes the calls that wait for their operations.
        stopped = self._server.stop(drain_seconds)
        close()
        stopped.wait()
        # A successor may have bound its own socket under the path by now: that one is not ours to remove.
        if self._identity is not None and _identity(self._path) == self._identity:
            self._path.unlink(missing_ok=True)


class StopSignal:
    """The wish that this process ends (SIGTERM, or SIGINT from a keyboard), caught from construction on."""

    def __init__(self) -> None:
        """Catch the signals.  Only the main thread can do this."""
        self._asked = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def wait(self) -> None:
        """Wait until the process is asked to end."""
        self._asked.wait()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()


def _remove_stale(path: pathlib.Path) -> None:
    """Remove a socket that a dead process left.  Raises EndpointError if it is in use or no socket."""
    if not path.parent.is_dir():
        raise EndpointError(f"cannot listen on {path}: there is no folder {path.parent}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EndpointError(f"cannot listen on {path}: something that is no socket is there; move it away")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise EndpointError(f"cannot listen on {path}: another process serves it; stop that one first")


def _identity(path: pathlib.Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
