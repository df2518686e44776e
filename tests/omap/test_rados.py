"""What only a real cluster can show: lost replies, late effects, fences, caps and pools that go away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
import rados

from e2e.harness.ceph import MicroCeph
from omap.codec import Rev, Writer
from omap.rados import open_store
from omap.store import (
    Absent,
    AccessDeniedError,
    Answer,
    Create,
    Equals,
    FencedError,
    ObjectMissingError,
    Place,
    PlaceMissingError,
    StoreUnavailableError,
    Write,
)

pytestmark = pytest.mark.ceph

PLACE = Place("micro", "meta", "omap-rados")
EFFECTS = 5


@contextlib.contextmanager
def connected(ceph: MicroCeph, **conf: str) -> Iterator[rados.Rados]:
    settings = {"client_mount_timeout": "20", "rados_osd_op_timeout": "30", **conf}
    with rados.Rados(conffile=str(ceph.conf), name="client.admin", conf=settings) as connection:
        yield connection


def monitor(connection: rados.Rados, **command: object) -> bytes:
    code, output, words = connection.mon_command(json.dumps(command), b"")
    assert code == 0, words
    return output


@pytest.mark.parametrize("attempt", range(2))
def test_a_write_that_timed_out_is_settled_by_the_next_conditional_write(
    ceph: MicroCeph, attempt: int
) -> None:
    name = f"late-{attempt}"
    first = Rev.first(Writer("i", "t", "make"))
    late, settling = first.next(Writer("i", "t", "late")), first.next(Writer("i", "t", "settle"))
    with connected(ceph, rados_osd_op_timeout="1") as connection, connected(ceph) as patient:
        store = open_store(connection, PLACE)
        reader = open_store(patient, PLACE)
        store.write(name, Write(create=Create.EXCLUSIVE, sets={"rev": bytes(first)}))
        ceph.pause("osd")
        try:
            on_first = (Equals("rev", bytes(first)),)
            lost = store.write(name, Write(on_first, {"rev": bytes(late), "late": b"1"}))
            with pytest.raises(StoreUnavailableError, match="micro"):
                store.read(name)
            with pytest.raises(StoreUnavailableError, match="listing"):
                store.names("")
        finally:
            ceph.resume("all")
        answer = reader.write(name, Write(on_first, {"rev": bytes(settling), "settled": b"1"}))
        assert answer in {Answer.APPLIED, Answer.CONDITION_FAILED}
        winner = settling if answer is Answer.APPLIED else late
        # On the connection that lost the reply, this write comes after whatever is still on its way there.
        last = store.write(name, Write((Equals("rev", bytes(first)),), {"never": b"1"}))

        assert lost is Answer.UNKNOWN
        assert last is Answer.CONDITION_FAILED
        assert reader.read(name) == {"rev": bytes(winner), "late" if winner is late else "settled": b"1"}


def test_lost_replies_of_writes_side_by_side_are_each_unknown(ceph: MicroCeph) -> None:
    make = Write(create=Create.IF_ABSENT, conditions=(Absent("mark"),), sets={"mark": b"1"})
    writes = [(f"side-{number}", make) for number in range(EFFECTS)]
    with connected(ceph, rados_osd_op_timeout="1") as connection:
        store = open_store(connection, PLACE)
        store.names("")
        ceph.pause("osd")
        try:
            lost = store.write_all(writes)
        finally:
            ceph.resume("all")
        settled = store.write_all(writes)

        assert lost == [Answer.UNKNOWN] * EFFECTS
        assert set(settled) <= {Answer.APPLIED, Answer.CONDITION_FAILED}
        assert [store.read(name) for name, _ in writes] == [{"mark": b"1"}] * EFFECTS


def test_a_fenced_client_is_told_so(ceph: MicroCeph) -> None:
    with connected(ceph) as connection, connected(ceph) as fenced:
        store = open_store(fenced, PLACE)
        store.write("fence", Write(create=Create.EXCLUSIVE, sets={"rev": b"1"}))
        addresses = fenced.get_addrs().split("/")
        address = f"{addresses[0]}/{addresses[1]}"
        connection.blocklist_add(address)
        connection.wait_for_latest_osdmap()
        fenced.wait_for_latest_osdmap()

        with pytest.raises(FencedError, match="blocklist"):
            store.write("fence", Write(sets={"rev": b"2"}))
        with pytest.raises(FencedError):
            store.read("fence")
        with pytest.raises(FencedError):
            store.names("")
        (answer,) = store.write_all([("fence", Write(sets={"rev": b"2"}))])
        assert isinstance(answer, FencedError)
        assert open_store(connection, PLACE).read("fence") == {"rev": b"1"}


def test_a_pool_that_was_removed_is_told_from_an_absent_object(ceph: MicroCeph) -> None:
    with connected(ceph) as connection:
        monitor(connection, prefix="osd pool create", pool="short-lived")
        connection.wait_for_latest_osdmap()
        store = open_store(connection, Place("micro", "short-lived"))
        with pytest.raises(ObjectMissingError):
            store.read("a")
        sure = {"yes_i_really_really_mean_it": True}
        monitor(connection, prefix="osd pool delete", pool="short-lived", pool2="short-lived", **sure)
        connection.wait_for_latest_osdmap()

        with pytest.raises(PlaceMissingError, match="short-lived"):
            store.read("a")
        with pytest.raises(PlaceMissingError, match="short-lived"):
            store.write("a", Write(create=Create.IF_ABSENT, sets={"key": b"1"}))
        with pytest.raises(PlaceMissingError, match="short-lived"):
            store.names("")


def test_an_identity_without_the_caps_is_told_so(ceph: MicroCeph) -> None:
    entity = "client.only-rbd2"
    with connected(ceph) as connection:
        caps = ["mon", "profile rbd", "osd", "profile rbd pool=rbd2"]
        answer = monitor(connection, prefix="auth get-or-create", entity=entity, caps=caps, format="json")
        key = json.loads(answer)[0]["key"]
        with connected(ceph) as allowed:
            open_store(allowed, PLACE).write("caps", Write(create=Create.IF_ABSENT, sets={"rev": b"1"}))
        conf = {"key": key, "client_mount_timeout": "20", "rados_osd_op_timeout": "30"}
        with rados.Rados(conffile=str(ceph.conf), name=entity, conf=conf) as limited:
            store = open_store(limited, PLACE)
            with pytest.raises(AccessDeniedError, match="caps"):
                store.read("caps")
            with pytest.raises(AccessDeniedError, match="caps"):
                store.write("caps", Write(sets={"rev": b"2"}))


def test_a_closed_store_refuses(ceph: MicroCeph) -> None:
    make = Write(create=Create.IF_ABSENT, sets={"key": b"1"})
    with connected(ceph) as connection:
        store = open_store(connection, PLACE)
        store.close()
    for call in (
        lambda: store.write("closed", make),
        lambda: store.write_all([("closed", make)]),
        lambda: store.read("closed"),
        lambda: store.read_keys("closed", ["key"]),
        lambda: store.names(""),
    ):
        with pytest.raises(StoreUnavailableError, match="closed"):
            call()


def test_the_store_of_a_namespace_sees_only_it(ceph: MicroCeph) -> None:
    with connected(ceph) as connection:
        inside, outside = open_store(connection, PLACE), open_store(connection, Place("micro", "meta"))
        inside.write("only-inside", Write(create=Create.IF_ABSENT))

        assert "only-inside" in list(inside.names(""))
        assert "only-inside" not in list(outside.names(""))
