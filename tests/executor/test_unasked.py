"""What nobody asks for: recovery, abandonment, expiry; and that one thing broken stops nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pytest

from csi.memory_images import close_image, open_image
from csi.session import DriverSession
from executor import history, recovery
from executor.errors import InUseError, PendingError, UnavailableError
from executor.model import TransactionState
from executor.operation_executor import Request
from omap import names
from omap.codec import JSON, CorruptError, SchemaTooNewError, encode
from omap.faults import Crash, Fault, FaultsAt
from omap.memory import MemoryStore
from omap.store import Create, Place, StoreError, Write
from tests.executor.audit import audit, images_found, names_in, records, shards
from tests.executor.scenarios import uuid_of
from tests.executor.world import RBD, Process, World, command


def stopped_before(world: World, point: str, name: str = "pvc-1") -> Process:
    """A process that ended right before this change of a create."""
    process = world.process()

    def stop(reached: str) -> None:
        if reached == f"create_volume.{point}":
            raise Crash(point)

    with pytest.raises(Crash):
        process.run(process.creation(command(name)), stop)
    return process


def put(world: World, place: Place, name: str, keys: Mapping[str, bytes]) -> None:
    """Change an object behind everybody's back."""
    store = MemoryStore(world.cluster, place, address="somebody")
    store.write(name, Write(sets=keys, create=Create.IF_ABSENT))


def node_keys(node: str, *, staged: bool, is_open: bool) -> dict[str, bytes]:
    """What a node says of a volume in its record."""
    transaction: dict[str, JSON] = {
        "operation": "stage_volume",
        "version": 1,
        "seq": 1,
        "holder": node,
        "request": {},
        "data": {},
        "marks": [["map", "intended"]],
        "state": "open" if is_open else "done",
        "failure": None,
        "begun": 1.0,
        "ended": None,
        "opens": [],
        "after": "staged",
    }
    keys = {names.node_tx_key(node, 1): encode(transaction)}
    if staged:
        keys[names.node_head_key(node)] = encode({"state": "staged", "data": {}, "seq": 1})
    return keys


# Abandonment


@pytest.mark.parametrize("point", ["record", "image.apply", "commit"])
def test_a_create_is_given_up_only_after_nobody_asked_for_a_long_time(point: str) -> None:
    world = World()
    stopped_before(world, point)
    process = world.process()
    process.recover()
    world.clock.advance(world.periods.abandonment - 1)
    process.recover()
    assert len(names_in(world)) == 1
    world.clock.advance(2)
    process.recover()
    process.flush()
    audit(world)
    assert names_in(world) == {}
    assert records(world) == {}
    assert images_found(world, RBD) == {}


def test_whoever_asks_starts_the_time_anew() -> None:
    world = World()
    stopped_before(world, "commit")
    process = world.process()
    process.recover()
    world.clock.advance(world.periods.abandonment - 1)

    def away(point: str) -> None:
        if point == "create_volume.commit":
            raise UnavailableError("the cluster is away")

    with pytest.raises(UnavailableError):
        process.run(process.creation(), away)
    process.recover()
    world.clock.advance(world.periods.abandonment - 1)
    process.recover()
    assert uuid_of(world)
    process.create()
    process.flush()
    audit(world)


def test_a_new_process_waits_the_whole_time_by_its_own_clock() -> None:
    world = World()
    stopped_before(world, "commit")
    world.clock.advance(world.periods.abandonment * 3)
    world.process().recover()
    assert uuid_of(world)


def test_what_was_given_up_says_so_in_its_tombstone() -> None:
    world = World()
    stopped_before(world, "commit")
    process = world.process()
    process.recover()
    world.clock.advance(world.periods.abandonment + 1)
    process.recover()
    (past,) = [
        history.of_tombstone("uuid", value)
        for keys in shards(world).values()
        for key, value in keys.items()
        if names.parse_gone_key(key)
    ]
    (entry,) = past.entries
    assert entry.transaction.state is TransactionState.REVERTED
    assert entry.transaction.failure is not None
    assert entry.transaction.failure.kind == "AbandonedError"


def test_a_delete_goes_on_without_its_caller() -> None:
    world = World()
    first = world.process()
    first.create()

    def stop(point: str) -> None:
        if point == "delete_volume.trash.apply":
            raise Crash(point)

    with pytest.raises(Crash):
        first.run(first.deletion(uuid_of(world)), stop)
    process = world.process()
    process.recover()
    process.flush()
    audit(world)
    assert names_in(world) == {}


# Poison


def transaction(**changes: JSON) -> dict[str, bytes]:
    """The keys of a record whose first transaction is of this kind."""
    fields: dict[str, JSON] = {
        "operation": "create_volume",
        "version": 1,
        "seq": 1,
        "holder": "p1",
        "request": {},
        "data": {},
        "marks": [],
        "state": "open",
        "opens": [],
        "after": "",
    }
    return {names.tx_key(1): encode({**fields, **changes})}


BROKEN = {
    "state": {names.STATE: b"floating"},
    "revision": {names.REV: b"7"},
    "transaction": {names.tx_key(1): b"{}"},
    "state of the transaction": transaction(state="lost"),
    "mark": transaction(marks=[["image"]]),
    "unknown mark": transaction(marks=[["image", "painted"]]),
    "plan of a newer version": transaction(version=9),
    "owner": {names.OWNER: b"nobody"},
    "newer schema": {names.SCHEMA_KEY: b"2"},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_one_broken_record_stops_nothing_else(broken: str) -> None:
    world = World()
    stopped_before(world, "commit", "broken")
    ((place, uuid),) = records(world)
    stopped_before(world, "commit", "other")
    name = names.record_name(uuid)
    put(world, place, name, BROKEN[broken])
    before = world.cluster.contents(place)[name]
    process = world.process()
    outcomes = []
    for settlement in process.settlements():
        for _ in range(2):
            try:
                process.run(settlement)
            except StoreError as error:
                outcomes.append(error)
            world.clock.advance(world.periods.abandonment + 1)
    assert {type(error) for error in outcomes} <= {CorruptError, SchemaTooNewError}
    assert outcomes
    assert list(names_in(world)) == ["broken"]
    with pytest.raises(UnavailableError, match="retry once the cause is gone"):
        process.create(command("broken"))
    with pytest.raises(StoreError):
        process.delete(uuid)
    assert world.cluster.contents(place)[name] == before
    process.create(command("another"))


def test_marks_that_cannot_be_read_stop_no_scan() -> None:
    world = World()
    stopped_before(world, "commit")
    shard = names.shard_name("pvc-1")
    uuid = "11111111-1111-4111-8111-111111111111"
    put(world, RBD, shard, {"open/odd": b"{}", f"open/{uuid}/x.1": b"x", f"trash/{uuid}": b"{}"})
    process = world.process()
    found = recovery.scan(process.session.store(RBD), world.clock.now())
    assert len(found.open) == 1
    assert found.due == ()
    assert len(found.corrupt) == len(["open/odd", "open/x.1", "trash"])


def test_a_tombstone_that_cannot_be_read_stays_and_stops_no_expiry() -> None:
    world = World()
    process = world.process()
    process.create()
    process.delete(uuid_of(world))
    process.purge()
    process.flush()
    uuid = "11111111-1111-4111-8111-111111111111"
    put(world, RBD, names.shard_name("pvc-1"), {f"gone/{uuid}": b"?"})
    assert process.expire() == 0
    world.clock.advance(world.periods.tombstone + 1)
    assert process.expire() == 1
    assert [key for keys in shards(world).values() for key in keys] == [f"gone/{uuid}"]


def test_a_name_that_cannot_be_read_is_refused_by_itself() -> None:
    world = World()
    put(world, RBD, names.shard_name("pvc-1"), {names.name_key("pvc-1"): b'{"uuid":"x"}'})
    process = world.process()
    with pytest.raises(UnavailableError):
        process.create()
    process.create(command("pvc-2"))


# Nodes


def with_node(*, staged: bool, is_open: bool) -> tuple[World, Process, str]:
    world = World()
    process = world.process()
    process.create()
    process.flush()
    uuid = uuid_of(world)
    put(world, RBD, names.record_name(uuid), node_keys("node-1", staged=staged, is_open=is_open))
    return world, process, uuid


@pytest.mark.parametrize(
    ("staged", "is_open", "expected"),
    [(True, False, InUseError), (False, True, PendingError), (True, True, PendingError)],
)
def test_a_volume_that_a_node_holds_is_not_deleted(
    staged: bool, is_open: bool, expected: type[Exception]
) -> None:
    world, process, uuid = with_node(staged=staged, is_open=is_open)
    with pytest.raises(expected, match="node-1"):
        process.delete(uuid)
    process.flush()
    audit(world)
    assert list(names_in(world)) == ["pvc-1"]


@pytest.mark.parametrize(("is_open", "expected"), [(False, InUseError), (True, PendingError)])
def test_a_node_that_begins_while_the_delete_begins_is_seen(is_open: bool, expected: type[Exception]) -> None:
    world = World()
    process = world.process()
    process.create()
    process.flush()
    uuid = uuid_of(world)

    def node_begins(point: str) -> None:
        if point == "delete_volume.record":
            put(world, RBD, names.record_name(uuid), node_keys("node-1", staged=True, is_open=is_open))

    with pytest.raises(expected, match="node-1"):
        process.run(process.deletion(uuid), node_begins)
    process.flush()
    audit(world)
    ((_, record),) = records(world).items()
    assert [each.state for each in record.transactions.values()] == [
        TransactionState.DONE,
        TransactionState.UNCHANGED,
    ]
    assert process.create()["uuid"] == uuid


@pytest.mark.parametrize("resumed_by", ["recovery", "retry"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_resumed_delete_looks_at_the_nodes_again(resumed_by: str, *, is_open: bool) -> None:
    """Its process ended before it looked at the nodes, one of which had begun just before."""
    faults = FaultsAt()
    first_write = deleting(faults, lambda _point: None)[2]
    world, uuid, _ = deleting(FaultsAt({first_write: Fault.CRASH_AFTER}), lambda _point: None)
    ((place, _),) = records(world)
    put(world, place, names.record_name(uuid), node_keys("node-1", staged=True, is_open=is_open))
    process = world.process()
    (settlement,) = process.settlements()
    work: Request[DriverSession] = process.deletion(uuid) if resumed_by == "retry" else settlement
    with pytest.raises(PendingError if is_open else InUseError, match="node-1"):
        process.run(work)
    process.flush()
    audit(world)
    assert process.create()["uuid"] == uuid


def deleting(faults: FaultsAt, between: Callable[[str], None]) -> tuple[World, str, int]:
    """A world whose second process deletes the volume; and which call was its first write of the record."""
    world = World()
    first = world.process()
    first.create()
    first.flush()
    uuid = uuid_of(world)
    process = world.process(faults=faults)
    with contextlib.suppress(Crash):
        process.run(process.deletion(uuid), between)
    return world, uuid, next(c.number for c in faults.calls if c.write and c.name == names.record_name(uuid))


def test_a_delete_whose_image_has_left_its_name_goes_on_whatever_nodes_say() -> None:
    world, uuid, _ = deleting(FaultsAt(), lambda _point: None)
    assert records(world)
    again = World()
    process = again.process()
    process.create()
    process.flush()

    def stop(point: str) -> None:
        if point == "delete_volume.directory":
            raise Crash(point)

    with pytest.raises(Crash):
        process.run(process.deletion(uuid), stop)
    put(again, RBD, names.record_name(uuid), node_keys("node-1", staged=True, is_open=False))
    successor = again.process()
    successor.delete(uuid)
    successor.flush()
    assert names_in(again) == {}


def test_an_image_that_a_client_has_open_is_not_deleted() -> None:
    world = World()
    process = world.process()
    process.create()
    process.flush()
    uuid = uuid_of(world)
    image_id = process.session.images(RBD).probe(f"csi-vol-{uuid}").image_id
    open_image(world.cluster, RBD, image_id, "192.0.2.7:0/1")
    with pytest.raises(InUseError, match=r"192\.0\.2\.7"):
        process.delete(uuid)
    close_image(world.cluster, RBD, image_id, "192.0.2.7:0/1")
    process.flush()
    audit(world)
    assert process.create()["uuid"] == uuid
    process.delete(uuid)
