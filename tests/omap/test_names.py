"""Names and keys: each means one thing only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omap import names
from omap.names import OpenMark, SubjectKind, Use

UUID = "0f7a3c1e-9c2b-4d5e-8f60-718293a4b5c6"

request_names = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda t: len(t.encode()) <= 128)
node_ids = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda t: len(t.encode()) <= 256)
uuids = st.uuids().map(str)
numbers = st.integers(0, 9_999_999_999)


@given(request_names)
def test_request_names_come_back(name: str) -> None:
    key = names.name_key(name)

    assert names.parse_name_key(key) == name
    assert key.isascii()
    assert "/" not in key.removeprefix(names.NAME_PREFIX)


@given(uuids, request_names, numbers)
def test_keys_come_back(uuid: str, text: str, number: int) -> None:
    assert names.parse_open_key(names.open_key(uuid, text)) == OpenMark(uuid, text)
    assert names.parse_trash_key(names.trash_key(uuid)) == uuid
    assert names.parse_gone_key(names.gone_key(uuid)) == uuid
    assert names.parse_tx_key(names.tx_key(number)) == number
    assert names.parse_use_key(names.use_key(uuid, number)) == Use(uuid, number)
    assert names.parse_address_key(names.address_key(text)) == text
    assert names.parse_instance_name(names.instance_name(text)) == text


@given(node_ids, numbers)
def test_node_keys_come_back(node: str, number: int) -> None:
    assert names.parse_node_key(names.node_rev_key(node)) == (node, "rev")
    assert names.parse_node_key(names.node_head_key(node)) == (node, "head")
    assert names.parse_node_key(names.node_tx_key(node, number)) == (node, names.tx_key(number)[8:])
    assert names.parse_node_tx_key(names.node_tx_key(node, number)) == (node, number)
    assert names.parse_node_tx_key(names.node_rev_key(node)) is None


@given(node_ids, node_ids)
def test_no_nodes_key_lies_under_anothers_prefix(one: str, other: str) -> None:
    keys = [names.node_rev_key(other), names.node_head_key(other), names.node_tx_key(other, 0)]

    assert any(key.startswith(names.node_prefix(one)) for key in keys) is (one == other)


@given(st.lists(request_names, min_size=2, max_size=4, unique=True), uuids)
def test_no_two_things_share_a_key(texts: list[str], uuid: str) -> None:
    keys = [
        *(names.name_key(text) for text in texts),
        *(names.open_key(uuid, text) for text in texts),
        names.trash_key(uuid),
        names.gone_key(uuid),
    ]

    assert len(set(keys)) == len(keys)
    prefixes = {names.open_prefix(uuid), names.NAME_PREFIX, names.TRASH_PREFIX, names.GONE_PREFIX}
    for key in keys:
        assert sum(key.startswith(prefix) for prefix in prefixes) == 1


@given(uuids, uuids, request_names)
def test_no_subjects_mark_lies_under_anothers_prefix(one: str, other: str, attempt: str) -> None:
    assert names.open_key(other, attempt).startswith(names.open_prefix(one)) is (one == other)


@given(st.lists(numbers, min_size=2))
def test_transactions_sort_as_their_numbers_do(seqs: list[int]) -> None:
    keys = sorted((names.tx_key(seq) for seq in seqs), key=str.encode)

    assert [names.parse_tx_key(key) for key in keys] == sorted(seqs)


@given(st.text(max_size=40), st.sampled_from(["name/", "open/", "trash/", "gone/", "waymark/"]))
def test_parsers_accept_nothing_that_no_builder_makes(text: str, prefix: str) -> None:
    key = prefix + text
    name, mark = names.parse_name_key(key), names.parse_open_key(key)
    uuid, tx, use = names.parse_trash_key(key), names.parse_tx_key(key), names.parse_use_key(key)

    assert name is None or len(name.encode()) > 128 or names.name_key(name) == key
    assert mark is None or names.open_key(mark.uuid, mark.attempt) == key
    assert uuid is None or names.trash_key(uuid) == key
    assert tx is None or names.tx_key(tx) == key
    assert use is None or names.use_key(use.uuid, use.seq) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "name/",
        "name/a/b",
        "name/%61",
        "name/%2f",
        "name/ü",
        "nam/a",
        f"open/{UUID}",
        f"open/{UUID}/",
        f"open/{UUID.upper()}/i.1",
        "open/x/i.1",
        f"/{UUID}/i.1",
        f"trash/{UUID}x",
        f"trash/{UUID[:-1]}",
        UUID,
        "waymark/tx/1",
        "waymark/tx/00000000001",
        f"waymark/use/{UUID}",
        f"waymark/use/{UUID}.1",
        f"{UUID}.0000000001",
        "waymark/node/n",
        "waymark/node//rev",
        "waymark/node/n/rev/x",
        "waymark/node/n/tx/1",
        "waymark/node/n/other",
        "n/rev",
    ],
)
def test_foreign_keys_are_nobodys(key: str) -> None:
    parsers = [
        names.parse_name_key,
        names.parse_open_key,
        names.parse_trash_key,
        names.parse_gone_key,
        names.parse_tx_key,
        names.parse_use_key,
        names.parse_node_key,
        names.parse_node_tx_key,
        names.parse_address_key,
    ]
    assert [parse(key) for parse in parsers] == [None] * len(parsers)


@pytest.mark.parametrize("kind", SubjectKind)
def test_records_are_told_apart_by_kind(kind: SubjectKind) -> None:
    assert names.parse_record_name(names.record_name(UUID, kind)) == (kind, UUID)


@pytest.mark.parametrize(
    "name", ["csi.volumes.default", "csi.volume.x", f"csi.volume.{UUID}x", UUID, "csi.volume.group."]
)
def test_other_objects_are_no_records(name: str) -> None:
    assert names.parse_record_name(name) is None


def test_records_have_the_names_that_ceph_csi_gives_them() -> None:
    assert names.record_name(UUID) == f"csi.volume.{UUID}"
    assert names.record_name(UUID, SubjectKind.SNAPSHOT) == f"csi.snap.{UUID}"
    assert names.record_name(UUID, SubjectKind.GROUP_SNAPSHOT) == f"csi.volume.group.{UUID}"


@given(request_names)
def test_a_name_lies_in_one_of_the_shards(name: str) -> None:
    shard = names.shard_name(name)

    assert shard in names.shard_names()
    assert int(shard.rpartition(".")[2], 16) == hashlib.sha256(name.encode()).digest()[0] & 63


def test_there_are_64_shards() -> None:
    shards = names.shard_names()

    assert len(set(shards)) == 64
    assert (shards[0], shards[63]) == ("csi.waymark.dir.00", "csi.waymark.dir.3f")
    used = {names.shard_name(f"pvc-{number}") for number in range(2000)}
    assert used == set(shards)


def test_the_longest_names_fit() -> None:
    assert names.parse_name_key(names.name_key("\N{EURO SIGN}" * 42)) == "\N{EURO SIGN}" * 42
    assert len(names.node_name("\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 128)) < 2048


@pytest.mark.parametrize(
    "build",
    [
        lambda: names.name_key(""),
        lambda: names.name_key("n" * 129),
        lambda: names.name_key("ü" * 65),
        lambda: names.node_prefix(""),
        lambda: names.node_prefix("n" * 257),
        lambda: names.instance_name(""),
        lambda: names.open_key(UUID, ""),
        lambda: names.open_key("x", "i.1"),
        lambda: names.trash_key(UUID.upper()),
        lambda: names.gone_key(UUID.replace("-", "")),
        lambda: names.record_name("../x"),
        lambda: names.use_key("", 1),
        lambda: names.tx_key(-1),
        lambda: names.tx_key(10_000_000_000),
        lambda: names.node_tx_key("n", -1),
        lambda: names.name_key("\ud800"),
    ],
)
def test_what_cannot_be_named_is_refused(build: Callable[[], str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        build()
