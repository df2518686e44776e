"""Time and fresh names, as this host gives them."""

from __future__ import annotations

import pathlib
import socket
import time
import uuid


class SystemClock:
    """The host's clocks."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of this process's own clock."""
        return time.monotonic()


class RandomIds:
    """Random UUIDs."""

    def uuid(self) -> str:
        """A new one in canonical form."""
        return str(uuid.uuid4())


def instance_id() -> str:
    """A name for this process that no other one ever has, with the host's in front for people to read.

    It has no dot: the names of attempts put one behind it.
    """
    host = socket.gethostname().partition(".")[0] or "host"
    return f"{host}-{uuid.uuid4().hex[:12]}"


def boot_id() -> str:
    """Which boot of this host this is: whatever the kernel knew before is gone."""
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
