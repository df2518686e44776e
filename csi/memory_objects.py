"""RBD images in memory, as the objects that librbd would make for them.

They lie in the same `MemoryCluster` as the stores' objects, so they outlive a crash, and each of librbd's
steps is one call on a `MemoryStore`: numbered, refused and made to fail like any other.  A crash between two
steps leaves exactly the half-made image that librbd leaves.

An image connection has no time-out: a call whose reply never comes does not return.  So a lost, dropped or
late write here ends the process, and the late ones arrive after its end unless it has been fenced by then.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from hashlib import sha256

from csi.image_objects import (
    FEATURE_DATA_POOL,
    FEATURE_OBJECT_MAP,
    FEATURE_OPERATIONS,
    Header,
    Trashed,
    TrashState,
)
from executor.store_errors import operation_error
from omap.faults import Crash
from omap.memory import MemoryCluster, MemoryStore
from omap.store import Absent, Answer, Create, ObjectMissingError, Place, StoreError, Write

OBJECT_BYTES = 4 << 20
"""Images are cut into objects of this size (4 MiB), as librbd does unless told otherwise."""

DIRECTORY = "rbd_directory"
TRASH = "rbd_trash"
NAMESPACES = "rbd_namespace"
WATCH_PREFIX = "watch/"

_PRESENT = b"1"


def pool_number(pool: str) -> int:
    """The number of a pool in memory: made from its name, so that every process sees the same."""
    return zlib.crc32(pool.encode())


class MemoryObjects:
    """`ImageObjects` on a memory store; `end_process` is called when a write gets no reply."""

    def __init__(self, store: MemoryStore, end_process: Callable[[], None]) -> None:
        self.store = store
        self._end_process = end_process
        self._ids = itertools.count()

    @property
    def place(self) -> Place:
        """Where the images live."""
        return self.store.place

    def new_id(self) -> str:
        """A fresh image id: unique as long as no two processes have one address."""
        return sha256(f"{self.store.address} {next(self._ids)} {self.place}".encode()).hexdigest()[:12]

    def write(self, name: str, write: Write) -> Answer:
        """One of librbd's steps."""
        try:
            answer = self.store.write(name, write)
        except StoreError as error:
            raise operation_error(error) from error
        if answer is Answer.UNKNOWN:
            self._end_process()
            raise Crash(f"{self.store.address} waits for an answer without end")
        return answer

    def read(self, name: str, prefix: str = "") -> dict[str, str] | None:
        """All keys of an object, None if it is absent."""
        try:
            keys = self.store.read(name, prefix=prefix)
        except ObjectMissingError:
            return None
        except StoreError as error:
            raise operation_error(error) from error
        return {key: value.decode() for key, value in keys.items()}

    def id_object(self, name: str) -> str | None:
        """The id in `rbd_id.<name>`."""
        keys = self.read(f"rbd_id.{name}")
        return None if keys is None else keys.get("id", "")

    def directory_id(self, name: str) -> str | None:
        """The id that the directory gives for a name."""
        return (self.read(DIRECTORY) or {}).get(f"name_{name}")

    def directory_name(self, image_id: str) -> str | None:
        """The name that the directory gives for an id."""
        return (self.read(DIRECTORY) or {}).get(f"id_{image_id}")

    def header(self, image_id: str) -> Header | None:
        """What the header says."""
        keys = self.read(f"rbd_header.{image_id}")
        if keys is None or "size" not in keys:
            return None
        data_pool = keys.get("data_pool")
        return Header(
            features=int(keys["features"]),
            size_bytes=int(keys["size"]),
            data_prefix=f"rbd_data.{image_id}.",
            data_pool_id=None if data_pool is None else pool_number(data_pool),
        )

    def has_object_map(self, image_id: str) -> bool:
        """Whether the object map is there."""
        return self.read(f"rbd_object_map.{image_id}") is not None

    def has_data(self, header: Header) -> bool:
        """Whether any data object is there."""
        with self.store.cluster.lock:
            return bool(data_objects(self.store.cluster, self.place, header))

    def trashed(self, image_id: str) -> Trashed | None:
        """The image's entry in the trash."""
        value = (self.read(TRASH) or {}).get(f"id_{image_id}")
        return None if value is None else decode_trashed(value)

    def trash(self) -> dict[str, Trashed]:
        """All entries of the trash."""
        entries = self.read(TRASH, "id_") or {}
        return {key.removeprefix("id_"): decode_trashed(value) for key, value in entries.items()}

    def remove_object_map(self, image_id: str) -> None:
        """Remove the object map."""
        self.write(f"rbd_object_map.{image_id}", Write(remove_object=True))

    def remove_header(self, image_id: str) -> None:
        """Remove the header."""
        self.write(f"rbd_header.{image_id}", Write(remove_object=True))

    def remove_id_object(self, name: str) -> None:
        """Remove `rbd_id.<name>`."""
        self.write(f"rbd_id.{name}", Write(remove_object=True))

    def remove_directory_entry(self, name: str, image_id: str | None) -> None:
        """Remove the directory's keys of a name."""
        removes: tuple[str, ...] = (f"name_{name}",)
        if image_id is not None and self.directory_name(image_id) == name:
            removes += (f"id_{image_id}",)
        self.write(DIRECTORY, Write(removes=removes))

    def remove_trash_entry(self, image_id: str) -> None:
        """Remove the trash entry."""
        self.write(TRASH, Write(removes=(f"id_{image_id}",)))

    def end_trash_move(self, image_id: str) -> None:
        """Set a trash entry from moving to normal."""
        entry = self.trashed(image_id)
        if entry is not None:
            self.set_trashed(image_id, Trashed(entry.name, TrashState.NORMAL))

    def set_trashed(self, image_id: str, entry: Trashed) -> None:
        """Write a trash entry."""
        value = json.dumps({"name": entry.name, "state": entry.state.value}).encode()
        self.write(TRASH, Write(create=Create.IF_ABSENT, sets={f"id_{image_id}": value}))

    def enter(self, name: str, image_id: str) -> bool:
        """Enter an image in the directory; False if the name is taken."""
        keys = (f"name_{name}", f"id_{image_id}")
        answer = self.write(
            DIRECTORY,
            Write(
                create=Create.IF_ABSENT,
                conditions=tuple(Absent(key) for key in keys),
                sets=dict(zip(keys, (image_id.encode(), name.encode()), strict=True)),
            ),
        )
        return answer is Answer.APPLIED

    def make_id_object(self, name: str, image_id: str) -> bool:
        """Make `rbd_id.<name>`; False if it is there."""
        write = Write(create=Create.EXCLUSIVE, sets={"id": image_id.encode()})
        return self.write(f"rbd_id.{name}", write) is Answer.APPLIED

    def make_header(self, image_id: str, size_bytes: int, features: int, data_pool: str | None) -> None:
        """Make the header."""
        sets = {"size": b"%d" % size_bytes, "features": b"%d" % features}
        if data_pool is not None:
            sets["data_pool"] = data_pool.encode()
        self.write(f"rbd_header.{image_id}", Write(create=Create.EXCLUSIVE, sets=sets))

    def set_size(self, image_id: str, size_bytes: int) -> None:
        """Change the header's size."""
        self.write(f"rbd_header.{image_id}", Write(sets={"size": b"%d" % size_bytes}))

    def make_object_map(self, image_id: str) -> None:
        """Make the object map."""
        self.write(f"rbd_object_map.{image_id}", Write(create=Create.IF_ABSENT, sets={"map": _PRESENT}))


def decode_trashed(value: str) -> Trashed:
    """The trash entry that `set_trashed` wrote."""
    fields = json.loads(value)
    return Trashed(fields["name"], TrashState(fields["state"]))


def own_features(features: int) -> int:
    """The features that an image was made with, without those that librbd adds by itself."""
    return features & ~(FEATURE_DATA_POOL | FEATURE_OPERATIONS)


def needs_object_map(features: int) -> bool:
    """Whether librbd keeps an object map for these features."""
    return bool(features & FEATURE_OBJECT_MAP)


def data_objects(cluster: MemoryCluster, place: Place, header: Header) -> list[tuple[str, str]]:
    """Where an image's data objects are in their pool; the caller holds the cluster's lock."""
    objects = cluster.pool(data_place(cluster, place, header)).objects
    return [key for key in objects if key[0] == place.namespace and key[1].startswith(header.data_prefix)]


def data_place(cluster: MemoryCluster, place: Place, header: Header) -> Place:
    """The place of an image's data objects."""
    names = {pool_number(pool): pool for pool in cluster.pool_names()}
    pool = place.pool if header.data_pool_id is None else names[header.data_pool_id]
    return Place(place.cluster, pool, place.namespace)
