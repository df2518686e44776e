"""The Ceph identity of each staged volume, kept so that calls without secrets can reach its cluster.

One file a volume in `<run>/keys`, a folder of the host's tmpfs: gone with the host's power, but outliving
the plugin. Files are 0600 in a folder 0700; nothing here prints a key.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib

from csi.node.ports import Credentials
from executor.errors import UnavailableError

_TEMPORARY = ".new"


class StageKeys:
    """The stage secrets below one run directory."""

    def __init__(self, run_dir: pathlib.Path) -> None:
        self._folder = run_dir / "keys"

    def keep(self, volume: str, credentials: Credentials) -> None:
        """Keep a volume's identity, in place of an older one.

        Raises UnavailableError when it cannot be written.
        """
        text = json.dumps({"userID": credentials.user, "userKey": credentials.key})
        path = self._path(volume)
        fresh = path.with_suffix(_TEMPORARY)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            # Not truncated in place: a reader, or a plugin killed here, must never meet half a key.
            fresh.unlink(missing_ok=True)
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            fresh.replace(path)
        except OSError as error:
            raise UnavailableError(
                f"the key of volume {volume} cannot be kept in {self._folder}: {error.strerror}"
            ) from None

    def get(self, volume: str) -> Credentials | None:
        """The identity kept for a volume, or None.  Raises UnavailableError when the file cannot be read."""
        path = self._path(volume)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return Credentials(kept["userID"], kept["userKey"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            # `from None`: the parser's own error would quote the file, and so the key.
            raise UnavailableError(f"the key kept in {path} cannot be read; stage the volume again") from None

    def forget(self, volume: str) -> None:
        """Remove what is kept of a volume; absent is success."""
        path = self._path(volume)
        for each in (path, path.with_suffix(_TEMPORARY)):
            with contextlib.suppress(FileNotFoundError):
                each.unlink()

    def volumes(self) -> tuple[str, ...]:
        """Volumes that an identity is kept for, in order."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return ()
        return tuple(sorted(name for name in names if not name.endswith(_TEMPORARY)))

    def _path(self, volume: str) -> pathlib.Path:
        if not volume or "/" in volume or volume.startswith("."):
            raise ValueError(f"{volume!r} is no volume's UUID")
        return self._folder / volume
