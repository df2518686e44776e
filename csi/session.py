"""A driver's session: the executor's, and the images that the same identity reaches."""

from __future__ import annotations

from typing import Protocol

from csi.images import ImageBackend
from executor.ports import Session
from omap.store import Place


class DriverSession(Session, Protocol):
    """What one identity reaches in one cluster."""

    @property
    def fsid(self) -> str:
        """The cluster's own id."""

    def images(self, place: Place) -> ImageBackend:
        """The images of a place of this cluster.  Costs no round trip."""

    def pool_id(self, pool: str) -> int:
        """The number of a pool.  Raises NotFoundError, naming pool and cluster."""

    def pool_name(self, pool_id: int) -> str:
        """The name of a pool.  Raises NotFoundError, naming number and cluster."""
