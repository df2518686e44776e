"""What a node operation works with: this host's parts, and the volume's cluster when it is needed.

The cluster is connected to only when an operation asks for it, since taking a volume off the node must work
while
the cluster is away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from csi.node.ports import Credentials, FileSystems, Mapper, Mounts
from csi.node.stage_keys import StageKeys
from csi.session import DriverSession
from omap.store import Place, Store


@dataclass(frozen=True, slots=True)
class HostParts:
    """This host: mappers by name, file systems, mounts, kept keys."""

    mappers: dict[str, Mapper]
    file_systems: FileSystems
    mounts: Mounts
    stage_keys: StageKeys


class NodeSession:
    """An executor's session on a node.

    `credentials` is the identity of the request, or the one kept at stage.
    """

    def __init__(
        self,
        cluster: str,
        host: HostParts,
        credentials: Callable[[], Credentials],
        connect: Callable[[Credentials], DriverSession],
        monitors: Callable[[], tuple[str, ...]],
    ) -> None:
        """For one volume's cluster.  `credentials` raises what there is to say when there is no identity."""
        self._cluster = cluster
        self._credentials = credentials
        self._connect = connect
        self._monitors = monitors
        self.host = host

    @property
    def cluster(self) -> str:
        """The `clusterID`."""
        return self._cluster

    @property
    def credentials(self) -> Credentials:
        """The identity to map with.  Raises PreconditionError, UnauthenticatedError."""
        return self._credentials()

    @property
    def monitors(self) -> tuple[str, ...]:
        """The cluster's monitors.  Raises PreconditionError."""
        return self._monitors()

    @property
    def ceph(self) -> DriverSession:
        """The cluster itself.  Raises UnavailableError, UnauthenticatedError, PreconditionError."""
        return self._connect(self._credentials())

    @property
    def addresses(self) -> Sequence[str]:
        """The connections' addresses."""
        return self.ceph.addresses

    def store(self, place: Place) -> Store:
        """The store of a place."""
        return self.ceph.store(place)

    def fence(self, addresses: Sequence[str]) -> None:
        """As the cluster's session does."""
        self.ceph.fence(addresses)

    def barrier(self) -> None:
        """As the cluster's session does."""
        self.ceph.barrier()
