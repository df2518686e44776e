"""Whose key a call uses, and that a wrong one is refused without being shown."""

from __future__ import annotations

import base64
import pathlib
import struct

import pytest

from csi.identities import Keyring, from_secrets
from csi.node.ports import Credentials
from executor.errors import PreconditionError, UnauthenticatedError

KEY = base64.b64encode(struct.pack("<HIIH", 1, 1_700_000_000, 0, 16) + bytes(range(16))).decode()
GOOD = Credentials("waymark", KEY)


def put(folder: pathlib.Path, user: str | None, key: str | None) -> None:
    folder.mkdir(parents=True)
    for name, content in (("userID", user), ("userKey", key)):
        if content is not None:
            (folder / name).write_text(content)


def test_a_secret_names_user_and_key() -> None:
    assert from_secrets({"userID": "waymark", "userKey": KEY, "other": "x"}) == GOOD
    assert from_secrets({"adminID": "admin"}) is None
    assert KEY not in repr(GOOD)


@pytest.mark.parametrize(
    ("user", "key", "words"),
    [
        ("waymark", "", "no userKey"),
        ("", KEY, "no userID"),
        ("client.waymark", KEY, "without 'client.'"),
        (" waymark", KEY, "white space"),
        ("way\x00mark", KEY, "not printable"),
        ("waymark", KEY + "\n", "white space"),
        ("waymark", " " + KEY, "white space"),
        ("waymark", KEY[:8] + " " + KEY[8:], "white space"),
        ("waymark", KEY[:8] + "\t" + KEY[8:], "white space"),
        ("waymark", "no-base64!", "not a Ceph key"),
        ("waymark", KEY[:-3], "not a Ceph key"),
        ("waymark", "ä" * 40, "not a Ceph key"),
        ("waymark", base64.b64encode(b"short").decode(), "not a Ceph key"),
        ("waymark", base64.b64encode(bytes(28)).decode(), "not a Ceph key"),
        ("waymark", base64.b64encode(base64.b64decode(KEY) + b"more").decode(), "not a Ceph key"),
    ],
)
def test_what_can_be_no_identity_is_refused_without_showing_the_key(user: str, key: str, words: str) -> None:
    with pytest.raises(UnauthenticatedError, match=words) as raised:
        from_secrets({"userID": user, "userKey": key})
    assert not key or key.strip() not in str(raised.value)


def test_the_drivers_own_identity_lies_in_a_folder_of_the_clusters(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "prod", "waymark\n", KEY + "\n")
    keyring = Keyring(tmp_path)
    assert keyring.own("prod") == GOOD
    assert keyring.own("lab") is None
    assert Keyring(None).own("prod") is None


@pytest.mark.parametrize("cluster_id", ["", ".", "..", "../prod", "a/b", "a\0b"])
def test_a_cluster_id_leads_out_of_no_folder(tmp_path: pathlib.Path, cluster_id: str) -> None:
    put(tmp_path / "prod", "waymark", KEY)
    put(tmp_path / "keys" / "prod", "waymark", KEY)
    assert Keyring(tmp_path / "keys").own(cluster_id) is None


def test_a_rotated_key_counts_at_the_next_use(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "prod", "waymark", KEY)
    keyring = Keyring(tmp_path)
    before = keyring.own("prod")
    (tmp_path / "prod" / "userID").write_text("other")
    assert (before, keyring.own("prod")) == (GOOD, Credentials("other", KEY))


@pytest.mark.parametrize(("key", "words"), [(KEY + " \n", "white space"), ("", "no userKey")])
def test_a_wrong_own_identity_is_told_with_its_folder(tmp_path: pathlib.Path, key: str, words: str) -> None:
    put(tmp_path / "prod", "waymark", key)
    with pytest.raises(UnauthenticatedError, match=words) as raised:
        Keyring(tmp_path).own("prod")
    assert str(tmp_path / "prod") in str(raised.value)


def test_an_own_identity_that_cannot_be_read_is_told(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "prod", "waymark", None)
    (tmp_path / "prod" / "userKey").write_bytes(b"\xff\xfe")
    with pytest.raises(UnauthenticatedError, match="cannot be read"):
        Keyring(tmp_path).own("prod")


def test_a_requests_identity_goes_before_the_drivers_own(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "prod", "waymark", KEY)
    keyring, given = Keyring(tmp_path), Credentials("given", KEY)
    assert keyring.identity("prod", given) is given
    assert keyring.identity("prod", None) == GOOD
    with pytest.raises(PreconditionError, match=rf"cluster lab.*userID and userKey.*{tmp_path / 'lab'}"):
        keyring.identity("lab", None)
