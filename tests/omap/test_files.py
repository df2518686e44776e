"""What is particular to the store on local files."""

from __future__ import annotations

import errno
import os
import pathlib
import stat

import pytest

from omap.codec import CorruptError
from omap.files import FileStore
from omap.store import (
    AccessDeniedError,
    Answer,
    Create,
    Place,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    Write,
)

MAKE = Write(create=Create.IF_ABSENT, sets={"key": b"value"})


def test_files_are_their_owners_alone(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "state"
    before = os.umask(0)
    try:
        FileStore(directory).write("a", MAKE)
    finally:
        os.umask(before)

    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()] == [0o600]


def test_the_next_process_finds_what_was_written(tmp_path: pathlib.Path) -> None:
    FileStore(tmp_path / "state").write("a", MAKE)

    again = FileStore(tmp_path / "state", Place("node", "n1"))
    assert again.read("a") == {"key": b"value"}
    assert again.place == Place("node", "n1")


def test_what_a_crash_left_unfinished_is_neither_read_nor_kept(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "state"
    FileStore(directory).write("a", MAKE)
    (directory / "a.json.unfinished").write_bytes(b'{"name": "a"')

    store = FileStore(directory)
    assert store.read("a") == {"key": b"value"}
    assert [path.name for path in directory.iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"name": "a", "keys": {"k": 1}}', b"\xff"])
def test_a_damaged_file_is_named(tmp_path: pathlib.Path, content: bytes) -> None:
    store = FileStore(tmp_path / "state")
    (tmp_path / "state" / "a.json").write_bytes(content)

    for call in (lambda: store.read("a"), lambda: store.write("a", MAKE), lambda: store.names("")):
        with pytest.raises(CorruptError, match=r"a\.json"):
            call()


def test_a_directory_without_parent_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StoreUnavailableError, match="none/state"):
        FileStore(tmp_path / "none" / "state")


def test_a_directory_that_went_away_is_an_error(tmp_path: pathlib.Path) -> None:
    store = FileStore(tmp_path / "state")
    (tmp_path / "state").rmdir()
    (tmp_path / "state").write_text("a file")

    for call in (lambda: store.read("a"), lambda: store.write("a", MAKE)):
        with pytest.raises(StoreUnavailableError, match="state"):
            call()
    (answer,) = store.write_all([("a", MAKE)])
    assert isinstance(answer, StoreError)


def test_an_object_that_is_a_directory_cannot_be_replaced(tmp_path: pathlib.Path) -> None:
    store = FileStore(tmp_path / "state")
    (tmp_path / "state" / "a.json").mkdir()

    with pytest.raises(StoreError):
        store.names("")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EACCES, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
        (errno.EIO, StoreUnavailableError),
    ],
)
def test_a_disk_that_refuses_leaves_the_old_object(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    store = FileStore(tmp_path / "state")
    store.write("a", MAKE)

    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(kind, match=f"errno {number}"):
            store.write("a", Write(sets={"key": b"new"}))
        assert store.write("a", Write(remove_object=True)) is Answer.UNKNOWN
    assert list((tmp_path / "state").iterdir()) == []


def test_a_refused_write_changes_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "state")
    store.write("a", MAKE)

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StoreError):
            store.write("a", Write(sets={"key": b"new"}))
    assert store.read("a") == {"key": b"value"}
