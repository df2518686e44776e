"""JSON values, revisions, schema numbers and reading a record that others write to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omap import codec, names
from omap.codec import JSON, CorruptError, Rev, SchemaTooNewError, Writer
from omap.faults import ApplyLate, Decision, FaultsAt
from omap.memory import MemoryCluster, MemoryStore
from omap.store import PAGE_KEYS, Create, ObjectMissingError, Place, StoreUnavailableError, Write

WHAT = "csi.volume.x key waymark/head"
PLACE = Place("memory", "rbd")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_json_comes_back_and_can_be_compared_by_rados(value: JSON) -> None:
    encoded = codec.encode(value)

    assert encoded
    assert encoded.isascii()
    assert codec.decode(encoded, WHAT) == json.loads(json.dumps(value))


def test_equal_values_are_equal_bytes() -> None:
    assert codec.encode({"b": "é", "a": [1, None]}) == codec.encode({"a": [1, None], "b": "é"})
    assert codec.encode({"b": "é", "a": [1, None]}) == b'{"a":[1,null],"b":"\\u00e9"}'


def test_unknown_fields_are_kept() -> None:
    fields = codec.decode_object(b'{"known":1,"later":{"x":[2]}}', WHAT)
    fields["known"] = 2

    assert codec.encode(fields) == b'{"known":2,"later":{"x":[2]}}'


def test_what_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        codec.encode(float("nan"))


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"{'a': 1}", b"[1,]"])
def test_damaged_json_is_named(value: bytes) -> None:
    with pytest.raises(CorruptError, match=WHAT):
        codec.decode(value, WHAT)


@pytest.mark.parametrize("value", [b"[]", b"1", b"null", b'"{}"'])
def test_other_json_than_an_object_is_named(value: bytes) -> None:
    with pytest.raises(CorruptError, match=WHAT):
        codec.decode_object(value, WHAT)


def test_revisions_rise_by_one_and_name_their_writer() -> None:
    first = Rev.first(Writer("i-1", "17", "intent"))
    second = first.next(Writer("i-2", "18", "commit"))

    assert bytes(first) == b"00000000000000000001 i-1.17.intent"
    assert second == Rev(2, "i-2.18.commit")
    assert Rev.parse(bytes(second), WHAT) == second
    assert bytes(first) < bytes(second)


def test_two_writers_from_one_revision_leave_different_tokens() -> None:
    first = Rev.first("i.1.a")

    assert bytes(first.next("i.1.b")) != bytes(first.next("j.1.b"))


@pytest.mark.parametrize(
    "value", [b"", b"1 w", b"0000000000000000000x w", b"00000000000000000001 ", b"0" * 20]
)
def test_a_damaged_revision_is_named(value: bytes) -> None:
    with pytest.raises(CorruptError, match=WHAT):
        Rev.parse(value, WHAT)


def test_a_writer_comes_back() -> None:
    writer = Writer("host-1_a", "42", "create_image")

    assert Writer.parse(str(writer), WHAT) == writer


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c.d", "a..c", "a.b.c d", "ü.b.c"])
def test_a_damaged_writer_is_named(text: str) -> None:
    with pytest.raises(CorruptError, match=WHAT):
        Writer.parse(text, WHAT)


def test_a_writer_is_made_of_words() -> None:
    with pytest.raises(ValueError, match="a b"):
        Writer("i", "t", "a b")


def test_schemas() -> None:
    assert codec.check_schema("csi.volume.x", {}) == 0
    assert codec.check_schema("csi.volume.x", {names.SCHEMA_KEY: codec.encode_schema()}) == codec.SCHEMA
    with pytest.raises(SchemaTooNewError, match=r"csi\.volume\.x.*schema 2.*upgrade"):
        codec.check_schema("csi.volume.x", {names.SCHEMA_KEY: codec.encode_schema(codec.SCHEMA + 1)})
    with pytest.raises(CorruptError, match=r"csi\.volume\.x"):
        codec.check_schema("csi.volume.x", {names.SCHEMA_KEY: b"one"})


def stored(keys: dict[str, bytes], **decisions: Decision) -> MemoryStore:
    """A store with one record `r` of these keys and faults at the later calls."""
    cluster = MemoryCluster()
    MemoryStore(cluster, PLACE).write("r", Write(create=Create.EXCLUSIVE, sets=keys))
    faults = FaultsAt({int(at.removeprefix("at")): decision for at, decision in decisions.items()})
    return MemoryStore(cluster, PLACE, faults=faults)


def long_record(rev: bytes = b"1") -> dict[str, bytes]:
    return {"a": rev, "z": rev, names.REV: rev} | {names.tx_key(seq): rev for seq in range(PAGE_KEYS)}


def test_a_short_record_costs_one_read() -> None:
    store = stored({names.REV: b"1"})

    assert codec.read_record(store, "r") == {names.REV: b"1"}
    assert store.reads == 1


def test_an_absent_record_is_missing() -> None:
    with pytest.raises(ObjectMissingError):
        codec.read_record(stored({}), "none")


def test_a_record_of_a_newer_schema_is_refused() -> None:
    with pytest.raises(SchemaTooNewError, match="r has"):
        codec.read_record(stored({names.SCHEMA_KEY: b"99"}), "r")


@pytest.mark.parametrize("calls", range(6))
def test_a_long_record_is_read_as_it_was_at_one_moment(calls: int) -> None:
    store = stored(long_record(), at1=ApplyLate(calls))
    change = Write(sets=dict.fromkeys(long_record(), b"2"))
    store.write("r", change)  # lands between two pages of what follows

    assert set(codec.read_record(store, "r").values()) in ({b"1"}, {b"2"})


def test_a_record_that_never_holds_still_is_unavailable() -> None:
    moving = 40
    store = stored(long_record(), **{f"at{n}": ApplyLate(n) for n in range(1, moving + 1)})
    for number in range(moving):
        store.write("r", Write(sets={names.REV: b"%d" % number}))
    assert store.cluster.late_writes() > 0

    with pytest.raises(StoreUnavailableError, match="changed"):
        codec.read_record(store, "r")
