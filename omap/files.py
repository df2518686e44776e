"""The store on a local directory: what a node keeps where no cluster is needed to read it.

One file is one object.  It is written beside its place, forced to the disk and renamed into it, then the
rename is forced too: after a crash it is the old or the new object, whole.  Files are 0600, the directory
0700.

One process at a time: the caller holds the directory's `flock`, within the process a lock orders the threads.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from omap import rules
from omap.codec import CorruptError
from omap.store import (
    AccessDeniedError,
    Answer,
    ObjectMissingError,
    Place,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    Write,
)

_MAX_PLAIN_NAME = 200
_SUFFIX = ".json"
_UNFINISHED = ".unfinished"


class FileStore:
    """The objects in one directory, which is made if it is not there (its parent must be).

    Raises StoreError if it cannot be.  Files that a crash left unfinished are removed.
    """

    def __init__(self, directory: Path, place: Place | None = None) -> None:
        self._directory = directory
        self._place = place or Place("node", str(directory))
        self._lock = threading.Lock()
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            for unfinished in directory.glob(f"*{_UNFINISHED}"):
                unfinished.unlink()
        except OSError as error:
            raise self._error("the directory", error) from error

    @property
    def place(self) -> Place:
        """Where these objects live; the directory stands for the pool unless another place was given."""
        return self._place

    def read(self, name: str, *, prefix: str = "") -> dict[str, bytes]:
        """All keys that begin with `prefix`, at one moment."""
        return rules.selected(self._existing(name), prefix)

    def read_keys(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Those of the keys that are there."""
        there = self._existing(name)
        return {key: there[key] for key in keys if key in there}

    def write(self, name: str, write: Write) -> Answer:
        """Apply one write; it is on the disk when this returns.

        `UNKNOWN` when only the last step, forcing the rename to the disk, failed.
        """
        with self._lock:
            answer, after = rules.outcome(write, self._load(name))
            if answer is not Answer.APPLIED:
                return answer
            path = self._path(name)
            try:
                if after is None:
                    path.unlink()
                else:
                    self._replace(path, name, after)
            except OSError as error:
                raise self._error(name, error) from error
            try:
                self._force_directory()
            except OSError:
                return Answer.UNKNOWN
            return Answer.APPLIED

    def write_all(self, writes: Sequence[tuple[str, Write]]) -> list[Answer | StoreError]:
        """Apply writes one after the other: a disk gains nothing from more."""
        answers: list[Answer | StoreError] = []
        for name, write in writes:
            try:
                answers.append(self.write(name, write))
            except StoreError as error:
                answers.append(error)
        return answers

    def names(self, prefix: str) -> Iterator[str]:
        """Names of the objects there are when the listing begins."""
        with self._lock:
            try:
                contents = [_decode(path) for path in self._directory.glob(f"*{_SUFFIX}")]
            except OSError as error:
                raise self._error("the listing", error) from error
        return iter([name for name, _ in contents if name.startswith(prefix)])

    def _existing(self, name: str) -> dict[str, bytes]:
        with self._lock:
            keys = self._load(name)
        if keys is None:
            raise ObjectMissingError(f"{self._place} has no object {name}")
        return keys

    def _load(self, name: str) -> dict[str, bytes] | None:
        try:
            return _decode(self._path(name))[1]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(name, error) from error

    def _path(self, name: str) -> Path:
        plain = urllib.parse.quote(name, safe="")
        if len(plain) > _MAX_PLAIN_NAME or plain.startswith("."):
            # A file name has at most 255 bytes, and a leading dot has a meaning.  `%%` is in no encoded name.
            plain = "%%" + hashlib.sha256(name.encode()).hexdigest()
        return self._directory / (plain + _SUFFIX)

    def _replace(self, path: Path, name: str, keys: dict[str, bytes]) -> None:
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_encode(name, keys))
                file.flush()
                os.fsync(descriptor)
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise

    def _force_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _error(self, name: str, error: OSError) -> StoreError:
        kind: type[StoreError] = StoreUnavailableError
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            kind = StoreFullError
        elif error.errno in {errno.EPERM, errno.EACCES, errno.EROFS}:
            kind = AccessDeniedError
        return kind(f"{name} in {self._directory}: {error.strerror} (errno {error.errno})")


def _encode(name: str, keys: dict[str, bytes]) -> bytes:
    # Each byte of a value is the character of that number: readable, for nearly all values are ASCII.
    document = {"name": name, "keys": {key: value.decode("latin-1") for key, value in keys.items()}}
    return json.dumps(document, ensure_ascii=True, indent=1).encode("ascii")


def _decode(path: Path) -> tuple[str, dict[str, bytes]]:
    text = path.read_bytes()
    try:
        document = json.loads(text)
        return document["name"], {key: value.encode("latin-1") for key, value in document["keys"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} is not a stored object: damaged, or another program wrote it") from error
