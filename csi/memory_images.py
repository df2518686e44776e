"""An image backend in memory: librbd's part in miniature, step by step in librbd's order.

`memory_images` makes a backend; the functions after it play what happens to images from outside the driver: a
client opens one, data are written, an admin declares a namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from csi import image_objects
from csi.image_backend import Images, OpenedImage
from csi.image_objects import Header, Trashed, TrashState
from csi.images import ImageSpec
from csi.memory_objects import (
    NAMESPACES,
    OBJECT_BYTES,
    WATCH_PREFIX,
    MemoryObjects,
    data_objects,
    data_place,
    needs_object_map,
    own_features,
)
from executor.errors import InUseError, MismatchError, NotFoundError, PreconditionError, UnavailableError
from omap.memory import MemoryCluster, MemoryStore
from omap.store import FencedError, Place


def memory_images(
    store: MemoryStore, end_process: Callable[[], None], own_addresses: Sequence[str]
) -> Images:
    """The images of the store's place."""
    objects = MemoryObjects(store, end_process)
    return Images(MemoryLibrary(objects, own_addresses), objects)


def declare_namespace(cluster: MemoryCluster, place: Place) -> None:
    """Declare the place's namespace, as `rbd namespace create` does."""
    with cluster.lock:
        objects = cluster.pool(place).objects
        objects.setdefault(("", NAMESPACES), {})[f"name_{place.namespace}"] = b"1"


def open_image(cluster: MemoryCluster, place: Place, image_id: str, address: str) -> None:
    """Have a client open the image for writing: it watches the header from now on.

    KeyError if it is not there.
    """
    with cluster.lock:
        cluster.pool(place).objects[place.namespace, f"rbd_header.{image_id}"][WATCH_PREFIX + address] = b"1"


def close_image(cluster: MemoryCluster, place: Place, image_id: str, address: str) -> None:
    """End a client's watch."""
    with cluster.lock:
        header = cluster.pool(place).objects.get((place.namespace, f"rbd_header.{image_id}"), {})
        header.pop(WATCH_PREFIX + address, None)


def resize_image(cluster: MemoryCluster, place: Place, image_id: str, size_bytes: int) -> None:
    """Have a client give the image another size, larger or smaller.

    KeyError if it is not there.
    """
    with cluster.lock:
        header = cluster.pool(place).objects[place.namespace, f"rbd_header.{image_id}"]
        header["size"] = b"%d" % size_bytes


def write_data(cluster: MemoryCluster, place: Place, image_id: str, *, offset: int = 0) -> None:
    """Have data written at an offset: the data object there exists from now on.

    NotFoundError without the image.
    """
    with cluster.lock:
        header = _header(cluster, place, image_id)
        if header is None:
            raise NotFoundError(f"{place} has no image with id {image_id}")
        where = data_place(cluster, place, header)
        name = f"{header.data_prefix}{offset // OBJECT_BYTES:016x}"
        cluster.pool(where).objects[where.namespace, name] = {"data": b"1"}


def discard_data(cluster: MemoryCluster, place: Place, image_id: str) -> None:
    """Have the whole image discarded: none of its data objects exists from now on.

    NotFoundError without the image.
    """
    with cluster.lock:
        header = _header(cluster, place, image_id)
        if header is None:
            raise NotFoundError(f"{place} has no image with id {image_id}")
        objects = cluster.pool(data_place(cluster, place, header)).objects
        for each in data_objects(cluster, place, header):
            del objects[each]


def _header(cluster: MemoryCluster, place: Place, image_id: str) -> Header | None:
    """The header as an onlooker sees it, without a call."""
    onlooker = MemoryObjects(MemoryStore(cluster, place, address="onlooker"), lambda: None)
    return onlooker.header(image_id)


def _watching(header: Mapping[str, str]) -> frozenset[str]:
    return frozenset(key.removeprefix(WATCH_PREFIX) for key in header if key.startswith(WATCH_PREFIX))


class MemoryLibrary:
    """`ImageLibrary` in memory."""

    def __init__(self, objects: MemoryObjects, own_addresses: Sequence[str]) -> None:
        self._objects = objects
        self._own = frozenset(own_addresses)

    @property
    def _cluster(self) -> MemoryCluster:
        return self._objects.store.cluster

    @property
    def _place(self) -> Place:
        return self._objects.place

    def check_place(self, data_pool: str | None) -> None:
        """Look at pool, data pool and namespace."""
        for pool in (self._place.pool, data_pool):
            if pool is not None and pool not in self._cluster.pool_names():
                raise NotFoundError(
                    f"cluster {self._place.cluster} has no pool {pool}: create it or correct the name"
                )
        if self._cluster.is_erasure_coded(self._place):
            raise PreconditionError(
                f"{self._place} is erasure-coded and cannot hold images:"
                " name it as dataPool, and a replicated pool as pool"
            )
        with self._cluster.lock:
            declared = self._cluster.pool(self._place).objects.get(("", NAMESPACES), {})
        if self._place.namespace and f"name_{self._place.namespace}" not in declared:
            raise NotFoundError(
                f"{self._place}: the namespace is not declared: run `rbd namespace create"
                f" {self._place.pool}/{self._place.namespace}` or correct the radosNamespace"
            )

    def create(self, spec: ImageSpec) -> None:
        """Make an image in librbd's order."""
        self.check_place(spec.data_pool)
        objects, image_id = self._objects, self._objects.new_id()
        taken = f"image {spec.name} in {self._place} exists already, whole or half-made"
        if not objects.enter(spec.name, image_id):
            raise MismatchError(taken)
        if not objects.make_id_object(spec.name, image_id):
            objects.remove_directory_entry(spec.name, image_id)
            raise MismatchError(taken)
        data_pool = None if spec.data_pool == self._place.pool else spec.data_pool
        objects.make_header(image_id, spec.size_bytes, spec.features, data_pool)
        if needs_object_map(spec.features):
            objects.make_object_map(image_id)

    def describe(self, image_id: str) -> OpenedImage:
        """What the header says, and who watches it."""
        keys = self._objects.read(f"rbd_header.{image_id}")
        if keys is None or "size" not in keys:
            raise NotFoundError(f"{self._place} has no image with id {image_id}")
        return OpenedImage(
            size_bytes=int(keys["size"]),
            features=own_features(int(keys["features"])),
            data_pool=keys.get("data_pool"),
            watchers=tuple(sorted(_watching(keys) - self._own - self._cluster.fenced())),
        )

    def is_allocated(self, image_id: str) -> bool:
        """Whether any data object is there."""
        return self._objects.has_data(self._opened(image_id))

    def discard(self, image_id: str) -> None:
        """Remove all data objects."""
        self._remove_data(self._opened(image_id))

    def resize(self, image_id: str, size_bytes: int) -> None:
        """Write the size into the header."""
        self._opened(image_id)
        self._objects.set_size(image_id, size_bytes)

    def move_to_trash(self, name: str, retention_seconds: float) -> None:
        """Move in librbd's order.  Retention is the caller's to keep: nothing here purges by itself."""
        del retention_seconds
        objects = self._objects
        image_id = objects.directory_id(name)
        if image_id is None:
            raise NotFoundError(f"{self._place} has no image {name}")
        entry = Trashed(name, TrashState.MOVING)
        objects.set_trashed(image_id, entry)
        image_objects.finish_trash_move(objects, name, image_id, entry)

    def remove_from_trash(self, image_id: str) -> None:
        """Purge in librbd's order."""
        objects = self._objects
        entry = objects.trashed(image_id)
        if entry is None:
            raise NotFoundError(f"the trash of {self._place} has no image with id {image_id}")
        objects.set_trashed(image_id, Trashed(entry.name, TrashState.REMOVING))
        if _watching(objects.read(f"rbd_header.{image_id}") or {}):
            raise InUseError(f"image {entry.name} in {self._place} is open: unmap it")
        self._remove_data(self._opened(image_id))
        objects.remove_header(image_id)
        image_objects.finish_purge(objects, image_id)

    def _opened(self, image_id: str) -> Header:
        header = self._objects.header(image_id)
        if header is None:
            raise NotFoundError(f"{self._place} has no image with id {image_id}")
        return header

    def _remove_data(self, header: Header) -> None:
        # Not as calls of their own: an image of many objects would drown the steps that matter.
        cluster = self._cluster
        with cluster.lock:
            try:
                cluster.refuse_fenced(self._objects.store.address, self._place)
            except FencedError as error:
                raise UnavailableError(str(error)) from error
            found = data_objects(cluster, self._place, header)
            objects = cluster.pool(data_place(cluster, self._place, header)).objects
            for key in found:
                del objects[key]
