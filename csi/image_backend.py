"""The image backend: what an operation asks for, done by librbd's calls and proved by looking at the objects.

librbd does the work; its return codes are not believed.  `ImageLibrary` is librbd's part, `ImageObjects` the
look at single objects; the backend of a real Ceph and the one in memory differ in these two only.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from csi import image_objects
from csi.image_objects import ImageObjects, TrashState
from csi.images import ImageCondition, ImageProbe, ImageSpec, TrashEntry
from executor.errors import InUseError, NotFoundError, PreconditionError, UnavailableError
from omap.store import Place


@dataclass(frozen=True, slots=True)
class OpenedImage:
    """What an opened image says of itself.  `features` are those that the image was made with."""

    size_bytes: int
    features: int
    data_pool: str | None
    watchers: tuple[str, ...]


class ImageLibrary(Protocol):
    """What librbd does for one place.  Errors are those of `csi.images.ImageBackend`."""

    def check_place(self, data_pool: str | None) -> None:
        """See `ImageBackend.check_place`."""

    def create(self, spec: ImageSpec) -> None:
        """Make an image.  Raises MismatchError when the name is taken."""

    def describe(self, image_id: str) -> OpenedImage:
        """Open the image by its id, read-only, and ask it.  Raises NotFoundError if it cannot be opened."""

    def is_allocated(self, image_id: str) -> bool:
        """Whether any data object exists.  Raises NotFoundError if it cannot be opened."""

    def discard(self, image_id: str) -> None:
        """Remove all data objects of an image.  Raises PreconditionError if it has snapshots or a parent."""

    def resize(self, image_id: str, size_bytes: int) -> None:
        """Give the image this size.  Raises NotFoundError, which proves nothing."""

    def move_to_trash(self, name: str, retention_seconds: float) -> None:
        """Begin and end a move to the trash.  Raises InUseError, and NotFoundError, which proves nothing."""

    def remove_from_trash(self, image_id: str) -> None:
        """Remove an image of the trash.

        Raises InUseError while any client has it open, shut out or not, and NotFoundError, which proves
        nothing.
        """


class Images:
    """`ImageBackend` on an `ImageLibrary` and the `ImageObjects` of the same place."""

    def __init__(self, library: ImageLibrary, objects: ImageObjects) -> None:
        self._library = library
        self._objects = objects

    @property
    def place(self) -> Place:
        """Where these images live."""
        return self._objects.place

    def check_place(self, data_pool: str | None) -> None:
        """Raise if the place cannot hold images."""
        self._library.check_place(data_pool)

    def create(self, spec: ImageSpec) -> None:
        """Make an image."""
        self._library.create(spec)

    def probe(self, name: str) -> ImageProbe:
        """Look at every object of the name, and open the image if they are complete."""
        found = image_objects.look(self._objects, name)
        if found.condition is not ImageCondition.WHOLE:
            return ImageProbe(found.condition)
        image_id = found.ids[0]
        try:
            opened = self._library.describe(image_id)
        except NotFoundError as error:
            again = image_objects.look(self._objects, name)
            if again.condition is not ImageCondition.WHOLE:
                return ImageProbe(again.condition)  # somebody was removing it
            # No interrupted call leaves this, so it is nothing to be cleared away by a program.
            raise PreconditionError(
                f"image {name} (id {image_id}) in {self.place} is complete but does not open ({error}):"
                f" look at it with `rbd info --image-id {image_id}`"
            ) from error
        return ImageProbe(
            found.condition, image_id, opened.size_bytes, opened.features, opened.data_pool, opened.watchers
        )

    def repair(self, name: str) -> None:
        """Clear a half-made image away."""
        found = image_objects.look(self._objects, name)
        if found.condition is ImageCondition.WHOLE:
            raise PreconditionError(f"image {name} in {self.place} is whole and so is not cleared away")
        if found.condition is ImageCondition.HALF_MADE:
            image_objects.clear(self._objects, found)

    def remove(self, name: str) -> None:
        """Remove an image that was never handed out.

        Not by librbd's own remove: that goes through the trash, where an interrupted removal is no longer
        reachable by the name.
        """
        found = image_objects.look(self._objects, name)
        if found.condition is ImageCondition.ABSENT:
            return
        if found.condition is ImageCondition.WHOLE:
            image_id = found.ids[0]
            self._refuse_watched(name, image_id)
            if self._library.is_allocated(image_id):
                self._library.discard(image_id)
        image_objects.clear(self._objects, found)

    def expand(self, image_id: str, size_bytes: int) -> int:
        """Make an image larger and see that it is."""
        found = self._library.describe(image_id).size_bytes
        if found >= size_bytes:
            return found
        self._library.resize(image_id, size_bytes)
        found = self._library.describe(image_id).size_bytes
        if found < size_bytes:
            raise UnavailableError(
                f"image id {image_id} in {self.place} has {found} bytes after it was expanded to"
                f" {size_bytes}; it is tried again"
            )
        return found

    def trash(self, name: str, image_id: str, retention_seconds: float) -> None:
        """Move an image to the trash, or finish the move."""
        objects = self._objects
        entry = objects.trashed(image_id)
        if entry is None:
            if image_id not in {objects.directory_id(name), objects.id_object(name)}:
                return  # gone, or another image has the name
            if objects.header(image_id) is None or objects.directory_id(name) != image_id:
                raise PreconditionError(
                    f"image {name} (id {image_id}) in {self.place} is half-made: it is repaired, not trashed"
                )
            self._refuse_watched(name, image_id)
            with contextlib.suppress(NotFoundError):  # proves nothing: a full pool answers so
                self._library.move_to_trash(name, retention_seconds)
            entry = objects.trashed(image_id)
            if entry is None:
                raise UnavailableError(
                    f"image {name} (id {image_id}) in {self.place} did not reach the trash;"
                    " the pool may be full, it is tried again"
                )
        image_objects.finish_trash_move(objects, name, image_id, entry)

    def trash_entries(self) -> tuple[TrashEntry, ...]:
        """All entries of the trash."""
        moving = {TrashState.MOVING, TrashState.RESTORING}
        return tuple(
            TrashEntry(image_id, entry.name, entry.state in moving)
            for image_id, entry in self._objects.trash().items()
        )

    def purge(self, image_id: str) -> None:
        """Remove an image of the trash, or finish the removal."""
        objects = self._objects
        entry, header = objects.trashed(image_id), objects.header(image_id)
        if entry is None:
            if header is None:
                return
            raise PreconditionError(
                f"image id {image_id} in {self.place} is not in the trash, so it is not purged:"
                f" look at it with `rbd info --image-id {image_id}`"
            )
        if entry.state in {TrashState.MOVING, TrashState.RESTORING}:
            image_objects.finish_trash_move(objects, entry.name, image_id, entry)
        if header is not None:
            self._purge_whole(entry.name, image_id)
        image_objects.finish_purge(objects, image_id)
        if objects.trashed(image_id) is not None or (header is not None and objects.has_data(header)):
            raise UnavailableError(
                f"parts of image id {image_id} in {self.place} are still there after its purge"
            )

    def is_allocated(self, name: str) -> bool:
        """Whether any data object exists."""
        image_id = self._objects.id_object(name)
        if not image_id:
            raise NotFoundError(f"{self.place} has no image {name}")
        return self._library.is_allocated(image_id)

    def _purge_whole(self, name: str, image_id: str) -> None:
        try:
            with contextlib.suppress(NotFoundError):  # proves nothing: a full pool answers so
                self._library.remove_from_trash(image_id)
        except InUseError:
            # librbd takes the watch of a client that was shut out for a user, and an OSD that carried such a
            # watch out after its sender's end keeps it without a time-out.
            self._refuse_watched(name, image_id)
            self._library.discard(image_id)
            self._objects.remove_header(image_id)
        if self._objects.header(image_id) is not None:
            raise UnavailableError(
                f"image id {image_id} in {self.place} is still there after its purge;"
                " the pool may be full, it is tried again"
            )

    def _refuse_watched(self, name: str, image_id: str) -> None:
        watchers = self._library.describe(image_id).watchers
        if watchers:
            raise InUseError(
                f"image {name} in {self.place} is open at {', '.join(watchers)}:"
                " unmap it there, then try again"
            )
