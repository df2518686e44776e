"""How large a volume becomes: a whole number of steps between what is required and the limit."""

from __future__ import annotations

from dataclasses import dataclass

from csi.images import MAX_OBJECTS, STEP_BYTES
from csi.parameters import OBJECT_MAP
from executor.errors import InvalidError, OutOfRangeError
from proto import csi_pb2

DEFAULT_BYTES = 1 << 30
"""Size of a volume for which the request says nothing."""

OBJECT_BYTES = 4 << 20
"""Size of librbd's data objects unless it is told otherwise, and it is not."""

MAX_BYTES = 2**63 - 1
"""The largest size that CSI can report."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`required_bytes` and `limit_bytes` as asked (0 is unset), `size_bytes` as given."""

    required_bytes: int
    limit_bytes: int
    size_bytes: int


def choose(capacity_range: csi_pb2.CapacityRange, features: int) -> Capacity:
    """The smallest size that fits the range, in whole steps.

    Raises InvalidError for a negative bound and OutOfRangeError if no size fits the range, or none that an
    image with these features can have.
    """
    required, limit = capacity_range.required_bytes, capacity_range.limit_bytes
    for bound, value in (("required_bytes", required), ("limit_bytes", limit)):
        if value < 0:
            raise InvalidError(f"capacity_range.{bound} is {value}; it must not be negative")
    if limit and limit < required:
        raise OutOfRangeError(f"capacity_range.limit_bytes {limit} is below required_bytes {required}")
    size = -(-required // STEP_BYTES) * STEP_BYTES
    if not required:
        size = min(DEFAULT_BYTES, limit // STEP_BYTES * STEP_BYTES) if limit else DEFAULT_BYTES
    if not size or (limit and size > limit):
        raise OutOfRangeError(
            f"no size between {required} and {limit} bytes is a multiple of {STEP_BYTES} bytes (1 MiB),"
            " which a volume's size must be"
        )
    check_largest(size, features)
    return Capacity(required, limit, size)


def grown(capacity_range: csi_pb2.CapacityRange) -> Capacity:
    """The size that a volume must at least have, in whole steps; 0 if nothing is required.

    Raises InvalidError and OutOfRangeError as `choose` does.
    """
    if not capacity_range.required_bytes and not capacity_range.limit_bytes:
        raise InvalidError("capacity_range is missing from the request: it says how large the volume must be")
    if not capacity_range.required_bytes:
        limited = choose(capacity_range, 0)
        return Capacity(0, limited.limit_bytes, 0)
    return choose(capacity_range, 0)


def check_largest(size: int, features: int) -> None:
    """Raise OutOfRangeError for a size that no image with these features can have."""
    if size > MAX_BYTES:
        raise OutOfRangeError(
            f"{size} bytes (the required size in whole MiB) are more than a volume can have"
        )
    objects = -(-size // OBJECT_BYTES)
    if features & OBJECT_MAP and objects > MAX_OBJECTS:
        raise OutOfRangeError(
            f"{size} bytes make {objects} objects of 4 MiB, and an image with an object map has at most"
            f" {MAX_OBJECTS}; ask for less, or leave object-map and fast-diff out of imageFeatures"
        )
