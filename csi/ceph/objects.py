"""The single objects of RBD images, read and removed through `rados`.

Reads go over the handle whose calls time out, removals over the one whose calls do not: a removal that comes
late would take away what was made anew meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Iterator, Sequence

import rados

from csi.ceph.connection import Connection
from csi.ceph.errors import translated, translating
from csi.image_objects import Header, Trashed, TrashState
from executor.errors import NotFoundError, PreconditionError
from executor.store_errors import operation_error
from omap.rados import RadosStore
from omap.store import ObjectMissingError, Place, StoreError

_DIRECTORY = "rbd_directory"
_TRASH = "rbd_trash"
_FIRST_OBJECTS = 16
_ID_BYTES = 4096
_LENGTH = struct.Struct("<I")


class CephObjects:
    """`ImageObjects` on a real Ceph."""

    def __init__(self, connection: Connection, place: Place) -> None:
        self._connection = connection
        self._place = place

    @property
    def place(self) -> Place:
        """Where the images live."""
        return self._place

    def id_object(self, name: str) -> str | None:
        """The id in `rbd_id.<name>`."""
        try:
            content = self._reads.read(f"rbd_id.{name}", _ID_BYTES)
        except rados.ObjectNotFound:
            return None
        except rados.Error as error:
            raise translated(error, f"image {name} in {self._place}") from error
        try:
            return _decode_string(content)
        except ValueError:
            return ""

    def directory_id(self, name: str) -> str | None:
        """The id that the directory gives for a name."""
        return self._string(_DIRECTORY, f"name_{name}")

    def directory_name(self, image_id: str) -> str | None:
        """The name that the directory gives for an id."""
        return self._string(_DIRECTORY, f"id_{image_id}")

    def header(self, image_id: str) -> Header | None:
        """What the header says."""
        keys = self._keys(f"rbd_header.{image_id}", ("size", "features", "object_prefix", "data_pool_id"))
        if "size" not in keys or "features" not in keys or "object_prefix" not in keys:
            return None
        data_pool = keys.get("data_pool_id")
        return Header(
            features=struct.unpack("<Q", keys["features"])[0],
            size_bytes=struct.unpack("<Q", keys["size"])[0],
            data_prefix=f"{_decode_string(keys['object_prefix'])}.",
            data_pool_id=None if data_pool is None else struct.unpack("<q", data_pool)[0],
        )

    def has_object_map(self, image_id: str) -> bool:
        """Whether the object map is there."""
        return self._exists(self._reads, f"rbd_object_map.{image_id}")

    def has_data(self, header: Header) -> bool:
        """Whether one of the first data objects is there."""
        ioctx = self._reads
        if header.data_pool_id is not None:
            with translating(f"the data pool of an image in {self._place}"):
                pool = self._connection.store.pool_reverse_lookup(header.data_pool_id)
            if pool is None:
                return False
            ioctx = self._connection.store_ioctx(Place(self._place.cluster, pool, self._place.namespace))
        names = (f"{header.data_prefix}{number:016x}" for number in range(_FIRST_OBJECTS))
        return any(self._exists(ioctx, name) for name in names)

    def trashed(self, image_id: str) -> Trashed | None:
        """The image's entry in the trash."""
        key = f"id_{image_id}"
        value = self._keys(_TRASH, (key,)).get(key)
        return None if value is None else _decode_trashed(value, f"{self._place} {_TRASH} {key}")

    def trash(self) -> dict[str, Trashed]:
        """All entries of the trash."""
        try:
            entries = self._store.read(_TRASH, prefix="id_")
        except ObjectMissingError:
            return {}
        except StoreError as error:
            raise operation_error(error) from error
        return {
            key.removeprefix("id_"): _decode_trashed(value, f"{self._place} {_TRASH} {key}")
            for key, value in entries.items()
        }

    def remove_object_map(self, image_id: str) -> None:
        """Remove the object map."""
        self._remove(f"rbd_object_map.{image_id}")

    def remove_header(self, image_id: str) -> None:
        """Remove the header."""
        self._remove(f"rbd_header.{image_id}")

    def remove_id_object(self, name: str) -> None:
        """Remove `rbd_id.<name>`."""
        self._remove(f"rbd_id.{name}")

    def remove_directory_entry(self, name: str, image_id: str | None) -> None:
        """Remove the directory's keys of a name: if they agree by the class method, which checks that."""
        if image_id is not None and self.directory_name(image_id) == name:
            with self._absent_is_success(f"image {name}"):
                self._call(_DIRECTORY, "dir_remove_image", _encode_string(name) + _encode_string(image_id))
        elif image_id is not None:
            with self._absent_is_success(f"image {name}"), rados.WriteOpCtx() as operation:
                self._changes.remove_omap_keys(operation, (f"name_{name}",))
                self._changes.operate_write_op(operation, _DIRECTORY)

    def remove_trash_entry(self, image_id: str) -> None:
        """Remove the trash entry."""
        with self._absent_is_success(f"image id {image_id}"):
            self._call(_TRASH, "trash_remove", _encode_string(image_id))

    def end_trash_move(self, image_id: str) -> None:
        """Set a trash entry from moving to normal."""
        states = bytes((TrashState.NORMAL.value, TrashState.MOVING.value))  # the new one, the expected one
        try:
            self._call(_TRASH, "trash_state_set", _encode_string(image_id) + states)
        except rados.Error as error:
            if error.errno not in {errno.ENOENT, errno.ESTALE}:  # it is no longer moving
                raise translated(error, f"image id {image_id} in the trash of {self._place}") from error

    @property
    def _reads(self) -> rados.Ioctx:
        return self._connection.store_ioctx(self._place)

    @property
    def _changes(self) -> rados.Ioctx:
        return self._connection.image_ioctx(self._place)

    @property
    def _store(self) -> RadosStore:
        return RadosStore(self._reads, self._place)

    def _keys(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        try:
            return self._store.read_keys(name, keys)
        except ObjectMissingError:
            return {}
        except StoreError as error:
            raise operation_error(error) from error

    def _string(self, name: str, key: str) -> str | None:
        value = self._keys(name, (key,)).get(key)
        return None if value is None else _decode_string(value)

    def _exists(self, ioctx: rados.Ioctx, name: str) -> bool:
        try:
            ioctx.stat(name)
        except rados.ObjectNotFound:
            return False
        except rados.Error as error:
            raise translated(error, f"{name} in {self._place}") from error
        return True

    def _remove(self, name: str) -> None:
        with self._absent_is_success(name):
            self._changes.remove_object(name)

    def _call(self, name: str, method: str, data: bytes) -> None:
        self._changes.execute(name, "rbd", method, data)

    @contextlib.contextmanager
    def _absent_is_success(self, what: str) -> Iterator[None]:
        with contextlib.suppress(NotFoundError), translating(f"{what} in {self._place}"):
            yield


def _encode_string(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _decode_string(value: bytes) -> str:
    """Ceph's encoding of a string: its length and its bytes.  Raises ValueError for anything else."""
    length, text = value[: _LENGTH.size], value[_LENGTH.size :]
    if len(length) < _LENGTH.size or _LENGTH.unpack(length) != (len(text),):
        raise ValueError("no encoded string")
    return text.decode()


def _decode_trashed(value: bytes, what: str) -> Trashed:
    """An encoded `TrashImageSpec`: version, compatible version, size; source, name, two times, state.

    Entries of versions before the state was added count as normal.
    """
    try:
        version, name_at = value[0], 7
        name_bytes = struct.unpack_from("<I", value, name_at)[0]
        name = value[name_at + 4 : name_at + 4 + name_bytes].decode()
        state_at = name_at + 4 + name_bytes + 16
        state = TrashState(value[state_at]) if version > 1 else TrashState.NORMAL
    except (IndexError, struct.error, ValueError) as error:
        raise PreconditionError(f"{what} is in a form that this version does not know") from error
    return Trashed(name, state)
