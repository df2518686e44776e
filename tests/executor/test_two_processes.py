"""Two processes at once: a zombie and its successor, two that live, a delete that meets a create at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from csi.operations import create_volume, delete_volume
from executor.crashpoints import change_points, creation_points
from executor.errors import MismatchError, PendingError, UnavailableError
from executor.record import CancelledError
from omap import names
from omap.faults import Crash, Fault, FaultsAt
from omap.store import Create, FencedError
from tests.executor.audit import audit, images_found, names_in, records
from tests.executor.scenarios import empty, settle, uuid_of
from tests.executor.world import FAST, META, RBD, Process, World, command

CREATE_POINTS = creation_points(create_volume.OPERATION)
DELETE_POINTS = change_points(delete_volume.OPERATION)


def once(point: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Do something right before a process makes its change at a point, the first time it gets there."""
    left = [act]

    def between(reached: str) -> None:
        if reached == point and left:
            left.pop()()

    return between


def stop_at(process: Process, point: str) -> None:
    """Let a create get as far as before this point and stand still there for ever."""

    def stand_still() -> None:
        raise Crash(point)

    with pytest.raises(Crash):
        process.run(process.creation(), once(point, stand_still))


def images(world: World) -> int:
    return sum(name.startswith("rbd_header") for name in images_found(world, RBD) | images_found(world, FAST))


@pytest.mark.parametrize("point", CREATE_POINTS)
def test_a_zombie_creates_nothing_once_its_successor_is_there(point: str) -> None:
    world = World()
    zombie = world.process()
    results = []

    def successor_creates() -> None:
        results.append(world.process().create())

    with pytest.raises((FencedError, UnavailableError)):
        zombie.run(zombie.creation(), once(point, successor_creates))
    last = world.process()
    assert last.create() == results[0]
    assert images(world) == 1
    settle(world, last)
    audit(world)
    empty(world, last)


@pytest.mark.parametrize("point", DELETE_POINTS)
def test_a_zombie_deletes_nothing_once_its_successor_is_there(point: str) -> None:
    world = World()
    first = world.process()
    first.create()
    first.flush()
    uuid = uuid_of(world)
    zombie = world.process()
    with pytest.raises((FencedError, UnavailableError)):
        zombie.run(zombie.deletion(uuid), once(point, lambda: world.process().delete(uuid)))
    last = world.process()
    settle(world, last)
    audit(world)
    empty(world, last)


def test_a_predecessor_is_shut_out_before_anything_else_is_done() -> None:
    world = World()
    stop_at(world.process(), "create_volume.commit")
    successor = world.process()
    successor.create()
    fence = successor.points.index("instance.fence")
    assert all(point.startswith("instance.") for point in successor.points[:fence])
    assert world.cluster.fenced() == {"127.0.0.1:0/11", "127.0.0.1:0/12"}


def test_a_predecessor_is_shut_out_of_the_place_where_its_record_may_still_land() -> None:
    """The name is asked for in another pool; the first attempt's record is still on its way."""
    world = World(journal_pool=META.pool)
    record_call = _number_of_the_record_call()
    first = world.process(
        faults=FaultsAt({record_call: Fault.APPLY_LATE, record_call + 1: Fault.CRASH_BEFORE})
    )
    with pytest.raises(Crash):
        first.create(command(pool=RBD.pool))
    assert world.cluster.late_writes() == 1
    second = world.process()
    second.create(command(pool=FAST.pool))
    world.cluster.deliver_late()
    settle(world, second)
    audit(world)
    assert [place for place, _ in records(world)] == [FAST]


def _number_of_the_record_call() -> int:
    world = World(journal_pool=META.pool)
    faults = FaultsAt()
    world.process(faults=faults).create()
    return next(call.number for call in faults.calls if call.write and call.name.startswith("csi.volume."))


@pytest.mark.parametrize("point", CREATE_POINTS[1:])
def test_another_living_process_is_never_taken_over(point: str) -> None:
    world = World()
    living = world.process("a")
    other = world.process("b")

    def other_tries() -> None:
        with pytest.raises(PendingError, match=living.name):
            other.create()
        other.recover()
        world.clock.advance(world.periods.abandonment + 1)
        other.recover()

    result = living.run(living.creation(), once(point, other_tries))
    assert other.create() == result
    assert images(world) == 1
    living.flush()
    settle(world, other)
    audit(world)


@pytest.mark.parametrize("point", CREATE_POINTS[2:])
def test_a_delete_takes_back_a_create_at_work_in_another_process(point: str) -> None:
    world = World()
    living = world.process("a")
    other = world.process("b")

    def delete() -> None:
        with pytest.raises(PendingError, match="take everything back"):
            other.delete(uuid_of(world))

    with pytest.raises(CancelledError):
        living.run(living.creation(), once(point, delete))
    living.flush()
    audit(world)
    assert images(world) == 0
    assert names_in(world) == {}
    assert records(world) == {}


@pytest.mark.parametrize("point", CREATE_POINTS[2:])
def test_a_delete_takes_back_a_create_at_work_in_its_own_process(point: str) -> None:
    world = World()
    process = world.process()

    def delete() -> None:
        change = process.deletion(uuid_of(world))
        with pytest.raises(PendingError):
            process.run(change)
        with pytest.raises(PendingError, match="take everything back"):
            process.cancel(change)

    with pytest.raises(CancelledError):
        process.run(process.creation(), once(point, delete))
    process.flush()
    audit(world)
    assert records(world) == {}
    assert images(world) == 0


def test_a_wish_is_kept_for_the_successor_of_a_create_that_stopped() -> None:
    world = World()
    first = world.process("a")
    stop_at(first, "create_volume.commit")
    with pytest.raises(PendingError):
        world.process("b").delete(uuid_of(world))
    successor = world.process("a")
    successor.recover()
    successor.flush()
    audit(world)
    assert records(world) == {}
    assert images(world) == 0


def test_a_cancelled_create_that_is_asked_for_again_is_made_anew() -> None:
    world = World()
    stop_at(world.process("a"), "create_volume.commit")
    before = uuid_of(world)
    with pytest.raises(PendingError):
        world.process("b").delete(before)
    successor = world.process("a")
    assert successor.create()["uuid"] != before
    successor.flush()
    audit(world)
    assert images(world) == 1


def test_a_wish_that_comes_too_late_is_not_left() -> None:
    world = World()
    process = world.process()
    process.create()
    process.flush()
    change = process.deletion(uuid_of(world))
    running, _ = process.context.keys.admit(change.key, "create_volume", "pvc-1", {}, lambda _request: True)
    process.cancel(change)
    process.context.keys.leave(running)
    audit(world)
    process.delete(uuid_of(world))
    running, _ = process.context.keys.admit(change.key, "create_volume", "pvc-1", {}, lambda _request: True)
    process.cancel(change)
    process.context.keys.leave(running)
    process.purge()
    running, _ = process.context.keys.admit(change.key, "create_volume", "pvc-1", {}, lambda _request: True)
    process.cancel(change)
    process.context.keys.leave(running)
    process.flush()
    audit(world)


def test_at_rest_anybody_goes_on() -> None:
    """A create that failed for a while is nobody's; another living process finishes it."""
    world = World()
    first = world.process("a")
    unavailable = once("create_volume.image.apply", lambda: _away(first))
    with pytest.raises(UnavailableError):
        first.run(first.creation(), unavailable)
    ((_, record),) = records(world).items()
    assert record.owner.instance is None
    other = world.process("b")
    other.create()
    first.flush()
    other.flush()
    audit(world)
    assert images(world) == 1


def _away(process: Process) -> None:
    raise UnavailableError("the cluster is away")


@pytest.mark.parametrize(
    "change", [{"size_bytes": 2 << 30, "required_bytes": 2 << 30}, {"fs_type": "xfs"}, {"pool": FAST.pool}]
)
def test_one_name_is_one_volume(change: dict[str, Any]) -> None:
    world = World(journal_pool=META.pool)
    stop_at(world.process(), "create_volume.commit")
    process = world.process()
    with pytest.raises(PendingError, match="earlier request that differs"):
        process.create(command(**change))
    first = process.create()
    with pytest.raises(MismatchError, match="differs"):
        process.create(command(**change))
    assert process.create() == first
    assert images(world) == 1
    process.flush()
    audit(world)


def test_a_volume_that_is_being_deleted_is_not_handed_out() -> None:
    world = World()
    process = world.process()
    process.create()
    uuid = uuid_of(world)

    def stop() -> None:
        raise Crash("stop")

    with pytest.raises(Crash):
        process.run(process.deletion(uuid), once("delete_volume.trash.apply", stop))
    successor = world.process()
    with pytest.raises(PendingError, match="deleting"):
        successor.create()
    successor.recover()
    successor.create()
    assert uuid_of_live(world) != uuid


def uuid_of_live(world: World) -> str:
    (entry,) = names_in(world).values()
    return entry.uuid


def test_a_record_that_somebody_else_moved_on_is_left_to_them() -> None:
    """Two living processes take on the same create that is at rest; the slower one writes nothing more."""
    world = World()
    first = world.process("a")
    with pytest.raises(UnavailableError):
        first.run(first.creation(), once("create_volume.image.apply", lambda: _away(first)))
    slow, quick = world.process("b"), world.process("c")
    with pytest.raises(PendingError, match=r"taken over|meanwhile|moved"):
        slow.run(slow.creation(), once("create_volume.adopt", quick.create))
    assert images(world) == 1
    for process in (first, slow, quick):
        process.flush()
    slow.recover()
    slow.flush()
    audit(world)


def test_records_are_only_written_on_the_condition_of_their_revision() -> None:
    world = World()
    faults = FaultsAt()
    process = world.process(faults=faults)
    process.create()
    process.delete(uuid_of(world))
    process.purge()
    writes = [call.write for call in faults.calls if call.write and call.name.startswith("csi.volume.")]
    made, *changed = writes
    assert made.create is Create.EXCLUSIVE
    assert len(changed) == len(["commit", "delete", "commit", "purge", "remove"])
    for write in changed:
        assert [condition.key for condition in write.conditions] == [names.REV]
