"""Places for images, with what tests do to them from outside: remove single objects, write, watch."""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
import struct
from collections.abc import Iterator
from typing import Protocol

import rados
import rbd

from csi.image_backend import Images
from csi.image_objects import Trashed, TrashState
from csi.images import ImageBackend, ImageSpec
from csi.memory_images import close_image, open_image, write_data
from csi.memory_objects import MemoryObjects
from csi.memory_session import MemorySession
from csi.session import DriverSession
from e2e.harness.ceph import MicroCeph
from omap.memory import MemoryCluster, MemoryStore
from omap.store import Place

FEATURES = 61
MIB = 1 << 20
_numbers = itertools.count()


class Part(enum.Enum):
    """An object or entry that librbd makes for an image."""

    DIRECTORY = "directory entry"
    ID = "rbd_id"
    HEADER = "header"
    OBJECT_MAP = "object map"
    TRASH = "trash entry"


WHOLE = frozenset({Part.DIRECTORY, Part.ID, Part.HEADER, Part.OBJECT_MAP})


class Rig(Protocol):
    """A place that holds images, and the hands of an outsider."""

    data_pool: str | None

    @property
    def session(self) -> DriverSession:
        """The session under test."""

    @property
    def images(self) -> ImageBackend:
        """The backend under test."""

    def parts(self, name: str, image_id: str) -> frozenset[Part]:
        """What is there of an image."""

    def drop(self, name: str, image_id: str, part: Part) -> None:
        """Take one part away."""

    def enter_trash(self, name: str, image_id: str, state: TrashState) -> None:
        """Make or change a trash entry, as librbd does in the middle of something."""

    def write(self, name: str, image_id: str, offset: int) -> None:
        """Write some data."""

    def opened(self, name: str, image_id: str) -> contextlib.AbstractContextManager[str]:
        """Another client has the image open; its address."""

    def opened_by_the_fenced(self, name: str, image_id: str) -> contextlib.AbstractContextManager[str]:
        """Another client has the image open and was shut out since; its address."""

    def objects_of(self, image_id: str) -> list[str]:
        """Names of all objects of an image, data included, in its pool and its data pool."""


def new_name() -> str:
    """A name that no other test uses."""
    return f"csi-vol-{os.getpid()}-{next(_numbers)}"


def spec(rig: Rig, name: str, features: int = FEATURES) -> ImageSpec:
    return ImageSpec(name, 64 * MIB, features, rig.data_pool)


def make(rig: Rig, name: str, features: int = FEATURES) -> str:
    """Make a whole image; its id."""
    rig.images.create(spec(rig, name, features))
    return rig.images.probe(name).image_id


class MemoryRig:
    def __init__(self, place: Place, data_pool: str | None) -> None:
        self.data_pool = data_pool
        self.place = place
        self.cluster = MemoryCluster(["rbd", "rbd2"])
        self.cluster.add_pool("ec", erasure_coded=True)
        self.session = MemorySession(self.cluster, place.cluster)
        if place.namespace:
            self.cluster.pool(place).objects["", "rbd_namespace"] = {f"name_{place.namespace}": b"1"}
        self._outside = MemoryObjects(MemoryStore(self.cluster, place, address="outside"), lambda: None)

    @property
    def images(self) -> Images:
        return self.session.images(self.place)

    def parts(self, name: str, image_id: str) -> frozenset[Part]:
        look = self._outside
        found = {
            Part.DIRECTORY: look.directory_id(name) == image_id or look.directory_name(image_id) == name,
            Part.ID: look.id_object(name) == image_id,
            Part.HEADER: look.header(image_id) is not None,
            Part.OBJECT_MAP: look.has_object_map(image_id),
            Part.TRASH: look.trashed(image_id) is not None,
        }
        return frozenset(part for part, there in found.items() if there)

    def drop(self, name: str, image_id: str, part: Part) -> None:
        match part:
            case Part.DIRECTORY:
                self._outside.remove_directory_entry(name, image_id)
            case Part.ID:
                self._outside.remove_id_object(name)
            case Part.HEADER:
                self._outside.remove_header(image_id)
            case Part.OBJECT_MAP:
                self._outside.remove_object_map(image_id)
            case Part.TRASH:
                self._outside.remove_trash_entry(image_id)

    def enter_trash(self, name: str, image_id: str, state: TrashState) -> None:
        self._outside.set_trashed(image_id, Trashed(name, state))

    def write(self, name: str, image_id: str, offset: int) -> None:
        del name
        write_data(self.cluster, self.place, image_id, offset=offset)

    @contextlib.contextmanager
    def opened(self, name: str, image_id: str) -> Iterator[str]:
        del name
        open_image(self.cluster, self.place, image_id, "192.0.2.1:0/7")
        yield "192.0.2.1:0/7"
        close_image(self.cluster, self.place, image_id, "192.0.2.1:0/7")

    @contextlib.contextmanager
    def opened_by_the_fenced(self, name: str, image_id: str) -> Iterator[str]:
        del name
        open_image(self.cluster, self.place, image_id, "192.0.2.1:0/8")
        self.session.fence(["192.0.2.1:0/8"])
        yield "192.0.2.1:0/8"

    def objects_of(self, image_id: str) -> list[str]:
        places = [self.place, Place(self.place.cluster, self.data_pool or "rbd2", self.place.namespace)]
        return [name for place in places for name in self.cluster.contents(place) if image_id in name]


class CephRig:
    """A place on a real Ceph; the outsider is the admin."""

    def __init__(
        self,
        ceph: MicroCeph,
        session: DriverSession,
        admin: rados.Rados,
        place: Place,
        data_pool: str | None,
    ) -> None:
        self._ceph = ceph
        self.data_pool = data_pool
        self.session = session
        self.place = place
        self._address = admin.get_addrs()
        self._ioctx, self._data_ioctx = admin.open_ioctx(place.pool), admin.open_ioctx(data_pool or "rbd2")
        self._ioctx.set_namespace(place.namespace)
        self._data_ioctx.set_namespace(place.namespace)

    @property
    def images(self) -> ImageBackend:
        return self.session.images(self.place)

    def parts(self, name: str, image_id: str) -> frozenset[Part]:
        directory = self._keys("rbd_directory")
        found = {
            Part.DIRECTORY: directory.get(f"name_{name}") == string(image_id)
            or f"id_{image_id}" in directory,
            Part.ID: self._content(f"rbd_id.{name}") == string(image_id),
            Part.HEADER: self._exists(f"rbd_header.{image_id}"),
            Part.OBJECT_MAP: self._exists(f"rbd_object_map.{image_id}"),
            Part.TRASH: f"id_{image_id}" in self._keys("rbd_trash"),
        }
        return frozenset(part for part, there in found.items() if there)

    def drop(self, name: str, image_id: str, part: Part) -> None:
        match part:
            case Part.DIRECTORY:
                self._drop_keys("rbd_directory", f"name_{name}", f"id_{image_id}")
            case Part.ID:
                self._ioctx.remove_object(f"rbd_id.{name}")
            case Part.HEADER:
                self._ioctx.remove_object(f"rbd_header.{image_id}")
            case Part.OBJECT_MAP:
                self._ioctx.remove_object(f"rbd_object_map.{image_id}")
            case Part.TRASH:
                self._drop_keys("rbd_trash", f"id_{image_id}")

    def enter_trash(self, name: str, image_id: str, state: TrashState) -> None:
        body = b"\0" + string(name) + bytes(16) + bytes([state.value])
        with rados.WriteOpCtx() as operation:
            value = struct.pack("<BBI", 2, 1, len(body)) + body
            self._ioctx.set_omap(operation, (f"id_{image_id}",), (value,))
            self._ioctx.operate_write_op(operation, "rbd_trash")

    def write(self, name: str, image_id: str, offset: int) -> None:
        with rbd.Image(self._ioctx, image_id=image_id) as image:
            image.write(b"x" * 4096, offset)

    @contextlib.contextmanager
    def opened(self, name: str, image_id: str) -> Iterator[str]:
        with rbd.Image(self._ioctx, image_id=image_id):
            yield self._address

    @contextlib.contextmanager
    def opened_by_the_fenced(self, name: str, image_id: str) -> Iterator[str]:
        with self._ceph.connect() as client, client.open_ioctx(self.place.pool) as ioctx:
            ioctx.set_namespace(self.place.namespace)
            image = rbd.Image(ioctx, image_id=image_id)
            self.session.fence([client.get_addrs()])
            yield client.get_addrs()
            with contextlib.suppress(rbd.Error):  # it may no longer even say that it closes it
                image.close()

    def objects_of(self, image_id: str) -> list[str]:
        listings = (ioctx.list_objects() for ioctx in (self._ioctx, self._data_ioctx))
        return [found.key for listing in listings for found in listing if image_id in found.key]

    def _keys(self, name: str) -> dict[str, bytes]:
        with rados.ReadOpCtx() as operation:
            found = self._ioctx.get_omap_vals(operation, "", "", 1000)[0]
            try:
                self._ioctx.operate_read_op(operation, name)
            except rados.ObjectNotFound:
                return {}
            return dict(found)

    def _drop_keys(self, name: str, *keys: str) -> None:
        with rados.WriteOpCtx() as operation:
            self._ioctx.remove_omap_keys(operation, keys)
            self._ioctx.operate_write_op(operation, name)

    def _exists(self, name: str) -> bool:
        try:
            self._ioctx.stat(name)
        except rados.ObjectNotFound:
            return False
        return True

    def _content(self, name: str) -> bytes | None:
        try:
            return self._ioctx.read(name)
        except rados.ObjectNotFound:
            return None


def string(text: str) -> bytes:
    """A string as Ceph encodes it."""
    return struct.pack("<I", len(text)) + text.encode()
