"""What outlives a plugin on a host in memory, and the plugin's process whose calls can fail and crash.

A `MemoryHost` keeps devices, mounts and folders.  `MemoryDisks` is what the cluster keeps of the images'
content, whichever host looks at it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from csi.node.ports import Content, Detected, MapTarget, Mount
from executor.errors import PreconditionError, UnavailableError
from omap.faults import Call, CallKind, Crash, Fault, Faults, NoFaults
from omap.store import StoreError

Disk = tuple[int, str]
"""What tells one image from all others of a cluster: its pool's number and its own id."""


class DiskWatcher(Protocol):
    """Who is told what a host does to the images, so that the images' own memory shows it too."""

    def opened(self, target: MapTarget) -> None:
        """A mapper has the image open."""

    def closed(self, target: MapTarget) -> None:
        """The mapper is gone; nothing happens when it never had the image open, or the image is gone."""

    def resized(self, target: MapTarget) -> None:
        """A mapper gave the image its device's size, larger or smaller, as a storage daemon does."""

    def written(self, target: MapTarget) -> None:
        """The image holds data."""

    def discarded(self, target: MapTarget) -> None:
        """The image as a whole holds none any more."""


class MemoryDisks:
    """What is on the images, seen from any host."""

    def __init__(self, watcher: DiskWatcher | None = None) -> None:
        self.watcher = watcher
        self._contents: dict[Disk, Detected] = {}
        self._filled: dict[Disk, int] = {}

    def get(self, target: MapTarget) -> Detected:
        """What a look at the image finds."""
        return self._contents.get((target.pool_id, target.image_id), Detected(Content.EMPTY))

    def put(self, target: MapTarget, found: Detected) -> None:
        """Write something onto the image, or discard it (`Content.EMPTY`)."""
        self._contents[target.pool_id, target.image_id] = found
        self.grow(target)
        if self.watcher is None:
            return
        if found.content is Content.EMPTY:
            self.watcher.discarded(target)
        else:
            self.watcher.written(target)

    def grow(self, target: MapTarget) -> None:
        """Let what is on the image fill it."""
        self._filled[target.pool_id, target.image_id] = target.size_bytes

    def filled(self, target: MapTarget) -> int:
        """How many bytes of the image what is on it fills."""
        return self._filled.get((target.pool_id, target.image_id), 0)


@dataclass(slots=True)
class Mapping:
    """A mapping of a host: the daemon of an image and, once it is complete, the device's path."""

    target: MapTarget
    daemon_alive: bool = True
    path: str = ""


@dataclass(slots=True)
class MemoryHost:
    """What a plugin's death leaves as it is.  Tests may look at and change everything here."""

    disks: MemoryDisks = field(default_factory=MemoryDisks)
    mappings: dict[str, Mapping] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    """Empty files, as a device node is bound onto.

    A path below a folder also keeps that folder from being removed.
    """
    busy: dict[str, str] = field(default_factory=dict)
    """Paths that something uses, with what it is (`nginx (process 42)`)."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def reboot(self) -> None:
        """Lose mappings and mounts; folders, files and what is on the images stay."""
        with self.lock:
            for mapping in self.mappings.values():
                self.close(mapping)
            self.mappings.clear()
            self.mounts.clear()
            self.busy.clear()

    def open(self, volume: str, target: MapTarget) -> Mapping:
        """Start the mapping of an image, without its device."""
        if self.disks.watcher is not None:
            self.disks.watcher.opened(target)
        mapping = self.mappings[volume] = Mapping(target)
        return mapping

    def resize(self, mapping: Mapping, size_bytes: int) -> None:
        """Change the size that a mapping shows, and with it the image's own."""
        mapping.target = dataclasses.replace(mapping.target, size_bytes=size_bytes)
        if self.disks.watcher is not None:
            self.disks.watcher.resized(mapping.target)

    def close(self, mapping: Mapping) -> None:
        """End a mapping's use of its image."""
        if self.disks.watcher is not None:
            self.disks.watcher.closed(mapping.target)

    def mapping_at(self, path: str) -> Mapping:
        """The mapping that a device path, or a path that its node is bound to, shows.

        PreconditionError without.
        """
        bound = next((mount.source for mount in reversed(self.mounts) if mount.target == path), path)
        for mapping in self.mappings.values():
            if mapping.path == bound:
                return mapping
        raise PreconditionError(f"{path} is no block device of this node")


class MemoryProcess:
    """One plugin process on a host.

    After a `Crash` every further call raises it too.  A StoreError that `faults` decide on is raised as
    UnavailableError without an effect.
    """

    def __init__(self, host: MemoryHost, faults: Faults | None = None) -> None:
        self.host = host
        self._faults: Faults = faults or NoFaults()
        self._number = 0
        self._crashed = False

    @contextlib.contextmanager
    def effect(self, name: str) -> Iterator[None]:
        """One call that changes the host; its body is the effect.  Holds the host's lock."""
        with self.host.lock:
            decision = self._begin(CallKind.WRITE, name)
            yield
            if decision is Fault.CRASH_AFTER:
                self._crash(f"after {name}")
            if decision is not Fault.NONE:
                raise UnavailableError(f"{name} did not answer in time; the call can be repeated")

    @contextlib.contextmanager
    def look(self, name: str) -> Iterator[None]:
        """One call that only looks.  Holds the host's lock."""
        with self.host.lock:
            decision = self._begin(CallKind.READ, name)
            yield
            if decision is Fault.CRASH_AFTER:
                self._crash(f"after {name}")

    def _begin(self, kind: CallKind, name: str) -> Fault:
        if self._crashed:
            raise Crash("this node plugin is dead")
        self._number += 1
        decision = self._faults.decide(Call(self._number, kind, name))
        if isinstance(decision, StoreError):
            raise UnavailableError(str(decision))
        if decision is Fault.DROP and kind is CallKind.WRITE:
            raise UnavailableError(f"{name} did not answer in time; the call can be repeated")
        if decision is Fault.CRASH_BEFORE:
            self._crash(f"before {name}")
        allowed = {Fault.NONE, Fault.CRASH_AFTER}
        if kind is CallKind.WRITE:
            allowed |= {Fault.LOSE_REPLY}
        if not isinstance(decision, Fault) or decision not in allowed:
            raise ValueError(f"{decision} is no fault of a node's {kind.value}")
        return decision

    def _crash(self, when: str) -> None:
        self._crashed = True
        raise Crash(f"the node plugin ends {when}")
