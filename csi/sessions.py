"""Which session a call works with: the request's identity, or else the driver's own for that cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from csi.clusters import ClusterConfig, ClusterConfigs
from csi.identities import Keyring
from csi.node.ports import Credentials
from csi.session import DriverSession
from executor.ports import Clock

WAIT_SECONDS = 20.0
"""How long to wait for a connection where no caller's deadline says it."""


class Clusters(Protocol):
    """Connects to clusters, each identity once; `csi.ceph.sessions` does it for real ones."""

    def open(
        self, config: ClusterConfig, credentials: Credentials, timeout: float = WAIT_SECONDS
    ) -> DriverSession:
        """The session of an identity.

        Raises UnauthenticatedError, PreconditionError, and UnavailableError at the latest after `timeout`
        seconds; the connecting goes on then, for the next call.
        """


class Sessions:
    """Sessions by cluster and identity.  Safe for use by many threads."""

    def __init__(self, configs: ClusterConfigs, keyring: Keyring, clusters: Clusters, clock: Clock) -> None:
        """Find clusters in `configs` and the driver's own identities in `keyring`."""
        self._configs = configs
        self._keyring = keyring
        self._clusters = clusters
        self._clock = clock

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

        Waits until `deadline` by the monotonic clock; without one for WAIT_SECONDS.  Raises
        PreconditionError (cluster or identity is not set up), UnauthenticatedError, UnavailableError.
        """
        config, identity = self._configs.get(cluster_id), self.identity(cluster_id, given)
        if deadline is None:
            return self._clusters.open(config, identity)
        return self._clusters.open(config, identity, max(0.0, deadline - self._clock.monotonic()))
