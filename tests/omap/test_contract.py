"""What every store keeps to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from omap.store import (
    PAGE_KEYS,
    Absent,
    Answer,
    Condition,
    Create,
    Equals,
    ObjectMissingError,
    OmapUnsupportedError,
    PlaceMissingError,
    Store,
    Write,
)


def make(store: Store, name: str, **keys: bytes) -> None:
    assert store.write(name, Write(create=Create.EXCLUSIVE, sets=keys)) is Answer.APPLIED


def test_what_was_written_is_read(store: Store) -> None:
    make(store, "a", one=b"1", two=b"2")

    assert store.read("a") == {"one": b"1", "two": b"2"}
    assert store.read_keys("a", ["two", "three"]) == {"two": b"2"}
    assert store.read_keys("a", []) == {}


def test_a_prefix_selects_keys(store: Store) -> None:
    make(store, "a", **{"tx/1": b"1", "tx/2": b"2", "tx": b"3", "ty/1": b"4"})

    assert store.read("a", prefix="tx/") == {"tx/1": b"1", "tx/2": b"2"}
    assert store.read("a", prefix="none") == {}


def test_an_absent_object_cannot_be_read(store: Store) -> None:
    with pytest.raises(ObjectMissingError, match="absent-object"):
        store.read("absent-object")
    with pytest.raises(ObjectMissingError, match="absent-object"):
        store.read_keys("absent-object", ["key"])


@pytest.mark.parametrize(
    "write",
    [
        Write(sets={"key": b"value"}),
        Write(removes=("key",)),
        Write(conditions=(Absent("key"),), sets={"key": b"value"}),
        Write(conditions=(Equals("key", b"value"),)),
        Write(remove_object=True),
        Write(),
    ],
    ids=["set", "remove", "if absent", "if equal", "remove object", "nothing"],
)
def test_a_write_that_may_not_make_its_object_misses_it(store: Store, write: Write) -> None:
    assert store.write("a", write) is Answer.MISSING
    assert list(store.names("a")) == []


def test_exclusive_create_happens_once(store: Store) -> None:
    make(store, "a", winner=b"first")

    second = Write(create=Create.EXCLUSIVE, sets={"winner": b"second"})
    assert store.write("a", second) is Answer.EXISTS
    assert store.read("a") == {"winner": b"first"}


def test_existence_is_answered_before_conditions(store: Store) -> None:
    make(store, "a", key=b"value")

    write = Write(create=Create.EXCLUSIVE, conditions=(Equals("key", b"other"),))
    assert store.write("a", write) is Answer.EXISTS


def test_idempotent_create_with_a_condition_on_absence_applies_once(store: Store) -> None:
    reserve = Write(create=Create.IF_ABSENT, conditions=(Absent("name"),), sets={"name": b"uuid"})

    assert [store.write("shard", reserve) for _ in range(2)] == [Answer.APPLIED, Answer.CONDITION_FAILED]


def test_a_failed_condition_makes_no_object(store: Store) -> None:
    write = Write(create=Create.IF_ABSENT, conditions=(Equals("key", b"value"),), sets={"other": b"1"})

    assert store.write("a", write) is Answer.CONDITION_FAILED
    assert list(store.names("")) == []


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        (Equals("rev", b"1"), Answer.APPLIED),
        (Equals("rev", b"2"), Answer.CONDITION_FAILED),
        (Equals("rev", b"12"), Answer.CONDITION_FAILED),
        (Equals("none", b"1"), Answer.CONDITION_FAILED),
        (Absent("none"), Answer.APPLIED),
        (Absent("rev"), Answer.CONDITION_FAILED),
    ],
    ids=str,
)
def test_a_condition_decides(store: Store, condition: Condition, answer: Answer) -> None:
    make(store, "a", rev=b"1")

    assert store.write("a", Write(conditions=(condition,), sets={"mark": b"set"})) is answer
    assert ("mark" in store.read("a")) is (answer is Answer.APPLIED)


def test_one_failed_condition_of_several_keeps_everything(store: Store) -> None:
    make(store, "a", rev=b"1", state=b"ready")
    write = Write(
        conditions=(Equals("rev", b"1"), Equals("state", b"deleted")),
        sets={"rev": b"2"},
        removes=("state",),
    )

    assert store.write("a", write) is Answer.CONDITION_FAILED
    assert store.read("a") == {"rev": b"1", "state": b"ready"}


def test_conditions_see_the_object_as_it_was(store: Store) -> None:
    make(store, "a", rev=b"1")

    write = Write(conditions=(Equals("rev", b"1"), Absent("new")), sets={"new": b"x", "rev": b"2"})
    assert store.write("a", write) is Answer.APPLIED
    assert store.read("a") == {"new": b"x", "rev": b"2"}


def test_sets_and_removes_are_one_write(store: Store) -> None:
    make(store, "a", old=b"1", kept=b"2")

    assert store.write("a", Write(sets={"new": b"3"}, removes=("old", "never"))) is Answer.APPLIED
    assert store.read("a") == {"kept": b"2", "new": b"3"}


def test_an_object_outlives_its_last_key(store: Store) -> None:
    make(store, "a", key=b"1")

    assert store.write("a", Write(removes=("key",))) is Answer.APPLIED
    assert store.read("a") == {}
    assert list(store.names("")) == ["a"]


def test_a_guarded_removal_removes_only_what_was_seen(store: Store) -> None:
    make(store, "a", rev=b"1")

    stale = Write(conditions=(Equals("rev", b"0"),), remove_object=True)
    assert store.write("a", stale) is Answer.CONDITION_FAILED
    assert store.read("a") == {"rev": b"1"}
    fresh = Write(conditions=(Equals("rev", b"1"),), remove_object=True)
    assert store.write("a", fresh) is Answer.APPLIED
    assert list(store.names("")) == []


def test_values_may_be_any_bytes_and_keys_any_text(store: Store) -> None:
    keys = {"größe": "schön".encode(), "raw": bytes(range(256)), "a b/c%2F\n": b"\x00"}
    make(store, "a", **keys)

    assert store.read("a") == keys
    assert store.read("a", prefix="grö") == {"größe": "schön".encode()}
    assert store.read_keys("a", ["größe", "a b/c%2F\n"]).keys() == {"größe", "a b/c%2F\n"}


def test_more_keys_than_a_page_are_all_read_in_order(store: Store) -> None:
    keys = {f"tx/{number:010d}": b"%d" % number for number in range(5000)}
    make(store, "a", **keys, before=b"1", zlast=b"2")

    assert len(store.read("a")) == 5002
    assert list(store.read("a", prefix="tx/").items()) == list(keys.items())


def test_exactly_one_page_of_keys_is_read(store: Store) -> None:
    keys = {f"{number:05d}": b"x" for number in range(PAGE_KEYS)}
    make(store, "a", **keys)

    assert store.read("a") == keys


@pytest.mark.parametrize(
    "name", ["n" * 128, "ü" * 64, "../../etc/passwd", ".", "..", "a/b", "%41", "A", "n" * 900]
)
def test_odd_object_names_are_names_like_others(store: Store, name: str) -> None:
    make(store, name, key=b"1")
    make(store, "bystander", key=b"2")

    assert store.read(name) == {"key": b"1"}
    assert sorted(store.names("")) == sorted([name, "bystander"])
    assert store.write(name, Write(remove_object=True)) is Answer.APPLIED
    assert list(store.names("")) == ["bystander"]


def test_names_are_listed_by_prefix(store: Store) -> None:
    for name in ["csi.volume.1", "csi.volume.2", "csi.volumes", "csi.snap.1"]:
        make(store, name)

    assert sorted(store.names("csi.volume.")) == ["csi.volume.1", "csi.volume.2"]


def test_writes_side_by_side_are_answered_in_order(store: Store) -> None:
    make(store, "there", rev=b"1")

    answers = store.write_all(
        [
            ("there", Write(conditions=(Equals("rev", b"2"),), sets={"rev": b"3"})),
            ("made", Write(create=Create.IF_ABSENT, sets={"rev": b"1"})),
            ("absent", Write(sets={"rev": b"1"})),
        ]
    )
    assert answers == [Answer.CONDITION_FAILED, Answer.APPLIED, Answer.MISSING]
    assert store.write_all([]) == []


def test_what_is_handed_out_and_in_is_no_longer_shared(store: Store) -> None:
    sets = {"key": b"value"}
    make(store, "a")
    assert store.write("a", Write(sets=sets)) is Answer.APPLIED
    sets["key"] = b"changed"
    read = store.read("a")
    read["key"] = b"changed"

    assert store.read("a") == {"key": b"value"}


def test_of_many_writers_from_one_revision_one_wins(store: Store) -> None:
    make(store, "a", rev=b"0")
    answers: list[Answer] = []
    begin = threading.Barrier(8)

    def compete(number: int) -> None:
        begin.wait()
        answers.append(store.write("a", Write((Equals("rev", b"0"),), {"rev": b"%d" % number})))

    threads = [threading.Thread(target=compete, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers, key=str) == [Answer.APPLIED] + [Answer.CONDITION_FAILED] * 7


@pytest.mark.parametrize(
    "write",
    [
        Write(create=Create.EXCLUSIVE, sets={"key": b"1"}),
        Write(create=Create.IF_ABSENT, conditions=(Absent("key"),), sets={"key": b"1"}),
    ],
    ids=["exclusive", "shard"],
)
def test_an_erasure_coded_pool_keeps_no_omap(open_in_cluster: Callable[[str], Store], write: Write) -> None:
    store = open_in_cluster("ec")

    with pytest.raises(OmapUnsupportedError, match="ec"):
        store.write("a", write)
    (answer,) = store.write_all([("a", write)])
    assert isinstance(answer, OmapUnsupportedError)
    assert list(store.names("")) == []


def test_an_absent_pool_is_named(open_in_cluster: Callable[[str], Store]) -> None:
    with pytest.raises(PlaceMissingError, match="no-such-pool"):
        open_in_cluster("no-such-pool").read("a")


@pytest.mark.parametrize(
    "fields",
    [
        {"sets": {"key": b""}},
        {"conditions": (Equals("key", b""),)},
        {"conditions": (Equals("key", "ü".encode()),)},
        {"sets": {"key": b"1"}, "removes": ("key",)},
        {"remove_object": True, "sets": {"key": b"1"}},
        {"remove_object": True, "removes": ("key",)},
        {"remove_object": True, "create": Create.IF_ABSENT},
    ],
    ids=str,
)
def test_a_write_that_no_store_can_keep_to_cannot_be_made(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Write(**fields)  # type: ignore[arg-type]  # the cases are of several types


def test_a_place_says_where_it_is(store: Store) -> None:
    assert store.place.pool in str(store.place)
    assert str(store.place).startswith(f"cluster {store.place.cluster} pool ")
