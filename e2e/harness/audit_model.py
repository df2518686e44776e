"""What there should be, from the directory and the records, and what there is, in the same words.

Both are sets of lines in sections. The directory leads: each `name/` key means one live record and one image
with exactly its own objects; each `trash/` key one record and one trash entry; a `gone/` key means neither.
At rest there is no `open/` key, no owner, no open transaction. What a node says is staged is mapped and
mounted, and its key is kept; nothing else is. How many data objects an image has is its user's affair: they
are counted as expected when their image is.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from e2e.harness.cluster_contents import DIRECTORY, HEADER, TRASH, Contents, Location
from omap import names

Facts = dict[str, set[str]]
"""Lines by section."""

_FEATURE_OBJECT_MAP = 8
_OBJECT_MAP, _ID, _DATA = "rbd_object_map.", "rbd_id.", "rbd_data."
_INFRASTRUCTURE = frozenset({DIRECTORY, TRASH, "rbd_info", "rbd_children", "rbd_namespace", "rbd_mirroring"})
_LIBRBDS_OWN = (DIRECTORY, "state")
"""A key by which librbd forbids new images while a namespace is being removed."""
_AT_REST = "state {state}, no owner, no open transaction"
_DEVICE_PARTS = {
    "fuse": ("storage daemon", "loop device", "export", "folder"),
    "krbd": ("krbd map", "krbd file"),
}
_OPEN_STATES = frozenset({"open", "undoing"})


@dataclass(frozen=True, slots=True)
class Volume:
    """A record, as it was found."""

    uuid: str
    location: Location
    keys: Mapping[str, bytes]

    @property
    def object_name(self) -> str:
        """Name of the record's object."""
        return names.record_name(self.uuid)

    @property
    def image(self) -> str:
        """Name of the volume's image."""
        return self.keys.get(names.IMAGE_NAME, b"").decode()

    @property
    def image_id(self) -> str:
        """Ceph's id of the image, as the record has it."""
        return str(self.data.get("image_id") or self.keys.get(names.IMAGE_ID, b"").decode())

    @property
    def has_object_map(self) -> bool:
        """Whether the image was made with the feature of that name."""
        features = self.data.get("features")
        return not isinstance(features, int) or bool(features & _FEATURE_OBJECT_MAP)

    @property
    def data(self) -> Mapping[str, object]:
        """What the last successful transaction left."""
        data = _json(self.keys.get(names.HEAD, b"{}")).get("data")
        return data if isinstance(data, dict) else {}

    def summary(self) -> str:
        """State, owner and open transactions of the record, in one line."""
        owner = _json(self.keys.get(names.OWNER, b"{}")).get("instance")
        at_work = sorted(
            key
            for key, value in self.keys.items()
            if (names.parse_tx_key(key) is not None or names.parse_node_tx_key(key) is not None)
            and _json(value).get("state") in _OPEN_STATES
        )
        state = self.keys.get(names.STATE, b"?").decode()
        if owner is None and not at_work:
            return _AT_REST.format(state=state)
        return f"state {state}, owner {owner or 'nobody'}, open: {', '.join(at_work) or 'nothing'}"

    def staged_on(self) -> dict[str, Mapping[str, object]]:
        """Return the heads of the nodes that have the volume staged."""
        heads: dict[str, Mapping[str, object]] = {}
        for key, value in self.keys.items():
            parsed = names.parse_node_key(key)
            if parsed is not None and parsed[1] == "head":
                head = _json(value)
                if head.get("state") == "staged":
                    heads[parsed[0]] = head
        return heads


@dataclass(slots=True)
class Model:
    """What the directories say."""

    live: dict[str, Location] = field(default_factory=dict)
    trashed: dict[str, Location] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    """Lines for the directory keys that may be there at rest."""


def found_facts(contents: Contents) -> Facts:
    """Say what the cluster holds."""
    facts: Facts = defaultdict(set)
    for location, objects in contents.objects.items():
        for name in objects - _INFRASTRUCTURE:
            if name.startswith(_DATA):
                facts["data"].add(f"{location}: of image {name.split('.')[-2]}")
            else:
                facts["objects"].add(f"{location}: {name}")
    for (location, name), keys in contents.keys.items():
        if name.startswith(HEADER):
            facts["snapshots"].update(
                f"{location}: {name} {key}" for key in keys if key.startswith("snapshot_")
            )
        else:
            facts["keys"].update(f"{location}: {name} {key}" for key in keys if (name, key) != _LIBRBDS_OWN)
    for location, images in contents.images.items():
        facts["images"].update(f"{location}: {image}" for image in images)
    for location, entries in contents.trash.items():
        facts["trash"].update(f"{location}: {image_id} {image}" for image_id, image in entries.items())
    for volume in volumes(contents).values():
        facts["records"].add(f"{volume.location}: {volume.object_name} {volume.summary()}")
    return facts


def expected_facts(contents: Contents, handles: Iterable[str] | None) -> Facts:
    """Say what the cluster should hold; `handles`, if given, are the only volumes that should be live."""
    facts: Facts = defaultdict(set)
    model = read_directory(contents, handles)
    records = volumes(contents)
    facts["keys"] |= model.keys
    for state, places in (("live", model.live), ("trashed", model.trashed)):
        for uuid, location in places.items():
            volume = records.get(uuid, Volume(uuid, location, {}))
            _expect_volume(facts, volume, location, state, contents)
    _expect_processes(facts, contents)
    return facts


def expected_devices(contents: Contents, node: str) -> set[str]:
    """Lines for the parts of the images that a node's records call staged."""
    mounters = _mounters(contents, node)
    return {f"{uuid}: {part}" for uuid, mounter in mounters.items() for part in _DEVICE_PARTS[mounter]}


def _mounters(contents: Contents, node: str) -> dict[str, str]:
    """The mapper of each volume that a node has staged."""
    found = {}
    for uuid, volume in volumes(contents).items():
        told = volume.staged_on().get(node)
        data = told.get("data") if told is not None else None
        if isinstance(data, dict):
            found[uuid] = str(data["mounter"])
    return found


def expected_mounts(contents: Contents, node: str) -> set[tuple[str, str]]:
    """Volume and path of each mount that a node's records tell of: staging path (unless raw) and targets."""
    mounts: set[tuple[str, str]] = set()
    for uuid, volume in volumes(contents).items():
        data = volume.staged_on().get(node, {}).get("data")
        if isinstance(data, dict):
            paths = [
                *data.get("published", {}),
                *([] if data.get("access") == "block" else [data["staging_path"]]),
            ]
            mounts.update((uuid, str(path)) for path in paths)
    return mounts


def staged(contents: Contents, node: str) -> set[str]:
    """Uuids of the volumes that a node has staged."""
    return {uuid for uuid, volume in volumes(contents).items() if node in volume.staged_on()}


def volumes(contents: Contents) -> dict[str, Volume]:
    """All records by uuid."""
    found = {}
    for (location, name), keys in contents.keys.items():
        parsed = names.parse_record_name(name)
        if parsed is not None:
            found[parsed[1]] = Volume(parsed[1], location, keys)
    return found


def read_directory(contents: Contents, handles: Iterable[str] | None) -> Model:
    """Read every shard; keys that should not be there (`open/`, strangers) are left out of the model."""
    model = Model()
    allowed = None if handles is None else dict(_split(handle, contents) for handle in handles)
    model.live |= allowed or {}
    for (location, shard), keys in contents.keys.items():
        if not shard.startswith(names.SHARD_OBJECTS):
            continue
        for key, value in keys.items():
            if _takes(model, shard, key, value, allowed):
                model.keys.add(f"{location}: {shard} {key}")
    return model


def _takes(model: Model, shard: str, key: str, value: bytes, allowed: dict[str, Location] | None) -> bool:
    """Note what a directory key means; whether it may be there at rest."""
    request_name = names.parse_name_key(key)
    if request_name is not None:
        uuid = str(_json(value).get("uuid"))
        if names.shard_name(request_name) != shard or (allowed is not None and uuid not in allowed):
            return False
        model.live[uuid] = _location(value)
        return True
    trashed = names.parse_trash_key(key)
    if trashed is not None:
        model.trashed[trashed] = _location(value)
        return True
    return names.parse_gone_key(key) is not None


def _expect_volume(facts: Facts, volume: Volume, location: Location, state: str, contents: Contents) -> None:
    image, image_id = volume.image, volume.image_id or _id_by_name(contents, location, volume.image)
    kinds = (HEADER, _OBJECT_MAP) if volume.has_object_map else (HEADER,)
    facts["objects"].add(f"{location}: {volume.object_name}")
    facts["records"].add(f"{location}: {volume.object_name} {_AT_REST.format(state=state)}")
    facts["keys"].update(f"{location}: {volume.object_name} {key}" for key in _keys_at_rest(volume))
    facts["objects"].update(f"{location}: {kind}{image_id}" for kind in kinds)
    if state == "live":
        facts["images"].add(f"{location}: {image}")
        facts["objects"].add(f"{location}: {_ID}{image}")
        facts["keys"].update(f"{location}: {DIRECTORY} {key}" for key in (f"name_{image}", f"id_{image_id}"))
    else:
        facts["trash"].add(f"{location}: {image_id} {image}")
        facts["keys"].add(f"{location}: {TRASH} id_{image_id}")
    for pool, objects in contents.objects.items():
        if any(name.startswith(_DATA) and name.split(".")[-2] == image_id for name in objects):
            facts["data"].add(f"{pool}: of image {image_id}")


def _id_by_name(contents: Contents, location: Location, image: str) -> str:
    """The id in librbd's directory: a create reads nothing back, so its record has none yet."""
    value = contents.keys.get((location, DIRECTORY), {}).get(f"name_{image}", b"")
    return value[4:].decode()  # librbd puts the length before a string, in four bytes


def _keys_at_rest(volume: Volume) -> set[str]:
    """Keys that the record must have, and those it has and may."""
    must = {names.REQUEST_NAME, names.IMAGE_NAME, names.SCHEMA_KEY, names.REV, names.STATE}
    must |= {names.WRITER, names.HEAD, names.OWNER}
    may = {names.IMAGE_ID, names.VOLUME_OWNER, names.ASKED, names.FORMAT}
    return must | {
        key
        for key in volume.keys
        if key in may or names.parse_tx_key(key) is not None or names.parse_node_key(key) is not None
    }


def _expect_processes(facts: Facts, contents: Contents) -> None:
    """Shards, and what controllers and nodes say of themselves, stay; they are counted as expected."""
    for location, objects in contents.objects.items():
        for name in objects:
            if name in names.shard_names():
                facts["objects"].add(f"{location}: {name}")
            elif name.startswith((names.INSTANCE_OBJECTS, names.NODE_OBJECTS)):
                facts["objects"].add(f"{location}: {name}")
                known = {names.SCHEMA_KEY, names.REV, names.BEAT, names.TAKEN}
                facts["keys"].update(
                    f"{location}: {name} {key}"
                    for key in contents.keys.get((location, name), {})
                    if key in known or names.parse_address_key(key) is not None
                )


def _split(handle: str, contents: Contents) -> tuple[str, Location]:
    """Uuid and place of a volume handle: its last parts are the pool's number, 16 digits, and the uuid."""
    uuid, pool_id = handle[-36:], int(handle[-53:-37], base=16)
    pool = contents.pool_ids.get(pool_id, f"pool {pool_id}")
    found = volumes(contents).get(uuid)
    return uuid, found.location if found is not None and found.location.pool == pool else Location(pool, "")


def _location(value: bytes) -> Location:
    place = _json(value).get("place")
    assert isinstance(place, dict), f"a directory value names no place: {value!r}"
    return Location(str(place["pool"]), str(place["namespace"]))


def _json(value: bytes) -> dict[str, object]:
    decoded = json.loads(value)
    assert isinstance(decoded, dict)
    return decoded
