"""A network namespace of a test bed's own: a bridge with this host's side at one address and a tap per guest.

What a program starts after `enter` lives in it, and so do its own connections.  Unix sockets do not care.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import subprocess

HOST_ADDRESS = "10.99.0.1"
BRIDGE = "br0"

_PREFIX_LENGTH = 24
_NAMESPACES = pathlib.Path("/run/netns")
_CLONE_NEWNET = 0x40000000


class Network:
    """The namespace that belongs to a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.name = f"waymark-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"

    @property
    def exists(self) -> bool:
        """Whether the namespace is there."""
        return (_NAMESPACES / self.name).exists()

    def create(self) -> None:
        """Make the namespace and its bridge; what is there already is left."""
        if self.exists:
            return
        _ip("netns", "add", self.name)
        self._inside("link", "set", "lo", "up")
        self._inside("link", "add", BRIDGE, "type", "bridge")
        self._inside("addr", "add", f"{HOST_ADDRESS}/{_PREFIX_LENGTH}", "dev", BRIDGE)
        self._inside("link", "set", BRIDGE, "up")

    def enter(self) -> None:
        """Move the calling thread, and so what it starts from now on: call it before there are others."""
        descriptor = os.open(_NAMESPACES / self.name, os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(descriptor, _CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, f"cannot enter network namespace {self.name}: {os.strerror(number)}")
        finally:
            os.close(descriptor)

    def add_address(self, address: str) -> None:
        """Give this host's side one more address."""
        self._inside("addr", "add", address, "dev", BRIDGE)

    def add_tap(self, tap: str) -> None:
        """Make a guest's end of a wire to the bridge."""
        self._inside("tuntap", "add", "dev", tap, "mode", "tap")
        self._inside("link", "set", tap, "master", BRIDGE, "up")

    def remove_tap(self, tap: str) -> None:
        """Take a wire away; absent is success."""
        subprocess.run(["ip", "-n", self.name, "link", "del", tap], capture_output=True, check=False)

    def remove(self) -> None:
        """Take the namespace away; it lives on, without a name, while a process is in it."""
        if self.exists:
            _ip("netns", "del", self.name)

    def _inside(self, *words: str) -> None:
        _ip("-n", self.name, *words)


def address(number: int) -> str:
    """The address of a guest with its prefix length; guests are counted from 1."""
    return f"10.99.0.{number + 1}/{_PREFIX_LENGTH}"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
