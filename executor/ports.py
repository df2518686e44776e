"""What the executor needs from outside: the stores that an identity reaches, time, and fresh names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from omap.store import Place, Store


class Session(Protocol):
    """What one identity (a user and its key) reaches in one cluster.  Safe for use by many threads at once.

    A session's connections have addresses of their own, by which the cluster can shut them out.
    """

    @property
    def cluster(self) -> str:
        """The `clusterID`."""

    @property
    def addresses(self) -> Sequence[str]:
        """Every address under which this session's connections write, as the blocklist takes them."""

    def store(self, place: Place) -> Store:
        """The store of a place of this cluster.  Costs no round trip."""

    def fence(self, addresses: Sequence[str]) -> None:
        """Put other clients' addresses on the cluster's blocklist.

        Raises UnavailableError, or DeniedError without the right to; an address of this very session is
        refused with PreconditionError.
        """

    def barrier(self) -> None:
        """Wait until every connection of this session has the cluster map of now.

        Without it a probe that follows a fence may still miss the fenced client's last write.  Raises
        UnavailableError.
        """


class Clock(Protocol):
    """Time, passed in."""

    def now(self) -> float:
        """Seconds since the epoch: for people to read, never to order writers by."""

    def monotonic(self) -> float:
        """Seconds of this process's own clock, for ages and deadlines."""


class Ids(Protocol):
    """Fresh names, passed in."""

    def uuid(self) -> str:
        """A new random UUID in its canonical form."""
