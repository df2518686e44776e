"""The contract of an image backend: RBD images of one place, as the operations need them.

Truth about an image is what `probe` finds in the cluster, never the return code of an earlier call: a
process killed
inside librbd leaves an image half-made, and "not found" from a removing call proves nothing (a full pool
answers so).
`csi.ceph.images` (librbd) and `csi.memory_images` fulfil the same contract suite.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from omap.store import Place

STEP_BYTES = 1 << 20
"""Sizes are whole multiples of this (1 MiB)."""

MAX_OBJECTS = 256_000_000
"""The most objects an image with an object map may have (librbd's limit)."""


class ImageCondition(enum.Enum):
    """What a probe by name found."""

    ABSENT = "absent"
    WHOLE = "whole"
    HALF_MADE = "half-made"


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """An image to be made.  Fixed in the intent, so that a repeat finds its own work."""

    name: str
    size_bytes: int
    features: int
    data_pool: str | None = None


@dataclass(frozen=True, slots=True)
class ImageProbe:
    """What a probe found; all but the condition is told of a whole image only.

    `watchers` are the client addresses that have the image open, this session's own apart.
    """

    condition: ImageCondition
    image_id: str = ""
    size_bytes: int = 0
    features: int = 0
    data_pool: str | None = None
    watchers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """An image in the trash; `is_moving` while a move there (or back) is not over."""

    image_id: str
    name: str
    is_moving: bool = False


class ImageBackend(Protocol):
    """The images of one place.  Safe for use by many threads at once.

    Every method may raise UnavailableError (cluster away), DeniedError, ExhaustedError (pool full or quota
    used up)
    and PreconditionError/NotFoundError for a place that does not exist; beyond these only what it names.
    """

    @property
    def place(self) -> Place:
        """Where these images live."""

    def check_place(self, data_pool: str | None) -> None:
        """Raise if the place cannot hold images, naming what is wrong; writes nothing.

        NotFoundError: pool, data pool or namespace (not declared) is absent.  PreconditionError: the pool is
        erasure-coded and so keeps no OMAP (name it as `dataPool` instead).
        """

    def create(self, spec: ImageSpec) -> None:
        """Make an image.  Raises MismatchError when the name is taken in any form (whole or half-made)."""

    def probe(self, name: str) -> ImageProbe:
        """What is there under this name, by looking at every object that librbd makes for it."""

    def repair(self, name: str) -> None:
        """Clear a half-made image away and verify that nothing of it is left.

        The order keeps the remains reachable by name until the last step, so that it can be interrupted
        anywhere.
        Raises PreconditionError for a whole image: that is never cleared away by this.
        """

    def remove(self, name: str) -> None:
        """Remove a whole image that was never handed out, and verify that it is gone.  Absent is success."""

    def expand(self, image_id: str, size_bytes: int) -> int:
        """Make an image at least this large, a multiple of `STEP_BYTES`; it never becomes smaller.

        Returns the bytes that it has then, more where somebody else made it larger still.  Raises
        NotFoundError if it cannot be opened.
        """

    def trash(self, name: str, image_id: str, retention_seconds: float) -> None:
        """Move the image with this id from its name to the trash, or finish such a move.

        Idempotent: already in the trash is success; an image of another id under the name is left alone.
        Raises
        InUseError naming the clients that have it open.
        """

    def trash_entries(self) -> tuple[TrashEntry, ...]:
        """All entries of the place's trash."""

    def purge(self, image_id: str) -> None:
        """Remove an image from the trash with all its objects, or finish such a removal, and verify it.

        Absent is success.
        """

    def is_allocated(self, name: str) -> bool:
        """Whether any data object of the image exists."""
