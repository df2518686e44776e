"""The identities of staged volumes."""

from __future__ import annotations

import pathlib
import stat
import uuid

import pytest

from csi.node.ports import Credentials
from csi.node.stage_keys import StageKeys
from executor.errors import UnavailableError

KEY = Credentials("waymark", "AQBXJlBlAAAAABAAbm90IGEgcmVhbCBrZXk=")
VOLUME = str(uuid.UUID(int=7))


def test_what_is_kept_is_found_by_the_next_plugin(tmp_path: pathlib.Path) -> None:
    StageKeys(tmp_path).keep(VOLUME, KEY)
    assert StageKeys(tmp_path).get(VOLUME) == KEY
    assert StageKeys(tmp_path).volumes() == (VOLUME,)


def test_a_newer_key_takes_the_older_ones_place(tmp_path: pathlib.Path) -> None:
    keys = StageKeys(tmp_path)
    keys.keep(VOLUME, Credentials("old", "old"))
    keys.keep(VOLUME, KEY)
    assert keys.get(VOLUME) == KEY


def test_only_root_can_read_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "keys").mkdir(mode=0o755)
    StageKeys(tmp_path).keep(VOLUME, KEY)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "keys" / VOLUME).stat().st_mode) == 0o600


def test_a_forgotten_key_is_gone_and_forgetting_may_be_repeated(tmp_path: pathlib.Path) -> None:
    keys = StageKeys(tmp_path)
    keys.forget(VOLUME)
    keys.keep(VOLUME, KEY)
    keys.forget(VOLUME)
    keys.forget(VOLUME)
    assert keys.get(VOLUME) is None
    assert keys.volumes() == ()
    assert list((tmp_path / "keys").iterdir()) == []


def test_what_an_interrupted_write_left_is_neither_read_nor_in_the_way(tmp_path: pathlib.Path) -> None:
    keys = StageKeys(tmp_path)
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / f"{VOLUME}.new").write_text("{")
    assert keys.get(VOLUME) is None
    assert keys.volumes() == ()
    keys.keep(VOLUME, KEY)
    assert keys.get(VOLUME) == KEY


def test_a_broken_file_is_told_without_what_it_holds(tmp_path: pathlib.Path) -> None:
    keys = StageKeys(tmp_path)
    keys.keep(VOLUME, KEY)
    path = tmp_path / "keys" / VOLUME
    path.write_text(path.read_text()[:-1])
    with pytest.raises(UnavailableError, match=VOLUME) as caught:
        keys.get(VOLUME)
    assert KEY.key not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_key_is_never_printed(tmp_path: pathlib.Path) -> None:
    assert KEY.key not in repr(KEY) + str(KEY)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden"])
def test_a_path_is_no_volume(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        StageKeys(tmp_path).keep(name, KEY)
