"""The names of RBD's image features, with librbd's bits."""

from __future__ import annotations

from collections.abc import Mapping

FEATURES: Mapping[str, int] = {
    "layering": 1,
    "striping": 2,
    "exclusive-lock": 4,
    "object-map": 8,
    "fast-diff": 16,
    "deep-flatten": 32,
    "journaling": 64,
    "data-pool": 128,
    "operations": 256,
    "migrating": 512,
}


def feature_names(bits: int) -> tuple[str, ...]:
    """The names of the features that are set; those without a name by their number."""
    named = [name for name, bit in FEATURES.items() if bits & bit]
    rest = bits & ~sum(FEATURES.values())
    return (*named, hex(rest)) if rest else tuple(named)
