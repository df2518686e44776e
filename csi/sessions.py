"""Which session a call works with: the request's identity, or else the driver's own for that cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Protocol

from csi.clusters import ClusterConfig, ClusterConfigs
from csi.identities import Keyring
from csi.node.ports import Credentials
from csi.session import DriverSession
from executor.errors import UnavailableError
from executor.ports import Clock


class Clusters(Protocol):
    """Connects to clusters; `csi.ceph.sessions` does it for real ones."""

    def open(self, config: ClusterConfig, credentials: Credentials) -> DriverSession:
        """The session of an identity, connected once.  Raises UnavailableError, UnauthenticatedError."""


class Sessions:
    """Sessions by cluster and identity.  Safe for use by many threads.

    A connection is made beside the calls that wait for it, so that each of them answers before its deadline.
    """

    def __init__(self, configs: ClusterConfigs, keyring: Keyring, clusters: Clusters, clock: Clock) -> None:
        """Find clusters in `configs` and the driver's own identities in `keyring`."""
        self._configs = configs
        self._keyring = keyring
        self._clusters = clusters
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: dict[tuple[ClusterConfig, Credentials], DriverSession] = {}
        self._opening: dict[tuple[ClusterConfig, Credentials], Future[DriverSession]] = {}

    def config(self, cluster_id: str) -> ClusterConfig:
        """A cluster's entry as it is now.  Raises PreconditionError."""
        return self._configs.get(cluster_id)

    def configs(self) -> tuple[ClusterConfig, ...]:
        """Every cluster's entry as it is now."""
        return self._configs.all()

    def identity(
        self,
        cluster_id: str,
        given: Credentials | None,
        kept: Callable[[], Credentials | None] = lambda: None,
    ) -> Credentials:
        """The identity given with a request, else the driver's own, else one that was kept for the subject.

        Raises PreconditionError when there is none, UnauthenticatedError when the driver's own is broken.
        """
        found = given or self._keyring.own(cluster_id) or kept()
        return self._keyring.identity(cluster_id, found)

    def open(
        self, cluster_id: str, given: Credentials | None, deadline: float | None = None
    ) -> DriverSession:
        """The session for a call that came with these credentials, or with none.

        Waits until `deadline` by the monotonic clock; without one as long as connecting takes.  Raises
        PreconditionError (cluster or identity is not set up), UnauthenticatedError, UnavailableError.
        """
        key = (self._configs.get(cluster_id), self.identity(cluster_id, given))
        with self._lock:
            session = self._opened.get(key)
            if session is not None:
                return session
            opening = self._opening.get(key)
            if opening is None:
                opening = self._opening[key] = Future()
                threading.Thread(
                    target=self._connect, args=(key, opening), name="connect", daemon=True
                ).start()
        try:
            return opening.result(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
        except FutureTimeoutError:
            raise UnavailableError(
                f"cluster {cluster_id} has not answered yet, connecting goes on; retry later"
            ) from None

    def _connect(self, key: tuple[ClusterConfig, Credentials], opening: Future[DriverSession]) -> None:
        try:
            session = self._clusters.open(*key)
        except BaseException as error:  # noqa: BLE001  whatever it is, those who wait are told
            with self._lock:
                del self._opening[key]
            opening.set_exception(error)
        else:
            with self._lock:
                self._opened[key] = session
                del self._opening[key]
            opening.set_result(session)
