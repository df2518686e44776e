"""The leak audit: everything that the directory and the records say must be there, against all that is there.

The two must be equal, object by object and key by key; nothing may be left over, nothing may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from executor import history
from executor.directory import NameEntry, TrashedEntry
from executor.model import SubjectState
from executor.record import Record
from omap import names
from omap.codec import JSON
from omap.store import Place
from tests.executor.world import FAST, META, RBD, World

PLACES = (RBD, FAST, META)


def shards(world: World) -> dict[Place, dict[str, bytes]]:
    """All keys of all shards of each journal place."""
    found: dict[Place, dict[str, bytes]] = {}
    for place in PLACES:
        for name, keys in world.cluster.contents(place).items():
            if name.startswith(names.SHARD_OBJECTS):
                found.setdefault(place, {}).update(keys)
    return found


def names_in(world: World) -> dict[str, NameEntry]:
    """Every request name, with what the directory says of it."""
    found = {}
    for keys in shards(world).values():
        for key, value in keys.items():
            name = names.parse_name_key(key)
            if name is not None:
                found[name] = NameEntry.parse(value)
    return found


def records(world: World) -> dict[tuple[Place, str], Record]:
    """Every record."""
    found = {}
    for place in PLACES:
        for name, keys in world.cluster.contents(place).items():
            parsed = names.parse_record_name(name)
            if parsed is not None:
                found[place, parsed[1]] = Record.parse(name, keys)
    return found


def audit(world: World) -> None:
    """Everything at rest, and all that is found equals all that the records and the directory say."""
    directory = {key: value for keys in shards(world).values() for key, value in keys.items()}
    called = {entry.uuid: (name, entry) for name, entry in names_in(world).items()}
    trashed = {
        entry.uuid: entry
        for key, value in directory.items()
        if names.parse_trash_key(key)
        for entry in [TrashedEntry.parse(key, value)]
    }
    gone = {uuid for key in directory if (uuid := names.parse_gone_key(key))}
    assert not [key for key in directory if key.startswith(names.OPEN_PREFIX)], "a mark stands open"
    assert not world.cluster.late_writes()
    known = records(world)
    assert {uuid for _, uuid in known} == set(called) | set(trashed), "records and directory differ"
    assert not set(called) & set(trashed)
    assert not gone & (set(called) | set(trashed)), "a tombstone of what is there"
    for (place, uuid), record in known.items():
        check_record(record)
        assert record.open_transaction is None
        if uuid in called:
            assert record.state is SubjectState.LIVE
            assert called[uuid][0] == record.request_name
            assert called[uuid][1].home == place
        else:
            assert record.state is SubjectState.TRASHED
            assert trashed[uuid].home == place
    for place in PLACES:
        assert images_found(world, place) == images_expected(world, place), f"images of {place}"


def check_record(record: Record) -> None:
    """The head is what a scan gives, and the owner is somebody only while something is open."""
    assert record.head == history.scan(record.transactions.values())
    if record.open_transaction is None:
        assert record.owner.instance is None
    if record.head:
        assert record.state.value == record.head["state"] or record.open_transaction is not None


def images_expected(world: World, place: Place) -> dict[str, dict[str, str]]:
    """The objects of all images that the records of a place tell of; an image's id is told by the cluster."""
    found = images_found(world, place)
    ids = {
        name.removeprefix("rbd_id."): keys["id"] for name, keys in found.items() if name.startswith("rbd_id.")
    }
    expected: dict[str, dict[str, str]] = {}
    directory: dict[str, str] = {}
    trash: dict[str, str] = {}
    for (home, _), record in records(world).items():
        if home != place:
            continue
        image = str(record.head_data["image"])
        recorded = record.head_data.get("image_id")
        if record.state is SubjectState.LIVE:
            image_id = ids.get(image, "missing")
            assert recorded in (None, image_id)
            expected[f"rbd_id.{image}"] = {"id": image_id}
            directory |= {f"name_{image}": image_id, f"id_{image_id}": image}
        else:
            image_id = str(recorded)
            trash[f"id_{image_id}"] = json.dumps({"name": image, "state": 0})
        size = str(record.head_data["size_bytes"])
        expected[f"rbd_header.{image_id}"] = {"size": size, "features": str(record.head_data["features"])}
        expected[f"rbd_object_map.{image_id}"] = {"map": "1"}
    expected |= {name: keys for name, keys in (("rbd_directory", directory), ("rbd_trash", trash)) if keys}
    return expected


def images_found(world: World, place: Place) -> dict[str, dict[str, str]]:
    """Every object that is not the store's; objects that hold nothing are as good as absent."""
    return {
        name: {key: value.decode() for key, value in keys.items()}
        for name, keys in world.cluster.contents(place).items()
        if not name.startswith("csi.") and keys
    }


def leftovers(world: World) -> list[str]:
    """Objects that are neither shards, nor instances, nor records, nor images: there are none."""
    known = (names.SHARD_OBJECTS, names.INSTANCE_OBJECTS, "rbd_")
    return [
        name
        for place in PLACES
        for name in world.cluster.contents(place)
        if not name.startswith(known) and names.parse_record_name(name) is None
    ]


def summary(world: World) -> Any:
    """The state of the world as people see it: without uuids, times, ids of images, and who did it."""
    subjects = []
    for (place, uuid), record in records(world).items():
        data = {key: value for key, value in record.head_data.items() if key != "image_id"}
        subjects.append((str(place), record.state.value, plain(data, uuid), _transactions(record)))
    tombs = []
    for keys in shards(world).values():
        for key, value in keys.items():
            gone = names.parse_gone_key(key)
            if gone:
                past = history.of_tombstone(gone, value)
                tombs.append(
                    (
                        past.request_name,
                        [_transaction(e.transaction.operation, e.transaction.state) for e in past.entries],
                    )
                )

    # A refused request that is made again once it was undone leaves one more tombstone of the same.
    tombs = [tomb for number, tomb in enumerate(sorted(tombs)) if tomb not in sorted(tombs)[:number]]
    return sorted(subjects, key=str), tombs, sorted(names_in(world))


def result_of(result: Mapping[str, JSON]) -> str:
    """An operation's result without what differs between two volumes alike."""
    uuid = str(result.get("uuid", ""))
    return plain({key: value for key, value in result.items() if key != "image_id"}, uuid)


def plain(data: Mapping[str, JSON], uuid: str) -> str:
    """As text, with the uuid called U."""
    text = json.dumps(dict(data), sort_keys=True)
    return text.replace(uuid, "U") if uuid else text


def _transactions(record: Record) -> list[str]:
    return [_transaction(each.operation, each.state) for each in record.transactions.values()]


def _transaction(operation: str, state: Any) -> str:
    return f"{operation} {state.value}"
