"""The contract of an image backend, on memory and on a real Ceph, in each kind of place."""

from __future__ import annotations

import itertools

import pytest

from csi.image_objects import TrashState
from csi.images import ImageCondition, ImageProbe, TrashEntry
from executor.errors import InUseError, MismatchError, NotFoundError, PreconditionError
from omap.store import Place
from tests.images.rigs import FEATURES, MIB, WHOLE, Part, Rig, make, new_name, spec

ABSENT = ImageProbe(ImageCondition.ABSENT)
HALF_MADE = ImageProbe(ImageCondition.HALF_MADE)

# Every proper part of an image that its name still reaches.
FORMS = [
    frozenset(parts)
    for count in range(1, len(WHOLE))
    for parts in itertools.combinations(sorted(WHOLE, key=lambda part: part.value), count)
    if Part.DIRECTORY in parts or Part.ID in parts
]

# What is left of an image after each step of librbd's, with the state of its trash entry.
MOVES = {
    "entered": (WHOLE, TrashState.MOVING),
    "id removed": (WHOLE - {Part.ID}, TrashState.MOVING),
    "name removed": (WHOLE - {Part.ID, Part.DIRECTORY}, TrashState.MOVING),
    "done": (WHOLE - {Part.ID, Part.DIRECTORY}, TrashState.NORMAL),
}
PURGES = {
    "begun": {Part.HEADER, Part.OBJECT_MAP},
    "header removed": {Part.OBJECT_MAP},
    "object map removed": set[Part](),
}


def leave(rig: Rig, name: str, image_id: str, parts: frozenset[Part]) -> None:
    for part in WHOLE - parts:
        rig.drop(name, image_id, part)


def test_a_created_image_is_whole_and_says_what_it_is(rig: Rig) -> None:
    name = new_name()
    assert rig.images.probe(name) == ABSENT
    rig.images.check_place(rig.data_pool)
    rig.images.create(spec(rig, name))

    probe = rig.images.probe(name)

    assert probe.condition is ImageCondition.WHOLE
    assert (probe.size_bytes, probe.features, probe.data_pool) == (64 * MIB, FEATURES, rig.data_pool)
    assert probe.watchers == ()
    assert rig.parts(name, probe.image_id) == WHOLE


def test_an_image_without_object_map_is_whole(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name, features=1)
    assert rig.images.probe(name).features == 1
    assert not rig.images.is_allocated(name)
    rig.write(name, image_id, 8 * MIB)
    assert rig.images.is_allocated(name)


def test_a_taken_name_is_refused_and_left_as_it_is(rig: Rig) -> None:
    name = new_name()
    make(rig, name)
    before = rig.images.probe(name)
    with pytest.raises(MismatchError, match=name):
        rig.images.create(spec(rig, name))
    assert rig.images.probe(name) == before


@pytest.mark.parametrize("parts", FORMS, ids=lambda parts: "+".join(sorted(part.value for part in parts)))
def test_a_half_made_image_is_seen_refused_and_repaired(rig: Rig, parts: frozenset[Part]) -> None:
    name = new_name()
    image_id = make(rig, name)
    leave(rig, name, image_id, parts)

    assert rig.images.probe(name) == HALF_MADE
    with pytest.raises(MismatchError, match=name):
        rig.images.create(spec(rig, name))
    rig.images.repair(name)

    assert rig.images.probe(name) == ABSENT
    assert rig.parts(name, image_id) == frozenset()
    assert make(rig, name) != image_id


@pytest.mark.parametrize("parts", FORMS, ids=lambda parts: "+".join(sorted(part.value for part in parts)))
def test_a_half_made_image_can_be_removed(rig: Rig, parts: frozenset[Part]) -> None:
    name = new_name()
    image_id = make(rig, name)
    leave(rig, name, image_id, parts)
    rig.images.remove(name)
    assert rig.parts(name, image_id) == frozenset()


def test_a_whole_image_is_never_repaired(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    with pytest.raises(PreconditionError, match="whole"):
        rig.images.repair(name)
    assert rig.parts(name, image_id) == WHOLE


def test_nothing_to_repair_or_to_remove_is_success(rig: Rig) -> None:
    name = new_name()
    rig.images.repair(name)
    rig.images.remove(name)
    assert rig.images.probe(name) == ABSENT


def test_a_damaged_image_that_holds_data_is_left_to_a_person(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.write(name, image_id, 0)
    rig.drop(name, image_id, Part.ID)
    with pytest.raises(PreconditionError, match=f"{image_id}.*data"):
        rig.images.repair(name)
    assert rig.parts(name, image_id) == WHOLE - {Part.ID}


def test_a_namesake_in_the_trash_survives_a_repair(rig: Rig) -> None:
    name = new_name()
    trashed = make(rig, name)
    rig.write(name, trashed, 0)
    rig.images.trash(name, trashed, 0)
    image_id = make(rig, name)
    leave(rig, name, image_id, frozenset({Part.DIRECTORY}))

    rig.images.repair(name)

    assert rig.images.probe(name) == ABSENT
    assert rig.parts(name, trashed) == {Part.HEADER, Part.OBJECT_MAP, Part.TRASH}


@pytest.mark.parametrize("done", ["id removed"])
def test_an_image_on_its_way_to_the_trash_is_not_repaired(rig: Rig, done: str) -> None:
    name = new_name()
    image_id = make(rig, name)
    parts, state = MOVES[done]
    rig.enter_trash(name, image_id, state)
    leave(rig, name, image_id, parts)
    with pytest.raises(PreconditionError, match="way to the trash"):
        rig.images.repair(name)
    assert rig.parts(name, image_id) == parts | {Part.TRASH}


def test_a_whole_image_is_removed_with_its_data(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.write(name, image_id, 20 * MIB)
    assert len(rig.objects_of(image_id)) == 3
    rig.images.remove(name)
    assert rig.images.probe(name) == ABSENT
    assert rig.parts(name, image_id) == frozenset()
    assert rig.objects_of(image_id) == []
    assert TrashEntry(image_id, name) not in rig.images.trash_entries()


def test_an_image_becomes_larger_and_never_smaller(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.write(name, image_id, 0)
    for wanted, found in ((128, 128), (128, 128), (96, 128), (192, 192)):
        assert rig.images.expand(image_id, wanted * MIB) == found * MIB
        assert rig.images.probe(name).size_bytes == found * MIB
    assert rig.parts(name, image_id) == WHOLE
    assert rig.images.is_allocated(name)
    with pytest.raises(NotFoundError, match="1234"):
        rig.images.expand("1234", 128 * MIB)


def test_an_image_that_somebody_writes_to_becomes_larger(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    with rig.opened(name, image_id):
        rig.images.expand(image_id, 128 * MIB)
        assert rig.images.probe(name).size_bytes == 128 * MIB


def test_an_open_image_is_neither_removed_nor_trashed(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    with rig.opened(name, image_id) as address:
        assert rig.images.probe(name).watchers == (address,)
        with pytest.raises(InUseError, match=address):
            rig.images.remove(name)
        with pytest.raises(InUseError, match=address):
            rig.images.trash(name, image_id, 0)
        assert rig.parts(name, image_id) == WHOLE
    assert rig.images.probe(name).watchers == ()
    rig.images.trash(name, image_id, 0)


def test_a_trashed_image_is_found_there_and_purged(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.write(name, image_id, 0)

    rig.images.trash(name, image_id, 3600)
    rig.images.trash(name, image_id, 3600)
    assert rig.images.probe(name) == ABSENT
    assert TrashEntry(image_id, name) in rig.images.trash_entries()

    rig.images.purge(image_id)
    rig.images.purge(image_id)
    assert TrashEntry(image_id, name) not in rig.images.trash_entries()
    assert rig.parts(name, image_id) == frozenset()
    assert rig.objects_of(image_id) == []


def test_a_trashed_image_that_somebody_has_open_is_not_purged(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.write(name, image_id, 0)
    rig.images.trash(name, image_id, 0)
    with rig.opened(name, image_id) as address:
        with pytest.raises(InUseError, match=address):
            rig.images.purge(image_id)
        assert len(rig.objects_of(image_id)) == 3
    rig.images.purge(image_id)
    assert rig.objects_of(image_id) == []


def test_what_only_a_fenced_client_has_open_is_trashed_and_purged(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.write(name, image_id, 0)
    with rig.opened_by_the_fenced(name, image_id):
        rig.images.trash(name, image_id, 0)
        rig.images.purge(image_id)
        assert rig.parts(name, image_id) == frozenset()
        assert rig.objects_of(image_id) == []


def test_another_image_of_the_name_is_not_trashed(rig: Rig) -> None:
    name = new_name()
    gone = make(rig, name)
    rig.images.remove(name)
    image_id = make(rig, name)
    rig.images.trash(name, gone, 0)
    assert rig.parts(name, image_id) == WHOLE


@pytest.mark.parametrize("again", [False, True], ids=["name free", "name taken again"])
@pytest.mark.parametrize("done", MOVES)
def test_an_interrupted_move_to_the_trash_is_finished(rig: Rig, done: str, again: bool) -> None:
    name = new_name()
    image_id = make(rig, name)
    parts, state = MOVES[done]
    rig.enter_trash(name, image_id, state)
    leave(rig, name, image_id, parts)
    other = make(rig, name) if again and not parts & {Part.ID, Part.DIRECTORY} else None

    rig.images.trash(name, image_id, 0)

    assert rig.parts(name, image_id) == {Part.HEADER, Part.OBJECT_MAP, Part.TRASH}
    if other is not None:
        assert rig.parts(name, other) == WHOLE
    rig.images.purge(image_id)
    assert rig.parts(name, image_id) == frozenset()


@pytest.mark.parametrize("done", MOVES)
def test_a_purge_finishes_the_move_before_it(rig: Rig, done: str) -> None:
    name = new_name()
    image_id = make(rig, name)
    parts, state = MOVES[done]
    rig.enter_trash(name, image_id, state)
    leave(rig, name, image_id, parts)
    rig.images.purge(image_id)
    assert rig.parts(name, image_id) == frozenset()


@pytest.mark.parametrize("done", PURGES)
def test_an_interrupted_purge_is_finished(rig: Rig, done: str) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.images.trash(name, image_id, 0)
    rig.enter_trash(name, image_id, TrashState.REMOVING)
    for part in {Part.HEADER, Part.OBJECT_MAP} - PURGES[done]:
        rig.drop(name, image_id, part)
    rig.images.purge(image_id)
    assert rig.parts(name, image_id) == frozenset()


def test_what_is_not_in_the_trash_is_not_purged(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    with pytest.raises(PreconditionError, match=image_id):
        rig.images.purge(image_id)
    assert rig.parts(name, image_id) == WHOLE


def test_an_image_being_restored_is_left_to_whoever_restores_it(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    rig.images.trash(name, image_id, 0)
    rig.enter_trash(name, image_id, TrashState.RESTORING)
    with pytest.raises(PreconditionError, match="restore"):
        rig.images.purge(image_id)
    with pytest.raises(PreconditionError, match="restore"):
        rig.images.trash(name, image_id, 0)
    assert rig.parts(name, image_id) == {Part.HEADER, Part.OBJECT_MAP, Part.TRASH}


@pytest.mark.parametrize("parts", [frozenset({Part.DIRECTORY, Part.ID}), WHOLE - {Part.DIRECTORY}])
def test_a_half_made_image_is_not_trashed(rig: Rig, parts: frozenset[Part]) -> None:
    name = new_name()
    image_id = make(rig, name)
    leave(rig, name, image_id, parts)
    with pytest.raises(PreconditionError, match="half-made"):
        rig.images.trash(name, image_id, 0)
    assert rig.parts(name, image_id) == parts


def test_allocation_is_told_from_the_data_objects(rig: Rig) -> None:
    name = new_name()
    image_id = make(rig, name)
    assert not rig.images.is_allocated(name)
    rig.write(name, image_id, 60 * MIB)
    assert rig.images.is_allocated(name)
    with pytest.raises(NotFoundError, match=new_name().rpartition("-")[0]):
        rig.images.is_allocated(new_name())


@pytest.mark.parametrize(
    ("pool", "namespace", "data_pool", "error", "words"),
    [
        ("nopool", "", None, NotFoundError, "no pool nopool"),
        ("rbd", "nons", None, NotFoundError, "rbd namespace create rbd/nons"),
        ("rbd", "", "nodata", NotFoundError, "no pool nodata"),
        ("ec", "", None, PreconditionError, "dataPool"),
    ],
)
def test_a_place_that_cannot_hold_images_is_named(
    rig: Rig, pool: str, namespace: str, data_pool: str | None, error: type[Exception], words: str
) -> None:
    images = rig.session.images(Place("micro", pool, namespace))
    with pytest.raises(error, match=words):
        images.check_place(data_pool)
    wanted = spec(rig, new_name())
    with pytest.raises(error, match=words):
        images.create(type(wanted)(wanted.name, wanted.size_bytes, wanted.features, data_pool))


def test_pools_have_numbers(rig: Rig) -> None:
    number = rig.session.pool_id("rbd")
    assert rig.session.pool_name(number) == "rbd"
    with pytest.raises(NotFoundError, match="nopool"):
        rig.session.pool_id("nopool")
    with pytest.raises(NotFoundError, match="99999"):
        rig.session.pool_name(99999)


def test_a_session_does_not_fence_itself(rig: Rig) -> None:
    with pytest.raises(PreconditionError, match="itself"):
        rig.session.fence(rig.session.addresses)
    rig.session.barrier()
