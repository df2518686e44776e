"""Sessions on real clusters: one for each identity, connected once and shared by all calls that use it."""

from __future__ import annotations

import concurrent.futures
import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from csi.ceph.connection import Connection, ConnectionSettings
from csi.ceph.errors import translating
from csi.ceph.images import ceph_images
from csi.clusters import ClusterConfig
from csi.image_backend import Images
from csi.node.ports import Credentials
from csi.sessions import WAIT_SECONDS
from executor.errors import NotFoundError, OperationError, PreconditionError, UnavailableError
from omap.rados import RadosStore
from omap.store import Place

FENCE_SECONDS = 24 * 3600
"""How long an address stays on the blocklist: far longer than any client lives on without its process."""

_FAILURE_SECONDS = 3.0


class CephSession:
    """`DriverSession` on one `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._stores: dict[Place, RadosStore] = {}
        self._images: dict[Place, Images] = {}

    @property
    def cluster(self) -> str:
        """The `clusterID`."""
        return self._connection.config.cluster_id

    @property
    def fsid(self) -> str:
        """The cluster's own id."""
        return self._connection.fsid

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses of both handles."""
        return self._connection.addresses

    def store(self, place: Place) -> RadosStore:
        """The store of a place.  Raises NotFoundError for a pool that is not there."""
        with self._lock:
            found = self._stores.get(place)
        if found is None:
            found = RadosStore(self._connection.store_ioctx(place), place)
            with self._lock:
                found = self._stores.setdefault(place, found)
        return found

    def images(self, place: Place) -> Images:
        """The images of a place."""
        with self._lock:
            if place not in self._images:
                self._images[place] = ceph_images(self._connection, place)
            return self._images[place]

    def pool_id(self, pool: str) -> int:
        """The number of a pool."""
        return self._connection.store_ioctx(Place(self.cluster, pool)).get_pool_id()

    def pool_name(self, pool_id: int) -> str:
        """The name of a pool."""
        with translating(f"pool {pool_id} of cluster {self.cluster}"):
            name = self._connection.store.pool_reverse_lookup(pool_id)
        if name is None:
            raise NotFoundError(f"cluster {self.cluster} has no pool with number {pool_id}")
        return name

    def fence(self, addresses: Sequence[str]) -> None:
        """Put other clients' addresses on the blocklist for a day."""
        own = sorted(set(addresses) & set(self.addresses))
        if own:
            raise PreconditionError(f"{', '.join(own)} is this process itself, which is not fenced")
        for address in addresses:
            with translating(f"blocklisting {address} on cluster {self.cluster}"):
                self._connection.store.blocklist_add(address, FENCE_SECONDS)

    def barrier(self) -> None:
        """Wait until both handles have the osdmap of now."""
        self._connection.barrier()

    def close(self) -> None:
        """End the connections; nothing may be in use any more."""
        with self._lock:
            self._stores.clear()
            self._images.clear()
        self._connection.close()


@dataclass(slots=True)
class _Attempt:
    """A connection in the making, made, or failed at a time by the monotonic clock."""

    session: concurrent.futures.Future[CephSession] = field(default_factory=concurrent.futures.Future)
    failed_at: float | None = None


class CephSessions:
    """All sessions of a process, by cluster and identity.

    Each identity connects by itself, outside any lock of the others, and only once at a time.  So a bad
    secret costs its own callers the time to connect and nobody else anything.  A failure counts for a few
    seconds.
    """

    def __init__(
        self,
        settings: ConnectionSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings or ConnectionSettings()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._attempts: dict[tuple[ClusterConfig, str, bytes], _Attempt] = {}

    def open(
        self, config: ClusterConfig, credentials: Credentials, timeout: float = WAIT_SECONDS
    ) -> CephSession:
        """The session of an identity.

        Raises what `Connection` raises, and UnavailableError once `timeout` seconds are over; the connecting
        goes on then, for the next call.
        """
        key = (config, credentials.user, hashlib.sha256(credentials.key.encode()).digest())
        with self._lock:
            attempt = self._attempts.get(key)
            mine = attempt is None or (
                attempt.failed_at is not None and self._monotonic() - attempt.failed_at > _FAILURE_SECONDS
            )
            if attempt is None or mine:
                attempt = self._attempts[key] = _Attempt()
        if mine:
            threading.Thread(
                target=self._connect, args=(attempt, config, credentials), name="connect", daemon=True
            ).start()
        try:
            return attempt.session.result(max(0.0, timeout))
        except TimeoutError as error:
            raise UnavailableError(
                f"cluster {config.cluster_id} has not answered yet, connecting goes on; retry later"
            ) from error

    def close(self) -> None:
        """End all connections; nothing may be in use any more."""
        with self._lock:
            attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            if attempt.session.done() and attempt.session.exception() is None:
                attempt.session.result().close()

    def _connect(self, attempt: _Attempt, config: ClusterConfig, credentials: Credentials) -> None:
        try:
            session = CephSession(Connection(config, credentials, self._settings))
        except OperationError as error:
            attempt.failed_at = self._monotonic()
            attempt.session.set_exception(error)
        except BaseException as error:  # noqa: BLE001  whatever it was, those who wait must be told
            attempt.failed_at = self._monotonic()
            attempt.session.set_exception(
                UnavailableError(
                    f"connecting to cluster {config.cluster_id} ended early ({type(error).__name__})"
                )
            )
        else:
            attempt.session.set_result(session)
