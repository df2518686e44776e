"""What an expansion promises beside what every disturbed operation does."""

from __future__ import annotations

import pytest

from csi.operations import expand_volume
from executor.errors import NotFoundError, OutOfRangeError, PendingError
from omap import names
from omap.codec import decode_object
from omap.faults import Crash
from tests.executor.audit import records, shards
from tests.executor.scenarios import uuid_of
from tests.executor.world import GIB, RBD, Process, World


def made() -> tuple[World, Process, str]:
    world = World()
    process = world.process()
    process.create()
    process.flush()
    return world, process, uuid_of(world)


def size(process: Process, uuid: str) -> int:
    return process.session.images(RBD).probe(f"csi-vol-{uuid}").size_bytes


def stop_at(process: Process, uuid: str, point: str, size_bytes: int) -> None:
    """The process ends before this change of an expansion."""

    def die(reached: str) -> None:
        if reached == point:
            raise Crash(point)

    with pytest.raises(Crash):
        process.run(process.expansion(uuid, size_bytes), die)


def test_a_volume_is_expanded_once_and_never_becomes_smaller() -> None:
    _, process, uuid = made()
    assert expand_volume.size_of(process.expand(uuid, 3 * GIB)) == 3 * GIB
    points = len(process.points)
    assert expand_volume.size_of(process.expand(uuid, 3 * GIB)) == 3 * GIB
    assert expand_volume.size_of(process.expand(uuid, 2 * GIB)) == 3 * GIB
    assert len(process.points) == points
    assert size(process, uuid) == 3 * GIB


@pytest.mark.parametrize("point", ["expand_volume.resize.apply", "expand_volume.commit"])
def test_a_larger_wish_that_meets_an_unfinished_expansion_gets_all_it_asks_for(point: str) -> None:
    world, process, uuid = made()
    stop_at(process, uuid, point, 2 * GIB)
    again = world.process()
    assert expand_volume.size_of(again.expand(uuid, 3 * GIB)) == 3 * GIB
    assert size(again, uuid) == 3 * GIB
    assert expand_volume.size_of(records(world)[RBD, uuid].head_data) == 3 * GIB


@pytest.mark.parametrize("point", ["expand_volume.resize.apply", "expand_volume.commit"])
def test_a_smaller_wish_that_meets_an_unfinished_expansion_is_told_what_that_made(point: str) -> None:
    world, process, uuid = made()
    stop_at(process, uuid, point, 3 * GIB)
    again = world.process()
    assert expand_volume.size_of(again.expand(uuid, 2 * GIB)) == 3 * GIB
    assert size(again, uuid) == 3 * GIB


@pytest.mark.parametrize("point", ["", "expand_volume.resize.apply", "expand_volume.commit"])
def test_the_size_that_is_told_is_the_images_own(point: str) -> None:
    """Somebody made the image larger than this asks for, by hand."""
    world, process, uuid = made()
    images = process.session.images(RBD)
    images.expand(images.probe(f"csi-vol-{uuid}").image_id, 5 * GIB)
    if point:
        stop_at(process, uuid, point, 2 * GIB)
        process = world.process()
    assert expand_volume.size_of(process.expand(uuid, 2 * GIB)) == 5 * GIB
    assert expand_volume.size_of(records(world)[RBD, uuid].head_data) == 5 * GIB


def test_a_limit_below_what_the_volume_has_is_out_of_range() -> None:
    _, process, uuid = made()
    with pytest.raises(OutOfRangeError, match="already"):
        process.expand(uuid, 0, limit_bytes=GIB // 2)
    assert size(process, uuid) == GIB


def test_a_limit_below_what_the_image_has_begins_nothing() -> None:
    world, process, uuid = made()
    images = process.session.images(RBD)
    images.expand(images.probe(f"csi-vol-{uuid}").image_id, 5 * GIB)
    points = len(process.points)
    with pytest.raises(OutOfRangeError, match=f"{5 * GIB} bytes already"):
        process.expand(uuid, 2 * GIB, limit_bytes=3 * GIB)
    assert len(process.points) == points
    assert expand_volume.size_of(records(world)[RBD, uuid].head_data) == GIB


def test_more_objects_than_an_object_map_takes_change_nothing() -> None:
    _, process, uuid = made()
    points = len(process.points)
    with pytest.raises(OutOfRangeError, match="objects"):
        process.expand(uuid, 1 << 60)
    assert len(process.points) == points


def test_what_is_left_of_a_deleted_volume_tells_its_sizes() -> None:
    world, process, uuid = made()
    process.expand(uuid, 2 * GIB)
    process.expand(uuid, 3 * GIB)
    process.delete(uuid)
    process.purge()
    (tombstone,) = (keys[key] for keys in shards(world).values() for key in keys if names.parse_gone_key(key))
    points = decode_object(tombstone, "tombstone")["points"]
    assert isinstance(points, list)
    assert [row[1] for row in points if isinstance(row, list)] == [GIB, 2 * GIB, 3 * GIB, 0, 0]


def test_an_absent_volume_has_nothing_to_expand() -> None:
    _, process, _ = made()
    assert process.expand("00000000-0000-4000-8000-0000000000aa", 2 * GIB) == {}


def test_a_deleted_volume_is_not_expanded() -> None:
    _, process, uuid = made()
    process.delete(uuid)
    with pytest.raises(NotFoundError, match="was deleted"):
        process.expand(uuid, 2 * GIB)


def test_a_volume_that_is_still_being_made_is_left_to_its_maker() -> None:
    world = World()

    def die(point: str) -> None:
        if point == "create_volume.image.apply":
            raise Crash(point)

    first = world.process()
    with pytest.raises(Crash):
        first.run(first.creation(), die)
    second = world.process()
    with pytest.raises(PendingError, match="still being made"):
        second.expand(uuid_of(world), 2 * GIB)
    second.create()
    assert expand_volume.size_of(second.expand(uuid_of(world), 2 * GIB)) == 2 * GIB


def test_an_expansion_that_cannot_begin_leaves_the_volume_as_it_was() -> None:
    """The image is away: the attempt is refused, the size stays, and a later one succeeds."""
    world, process, uuid = made()
    objects = world.cluster.pool(RBD).objects
    hidden = objects.pop((RBD.namespace, f"rbd_id.csi-vol-{uuid}"))
    with pytest.raises(NotFoundError, match="half-made"):
        process.expand(uuid, 2 * GIB)
    objects[RBD.namespace, f"rbd_id.csi-vol-{uuid}"] = hidden
    assert list(records(world)) == [(RBD, uuid)]
    assert expand_volume.size_of(process.expand(uuid, 2 * GIB)) == 2 * GIB
