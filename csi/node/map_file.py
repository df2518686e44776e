"""The file that says which image a volume is mapped as, from before its map until after its unmap."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import asdict, dataclass

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class MappedImage:
    """An image, by what cannot be given to another one."""

    fsid: str
    pool_id: int
    image_id: str
    read_only: bool


class MapFile:
    """The file of one volume in `folder`."""

    def __init__(self, folder: pathlib.Path, volume: str) -> None:
        if not volume or "/" in volume or volume.startswith("."):
            raise ValueError(f"{volume!r} is no volume's UUID")
        self._path = folder / f"{volume}{_SUFFIX}"

    @staticmethod
    def volumes(folder: pathlib.Path) -> tuple[str, ...]:
        """Volumes that have a file in the folder, in order."""
        if not folder.is_dir():
            return ()
        return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}")))

    def exists(self) -> bool:
        """Whether the volume has a file."""
        return self._path.exists()

    def read(self) -> MappedImage | None:
        """The image; None if the file is absent or does not say."""
        try:
            return MappedImage(**json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, image: MappedImage) -> None:
        """Say which image it is, durably.  OSError if it cannot be written."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(asdict(image), file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def remove(self) -> None:
        """Remove the file; absent is success."""
        self._path.with_suffix(".new").unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
