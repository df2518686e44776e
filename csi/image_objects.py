"""The objects that librbd makes for an image, and what half-made images look like.

A process killed inside librbd leaves some of an image's objects behind.  The orders, as seen on Ceph 16.2:

    create   directory entry, rbd_id, header, object map
    trash    trash entry (moving), rbd_id goes, directory entry goes, trash entry (normal)
    purge    trash entry (removing), data go, header goes, object map goes, trash entry goes

So an image is whole only if all of `rbd_id.<name>`, both keys of `rbd_directory`, `rbd_header.<id>` and (with
the feature) `rbd_object_map.<id>` are there and agree.  Whatever is less is cleared away here in an order of
our own that keeps the rest reachable by name until its last step, so that clearing can itself be interrupted
anywhere.  Both image backends use this, so that what the simulation exercises is what runs on Ceph.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from csi.images import ImageCondition
from executor.errors import PreconditionError, UnavailableError
from omap.store import Place

FEATURE_OBJECT_MAP = 8
FEATURE_DATA_POOL = 128
FEATURE_OPERATIONS = 256


class TrashState(enum.Enum):
    """What librbd is doing with an image in the trash."""

    NORMAL = 0
    MOVING = 1
    REMOVING = 2
    RESTORING = 3


@dataclass(frozen=True, slots=True)
class Trashed:
    """A trash entry: the name that the image had, and what is being done with it."""

    name: str
    state: TrashState


@dataclass(frozen=True, slots=True)
class Header:
    """What an image's header says.  `data_pool_id` is None if the data lie in the image's own pool."""

    features: int
    size_bytes: int
    data_prefix: str
    data_pool_id: int | None


class ImageObjects(Protocol):
    """The single objects of one place's images.  Removing what is absent is success."""

    @property
    def place(self) -> Place:
        """Where the images live."""

    def id_object(self, name: str) -> str | None:
        """The id in `rbd_id.<name>`; None without that object, "" if it holds no id."""

    def directory_id(self, name: str) -> str | None:
        """The id that the directory gives for a name."""

    def directory_name(self, image_id: str) -> str | None:
        """The name that the directory gives for an id."""

    def header(self, image_id: str) -> Header | None:
        """What the header says; None if it is absent."""

    def has_object_map(self, image_id: str) -> bool:
        """Whether the object map's object is there."""

    def has_data(self, header: Header) -> bool:
        """Whether any of the image's first data objects is there: a bounded look, in one round trip."""

    def trashed(self, image_id: str) -> Trashed | None:
        """The image's entry in the trash."""

    def trash(self) -> dict[str, Trashed]:
        """All entries of the trash by image id."""

    def remove_object_map(self, image_id: str) -> None:
        """Remove the object map."""

    def remove_header(self, image_id: str) -> None:
        """Remove the header."""

    def remove_id_object(self, name: str) -> None:
        """Remove `rbd_id.<name>`."""

    def remove_directory_entry(self, name: str, image_id: str | None) -> None:
        """Remove the directory's keys of this name and, where it leads back to the name, of this id."""

    def remove_trash_entry(self, image_id: str) -> None:
        """Remove the trash entry."""

    def end_trash_move(self, image_id: str) -> None:
        """Set a trash entry from moving to normal."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a look at a name's objects found.  `ids` are the ids that its objects give, mostly one or none."""

    name: str
    condition: ImageCondition
    ids: tuple[str, ...] = ()


def look(objects: ImageObjects, name: str) -> Found:
    """Look at every object of a name.

    Whole means that they are complete and agree, not yet that it opens.
    """
    by_object, by_directory = objects.id_object(name), objects.directory_id(name)
    if by_object is None and by_directory is None:
        return Found(name, ImageCondition.ABSENT)
    ids = tuple(dict.fromkeys(each for each in (by_object, by_directory) if each))
    whole = bool(by_object) and by_object == by_directory and _is_complete(objects, name, ids[0])
    return Found(name, ImageCondition.WHOLE if whole else ImageCondition.HALF_MADE, ids)


def clear(objects: ImageObjects, found: Found) -> None:
    """Remove every object of a name, the directory entry last, and verify that nothing is left.

    Raises PreconditionError if an image of that name is on its way to the trash or holds data: neither comes
    from an interrupted create, so nothing of it is touched.
    """
    mine = [each for each in found.ids if objects.directory_name(each) in {None, found.name}]
    for image_id in mine:
        _refuse_precious(objects, found.name, image_id)
    for image_id in mine:
        objects.remove_object_map(image_id)
        objects.remove_header(image_id)
    objects.remove_id_object(found.name)
    objects.remove_directory_entry(found.name, objects.directory_id(found.name))
    left = [each for each in mine if objects.header(each) is not None or objects.has_object_map(each)]
    if left or look(objects, found.name).condition is not ImageCondition.ABSENT:
        raise UnavailableError(
            f"image {found.name} in {objects.place} was removed but parts of it are still there;"
            " the pool may be full, it is tried again"
        )


def finish_trash_move(objects: ImageObjects, name: str, image_id: str, entry: Trashed) -> None:
    """Do the rest of a move to the trash, in librbd's own order.  Raises PreconditionError for a restore."""
    if entry.state is TrashState.RESTORING:
        raise PreconditionError(
            f"image {name} (id {image_id}) in {objects.place} is being restored from the trash:"
            " let `rbd trash restore` finish, then try again"
        )
    if objects.id_object(name) == image_id:
        objects.remove_id_object(name)
    if objects.directory_id(name) == image_id:
        objects.remove_directory_entry(name, image_id)
    if entry.state is TrashState.MOVING:
        objects.end_trash_move(image_id)


def finish_purge(objects: ImageObjects, image_id: str) -> None:
    """Remove what an interrupted purge left of an image whose header, and so all its data, is gone."""
    objects.remove_object_map(image_id)
    objects.remove_trash_entry(image_id)


def _is_complete(objects: ImageObjects, name: str, image_id: str) -> bool:
    if objects.directory_name(image_id) != name:
        return False
    header = objects.header(image_id)
    if header is None:
        return False
    return not header.features & FEATURE_OBJECT_MAP or objects.has_object_map(image_id)


def _refuse_precious(objects: ImageObjects, name: str, image_id: str) -> None:
    if objects.trashed(image_id) is not None:
        raise PreconditionError(
            f"image {name} (id {image_id}) in {objects.place} is on its way to the trash:"
            " delete the volume again, which finishes the move, or finish it with `rbd trash mv`"
        )
    header = objects.header(image_id)
    if header is not None and objects.has_data(header):
        raise PreconditionError(
            f"image {name} (id {image_id}) in {objects.place} is damaged and holds data,"
            f" so it is left as it is: look at it with `rbd info --image-id {image_id}`"
            " and remove it by hand if it is not needed"
        )
