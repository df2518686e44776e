"""The options of one krbd map: the user's, checked, and those that Waymark sets itself."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from executor.errors import InvalidError

_OURS = frozenset(
    {"noshare", "share", "noudev", "udev", "ro", "rw", "name", "secret", "key", "fsid", "force"}
)


def krbd_options(given: Sequence[str], monitors: Sequence[str], *, read_only: bool) -> str:
    """All options as `rbd map` takes them.  Raises InvalidError for one that is not the user's to give."""
    taken = sorted({option.partition("=")[0] for option in given} & _OURS)
    if taken:
        raise InvalidError(f"mapOptions {', '.join(taken)}: set by the driver itself; remove them")
    options = [*given, "noshare"]
    if read_only:
        options.append("ro")
    if not pathlib.Path("/run/udev/control").exists():
        options.append("noudev")  # `rbd` would wait for udev without end
    if not any(option.startswith("ms_mode=") for option in given) and _speak_v2_only(monitors):
        # krbd speaks the old protocol unless told otherwise, and then finds no monitor to speak to.
        options.append("ms_mode=prefer-crc")
    return ",".join(options)


def _speak_v2_only(monitors: Sequence[str]) -> bool:
    """Whether no monitor is given with an address of the old protocol, as far as config.json tells."""
    return all(
        ("v2:" in monitor and "v1:" not in monitor) or monitor.removesuffix("/0").endswith(":3300")
        for monitor in monitors
    )
