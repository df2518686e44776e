"""librbd's part of the image backend.

No image is kept open: each open handle makes every other open dearer and holds a watch.  What only reads goes
over the handle whose calls time out, what changes goes over the one whose calls do not.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import rbd

from csi.ceph.connection import Connection
from csi.ceph.errors import translating
from csi.ceph.objects import CephObjects
from csi.image_backend import Images, OpenedImage
from csi.image_objects import FEATURE_DATA_POOL, FEATURE_OPERATIONS
from csi.images import ImageSpec
from executor.errors import MismatchError, NotFoundError, PreconditionError
from omap.store import Place

_CHECKED_SECONDS = 60.0


def ceph_images(connection: Connection, place: Place) -> Images:
    """The images of a place."""
    return Images(CephLibrary(connection, place), CephObjects(connection, place))


class _FoundError(Exception):
    """Ends a listing of data objects at the first one."""


class CephLibrary:
    """`ImageLibrary` on librbd."""

    def __init__(
        self, connection: Connection, place: Place, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection = connection
        self._place = place
        self._monotonic = monotonic
        self._rbd = rbd.RBD()
        self._lock = threading.Lock()
        self._checked: dict[str | None, float] = {}

    def check_place(self, data_pool: str | None) -> None:
        """Look at pool, data pool and namespace; what was found good counts for a minute."""
        with self._lock:
            checked = self._checked.get(data_pool)
        if checked is not None and self._monotonic() - checked < _CHECKED_SECONDS:
            return
        self._check_place(data_pool)
        with self._lock:
            self._checked[data_pool] = self._monotonic()

    def create(self, spec: ImageSpec) -> None:
        """Make an image."""
        data_pool = None if spec.data_pool == self._place.pool else spec.data_pool
        what = f"image {spec.name} in {self._place}"
        try:
            with translating(what):
                self._rbd.create(
                    self._connection.image_ioctx(self._place),
                    spec.name,
                    spec.size_bytes,
                    old_format=False,
                    features=spec.features,
                    data_pool=data_pool,
                )
        except (NotFoundError, PreconditionError):
            self._check_place(spec.data_pool)  # librbd says no more than "not found": name what is missing
            raise
        except MismatchError as error:
            raise MismatchError(f"{what} exists already, whole or half-made") from error

    def describe(self, image_id: str) -> OpenedImage:
        """Open the image, read-only: that takes no lock and sets no watch."""
        with translating(f"image id {image_id} in {self._place}"), self._opened(image_id) as image:
            data_pool_id = image.data_pool_id()
            return OpenedImage(
                size_bytes=image.size(),
                features=image.features() & ~(FEATURE_DATA_POOL | FEATURE_OPERATIONS),
                data_pool=self._data_pool(data_pool_id),
                watchers=self._watchers(image),
            )

    def is_allocated(self, image_id: str) -> bool:
        """Whether any data object exists.

        The object map tells at once; without one each object is asked for, until the first that exists.
        """

        def found(_offset: int, _length: int, exists: bool) -> None:
            if exists:
                raise _FoundError

        with translating(f"image id {image_id} in {self._place}"), self._opened(image_id) as image:
            try:
                image.diff_iterate(0, image.size(), None, found, include_parent=False, whole_object=True)
            except _FoundError:
                return True
        return False

    def discard(self, image_id: str) -> None:
        """Remove all data objects, by making the image empty."""
        ioctx, what = self._connection.image_ioctx(self._place), f"image id {image_id} in {self._place}"
        with translating(what), rbd.Image(ioctx, image_id=image_id) as image:
            if list(image.list_snaps()) or _has_parent(image):
                raise PreconditionError(f"{what} has snapshots or a parent, so its data are not removed")
            image.resize(0)

    def resize(self, image_id: str, size_bytes: int) -> None:
        """Resize the image; a client that has its exclusive lock hands that over, or resizes it itself."""
        ioctx, what = self._connection.image_ioctx(self._place), f"image id {image_id} in {self._place}"
        with translating(what), rbd.Image(ioctx, image_id=image_id) as image:
            image.resize(size_bytes, allow_shrink=False)

    def move_to_trash(self, name: str, retention_seconds: float) -> None:
        """Move an image to the trash."""
        with translating(f"image {name} in {self._place}"):
            self._rbd.trash_move(self._connection.image_ioctx(self._place), name, int(retention_seconds))

    def remove_from_trash(self, image_id: str) -> None:
        """Remove an image of the trash, whatever its retention: when it is due is the directory's to say."""
        with translating(f"image id {image_id} in the trash of {self._place}"):
            self._rbd.trash_remove(self._connection.image_ioctx(self._place), image_id, force=True)

    def _check_place(self, data_pool: str | None) -> None:
        self._connection.store_ioctx(self._place)
        if data_pool is not None:
            self._connection.store_ioctx(Place(self._place.cluster, data_pool))
        if self._is_erasure_coded():
            raise PreconditionError(
                f"{self._place} is erasure-coded and cannot hold images:"
                " name it as dataPool, and a replicated pool as pool"
            )
        if not self._place.namespace:
            return
        outside = self._connection.store_ioctx(Place(self._place.cluster, self._place.pool))
        with translating(str(self._place)):
            declared = self._rbd.namespace_exists(outside, self._place.namespace)
        if not declared:
            raise NotFoundError(
                f"{self._place}: the namespace is not declared: run `rbd namespace create"
                f" {self._place.pool}/{self._place.namespace}` or correct the radosNamespace"
            )

    def _is_erasure_coded(self) -> bool:
        """Only an erasure-coded pool has such a profile; asking for another pool's is an error."""
        question = {"prefix": "osd pool get", "pool": self._place.pool, "var": "erasure_code_profile"}
        with translating(str(self._place)):
            return self._connection.store.mon_command(json.dumps(question), b"")[0] == 0

    def _opened(self, image_id: str) -> rbd.Image:
        ioctx = self._connection.store_ioctx(self._place)
        return rbd.Image(ioctx, image_id=image_id, read_only=True)

    def _data_pool(self, pool_id: int) -> str | None:
        name = self._connection.store.pool_reverse_lookup(pool_id)
        return None if name == self._place.pool else name

    def _watchers(self, image: rbd.Image) -> tuple[str, ...]:
        """Who has the image open; not a client that was shut out, though its watch may linger."""
        watching = {watcher["addr"] for watcher in image.watchers_list()} - set(self._connection.addresses)
        return tuple(sorted(watching - self._connection.blocklisted())) if watching else ()


def _has_parent(image: rbd.Image) -> bool:
    try:
        image.parent_info()
    except rbd.ImageNotFound:
        return False
    return True
