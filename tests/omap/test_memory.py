"""What the memory cluster plays: crashes, lost and late effects, fences."""

from __future__ import annotations

import threading

import pytest

from omap.faults import ApplyLate, CallKind, Crash, Decision, Fault, FaultsAt
from omap.memory import MemoryCluster, MemoryStore
from omap.store import (
    Answer,
    Create,
    Equals,
    FencedError,
    ObjectMissingError,
    Place,
    PlaceMissingError,
    StoreError,
    StoreUnavailableError,
    Write,
)

PLACE = Place("memory", "rbd", "ns")
MAKE = Write(create=Create.IF_ABSENT, sets={"rev": b"1"})
RAISE = Write(conditions=(Equals("rev", b"1"),), sets={"rev": b"2", "by": b"A"})
RIVAL = Write(conditions=(Equals("rev", b"1"),), sets={"rev": b"2", "by": b"B"})


def handle(cluster: MemoryCluster, address: str = "a", **decisions: Decision) -> MemoryStore:
    """A handle whose faults are given as `at<number>=`."""
    faults = FaultsAt({int(at.removeprefix("at")): decision for at, decision in decisions.items()})
    return MemoryStore(cluster, PLACE, address=address, faults=faults)


def test_data_outlives_handles() -> None:
    cluster = MemoryCluster()
    handle(cluster).write("a", MAKE)

    assert handle(cluster).read("a") == {"rev": b"1"}
    assert cluster.contents(PLACE) == {"a": {"rev": b"1"}}
    assert cluster.contents(Place("memory", "rbd")) == {}


@pytest.mark.parametrize(("fault", "applied"), [(Fault.CRASH_BEFORE, False), (Fault.CRASH_AFTER, True)])
def test_a_crash_ends_the_handle_before_or_after_the_effect(fault: Fault, *, applied: bool) -> None:
    cluster = MemoryCluster()
    store = handle(cluster, at1=fault)

    with pytest.raises(Crash):
        store.write("a", MAKE)
    for call in (lambda: store.read("a"), lambda: store.write("b", MAKE), lambda: store.names("")):
        with pytest.raises(Crash):
            call()
    assert cluster.contents(PLACE) == ({"a": {"rev": b"1"}} if applied else {})


@pytest.mark.parametrize(
    ("fault", "applied"), [(Fault.LOSE_REPLY, True), (Fault.DROP, False), (Fault.APPLY_LATE, False)]
)
def test_a_lost_reply_is_unknown_whatever_became_of_the_write(fault: Fault, *, applied: bool) -> None:
    cluster = MemoryCluster()

    assert handle(cluster, at1=fault).write("a", MAKE) is Answer.UNKNOWN
    assert bool(cluster.contents(PLACE)) is applied


@pytest.mark.parametrize("rival_first", [True, False])
def test_a_late_write_and_a_settling_write_never_both_win(*, rival_first: bool) -> None:
    cluster = MemoryCluster()
    store = handle(cluster, at2=Fault.APPLY_LATE)
    store.write("a", MAKE)
    assert store.write("a", RAISE) is Answer.UNKNOWN
    assert store.read("a") == {"rev": b"1"}  # and this read proves nothing

    if rival_first:
        assert store.write("a", RIVAL) is Answer.APPLIED
        assert cluster.deliver_late() == [Answer.CONDITION_FAILED]
    else:
        assert cluster.deliver_late() == [Answer.APPLIED]
        assert store.write("a", RIVAL) is Answer.CONDITION_FAILED
    assert store.read("a") == {"rev": b"2", "by": b"B" if rival_first else b"A"}
    assert cluster.late_writes() == 0


def test_a_late_write_comes_by_itself_after_the_given_number_of_calls() -> None:
    cluster = MemoryCluster()
    store = handle(cluster, at2=ApplyLate(calls=2))
    store.write("a", MAKE)
    store.write("a", RAISE)

    assert [store.read("a")["rev"] for _ in range(3)] == [b"1", b"1", b"2"]


def test_a_late_write_outlives_its_process_but_not_its_fence() -> None:
    for fenced in (False, True):
        cluster = MemoryCluster()
        dying = handle(cluster, address="dying", at2=Fault.APPLY_LATE, at3=Fault.CRASH_BEFORE)
        dying.write("a", MAKE)
        dying.write("a", RAISE)
        with pytest.raises(Crash):
            dying.read("a")
        if fenced:
            cluster.blocklist("dying")

        assert cluster.deliver_late() == ([] if fenced else [Answer.APPLIED])
        assert handle(cluster).read("a")["rev"] == (b"1" if fenced else b"2")


def test_a_fence_stops_every_handle_of_its_address_and_no_other() -> None:
    cluster = MemoryCluster()
    fenced, free = handle(cluster, "fenced"), handle(cluster, "free")
    cluster.blocklist("fenced")

    for store in (fenced, handle(cluster, "fenced")):
        with pytest.raises(FencedError, match="fenced"):
            store.write("a", MAKE)
        with pytest.raises(FencedError):
            store.names("")
    assert free.write("a", MAKE) is Answer.APPLIED
    assert cluster.fenced() == {"fenced"}
    cluster.unblocklist("fenced")
    assert fenced.read("a") == {"rev": b"1"}


def test_a_call_can_fail_without_effect() -> None:
    down = StoreUnavailableError("the cluster is down")
    cluster = MemoryCluster()
    store = handle(cluster, at1=down, at2=down, at3=down)

    with pytest.raises(StoreUnavailableError):
        store.read("a")
    with pytest.raises(StoreUnavailableError):
        store.names("")
    assert store.write_all([("a", MAKE), ("b", MAKE)]) == [down, Answer.APPLIED]
    assert list(store.names("")) == ["b"]


@pytest.mark.parametrize("fault", [Fault.DROP, Fault.LOSE_REPLY, Fault.APPLY_LATE, ApplyLate(1)])
def test_a_read_has_no_unknown_answer(fault: Decision) -> None:
    with pytest.raises(ValueError, match="read"):
        handle(MemoryCluster(), at1=fault).read("a")


def test_reads_can_be_the_last_call() -> None:
    cluster = MemoryCluster()
    with pytest.raises(Crash):
        handle(cluster, at1=Fault.CRASH_AFTER).read("a")
    with pytest.raises(Crash):
        handle(cluster, at1=Fault.CRASH_AFTER).names("")


def test_a_removed_pool_is_missing_and_swallows_late_writes() -> None:
    cluster = MemoryCluster()
    store = handle(cluster, at1=Fault.APPLY_LATE)
    store.write("a", MAKE)
    cluster.remove_pool("rbd")

    assert cluster.deliver_late() == [Answer.MISSING]
    with pytest.raises(PlaceMissingError):
        store.write("a", MAKE)
    cluster.add_pool("rbd")
    with pytest.raises(ObjectMissingError):
        store.read("a")


def test_faults_see_every_call() -> None:
    faults = FaultsAt()
    store = MemoryStore(MemoryCluster(), PLACE, faults=faults)
    store.write_all([("a", MAKE), ("b", MAKE)])
    store.read("a")
    list(store.names("csi."))

    assert [(call.number, call.kind, call.name, call.write) for call in faults.calls] == [
        (1, CallKind.WRITE, "a", MAKE),
        (2, CallKind.WRITE, "b", MAKE),
        (3, CallKind.READ, "a", None),
        (4, CallKind.NAMES, "csi.", None),
    ]
    assert (store.reads, store.writes) == (2, 2)


def test_nothing_but_a_crash_is_a_base_exception() -> None:
    assert not issubclass(Crash, Exception)
    assert issubclass(FencedError, StoreError)


def test_threads_share_a_cluster() -> None:
    cluster = MemoryCluster()
    threads = [
        threading.Thread(target=handle(cluster).write, args=(f"{number}", MAKE)) for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(cluster.contents(PLACE)) == 16
