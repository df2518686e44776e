"""Where everything is kept: each object, each key and what its value says.

Objects.  A volume, snapshot or group snapshot is a *subject* with a uuid.  All that is known of it lies in
one object, its *record*, in the place that its handle names.  The *directory* leads from request names to
uuids; it lies in the journal place, in 64 shards, so that no object grows without bound and writers seldom
meet.

    csi.volume.<uuid>             record of a volume (the name ceph-csi uses, as the next two)
    csi.snap.<uuid>               record of a snapshot
    csi.volume.group.<uuid>       record of a group snapshot
    csi.waymark.dir.<00-3f>       a shard: the directory of all request names with this sha256[0] & 63
    csi.waymark.instance.<id>     a controller process: its beat and the addresses of its connections
    csi.waymark.node.<id>         the same of a node plugin

Values are JSON (`omap.codec`), never empty, and ASCII, for RADOS compares nothing else reliably.  Plain text
are the revisions, `waymark/schema`, `waymark/state`, `waymark/writer` and ceph-csi's own keys.  Every JSON
value names its writer, so that a process whose reply was lost recognises its own write.

Keys of a shard.  A uuid does not tell its shard: all keys of a subject lie in the shard of its request name,
which its record holds.  A shard has no revision; each write is conditional on the very keys that it touches.

    name/<request name>           uuid, place of the record, writer (asked for while there is no record yet)
    open/<uuid>/<attempt>         a transaction at work: operation, place.  One key for each attempt
                                  (`<instance>.<n>`), so that its removal never takes away another's
    trash/<uuid>                  when the image is due for the purge, or that it is retained; place
    gone/<uuid>                   tombstone: request name, last transactions, (time, size) points, expiry;
                                  a late copy of an old create finds it

Keys of a record.

    csi.volname  csi.imagename  csi.imageid  csi.volume.owner
                                  ceph-csi's: request name, image name, image id, owner
    waymark/schema                version of this layout, decimal; a newer one is refused for this record
    alone waymark/rev                   revision, compared and raised by every write except those of nodes
    waymark/state                 state of the subject; node writes compare it ("not being deleted")
    waymark/writer                the one node that may write to the volume, or `none`; node writes compare it
    waymark/head                  current state and data, left by the last successful transaction (a cache)
    waymark/owner                 instance at work, or none, and epoch waymark/asked                 how often
    the open transaction was asked for waymark/format                the intent to make a file system with the
    proof that nothing was there;
                                  then that it was made
    waymark/cancel                a delete came while the create ran
    waymark/tx/<seq>              one transaction: operation, version, request, stages and their marks, state,
                                  error, times, holder
    waymark/use/<uuid>.<seq>      place of another subject's transaction that needs this subject
    waymark/closing               the same of a transaction that needs it alone
    waymark/node/<node id>/rev    revision of what one node says; its writes compare and raise only this one
    waymark/node/<node id>/head   what the node's last successful transaction left
    waymark/node/<node id>/tx/<seq>  one transaction of the node

Keys of an instance or node object.

    waymark/schema  waymark/rev   as in a record
    waymark/beat                  a counter that rises while transactions are open
    waymark/taken                 a successor took over
    waymark/address/<address>     a connection, written before that connection's first effect

Encoding.  `/` separates components.  Request names, node ids, attempts and addresses may hold anything, so
all but letters, digits and `_.-~` is percent-encoded (UTF-8).  A component never holds `/` and each prefix
offered here ends in `/`: no key of one name, subject or node lies under the prefix of another.  Sequence
numbers have ten digits, because RADOS orders by bytes.  The parsers return None for whatever the builders
cannot have made.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from omap.components import (
    checked_uuid,
    is_uuid,
    seq_after,
    seq_component,
    text_after,
    text_component,
    uuid_after,
)

MAX_REQUEST_NAME_BYTES = 128
MAX_NODE_ID_BYTES = 256
SHARDS = 64

NAME_PREFIX = "name/"
OPEN_PREFIX = "open/"
TRASH_PREFIX = "trash/"
GONE_PREFIX = "gone/"

REQUEST_NAME = "csi.volname"
IMAGE_NAME = "csi.imagename"
IMAGE_ID = "csi.imageid"
VOLUME_OWNER = "csi.volume.owner"

SCHEMA_KEY = "waymark/schema"
REV = "waymark/rev"
STATE = "waymark/state"
WRITER = "waymark/writer"
HEAD = "waymark/head"
OWNER = "waymark/owner"
ASKED = "waymark/asked"
FORMAT = "waymark/format"
CANCEL = "waymark/cancel"
CLOSING = "waymark/closing"
BEAT = "waymark/beat"
TAKEN = "waymark/taken"
TX_PREFIX = "waymark/tx/"
USE_PREFIX = "waymark/use/"
NODE_PREFIX = "waymark/node/"
ADDRESS_PREFIX = "waymark/address/"

SHARD_OBJECTS = "csi.waymark.dir."
INSTANCE_OBJECTS = "csi.waymark.instance."
NODE_OBJECTS = "csi.waymark.node."

_MAX_BYTES = 1024


class SubjectKind(enum.Enum):
    """What a record is about; the value is how the names of such records begin."""

    VOLUME = "csi.volume."
    SNAPSHOT = "csi.snap."
    GROUP_SNAPSHOT = "csi.volume.group."


@dataclass(frozen=True, slots=True)
class OpenMark:
    """What an `open/` key says: an attempt is at work on a subject."""

    uuid: str
    attempt: str


@dataclass(frozen=True, slots=True)
class Use:
    """What a `use/` key says: transaction `seq` of the subject `uuid` needs this one."""

    uuid: str
    seq: int


# Objects


def record_name(uuid: str, kind: SubjectKind = SubjectKind.VOLUME) -> str:
    """Object name of a subject's record.  Raises ValueError unless the uuid is lower-case hex with dashes."""
    return kind.value + checked_uuid(uuid)


def parse_record_name(name: str) -> tuple[SubjectKind, str] | None:
    """Kind and uuid of the subject whose record this object is."""
    for kind in SubjectKind:
        uuid = name.removeprefix(kind.value)
        if uuid != name and is_uuid(uuid):
            return kind, uuid
    return None


def shard_name(request_name: str) -> str:
    """Object name of the shard that holds the directory of a request name."""
    return f"{SHARD_OBJECTS}{hashlib.sha256(request_name.encode()).digest()[0] % SHARDS:02x}"


def shard_names() -> tuple[str, ...]:
    """Object names of all shards."""
    return tuple(f"{SHARD_OBJECTS}{number:02x}" for number in range(SHARDS))


def instance_name(instance: str) -> str:
    """Object name of a controller process (ValueError: empty id)."""
    return INSTANCE_OBJECTS + text_component("instance id", instance, _MAX_BYTES)


def parse_instance_name(name: str) -> str | None:
    """Id of the controller process whose object this is."""
    return text_after(INSTANCE_OBJECTS, name)


def node_name(node: str) -> str:
    """Object name of a node plugin (ValueError: empty or longer than 256 bytes)."""
    return NODE_OBJECTS + text_component("node id", node, MAX_NODE_ID_BYTES)


# Keys of a shard


def name_key(request_name: str) -> str:
    """Key under which a request name is reserved (ValueError: empty or longer than 128 bytes)."""
    return NAME_PREFIX + text_component("request name", request_name, MAX_REQUEST_NAME_BYTES)


def parse_name_key(key: str) -> str | None:
    """The request name that this key reserves."""
    return text_after(NAME_PREFIX, key)


def open_prefix(uuid: str) -> str:
    """Prefix of the marks of all attempts at work on a subject."""
    return f"{OPEN_PREFIX}{checked_uuid(uuid)}/"


def open_key(uuid: str, attempt: str) -> str:
    """Key that marks an attempt (`<instance>.<n>`) as being at work on a subject."""
    return open_prefix(uuid) + text_component("attempt", attempt, _MAX_BYTES)


def parse_open_key(key: str) -> OpenMark | None:
    """Subject and attempt of an `open/` key."""
    uuid, slash, _ = key.removeprefix(OPEN_PREFIX).partition("/")
    if not slash or not key.startswith(OPEN_PREFIX) or not is_uuid(uuid):
        return None
    attempt = text_after(open_prefix(uuid), key)
    return None if attempt is None else OpenMark(uuid, attempt)


def trash_key(uuid: str) -> str:
    """Key of a deleted subject whose image is yet to be purged."""
    return TRASH_PREFIX + checked_uuid(uuid)


def parse_trash_key(key: str) -> str | None:
    """The uuid in a `trash/` key."""
    return uuid_after(TRASH_PREFIX, key)


def gone_key(uuid: str) -> str:
    """Key of a tombstone."""
    return GONE_PREFIX + checked_uuid(uuid)


def parse_gone_key(key: str) -> str | None:
    """The uuid in a `gone/` key."""
    return uuid_after(GONE_PREFIX, key)


# Keys of a record


def tx_key(seq: int) -> str:
    """Key of the record's transaction `seq` (0 to 9,999,999,999, else ValueError)."""
    return TX_PREFIX + seq_component(seq)


def parse_tx_key(key: str) -> int | None:
    """Number of the transaction in a `waymark/tx/` key."""
    return seq_after(TX_PREFIX, key)


def use_key(uuid: str, seq: int) -> str:
    """Key by which transaction `seq` of the subject `uuid` says that it needs the record's subject."""
    return f"{USE_PREFIX}{checked_uuid(uuid)}.{seq_component(seq)}"


def parse_use_key(key: str) -> Use | None:
    """Subject and transaction of a `waymark/use/` key."""
    uuid, _, digits = key.removeprefix(USE_PREFIX).partition(".")
    if not key.startswith(USE_PREFIX) or not is_uuid(uuid) or (seq := seq_after("", digits)) is None:
        return None
    return Use(uuid, seq)


def node_prefix(node: str) -> str:
    """Prefix of everything one node says about the volume."""
    return f"{NODE_PREFIX}{text_component('node id', node, MAX_NODE_ID_BYTES)}/"


def node_rev_key(node: str) -> str:
    """Key of the `rev` that the node's writes compare and raise."""
    return node_prefix(node) + "rev"


def node_head_key(node: str) -> str:
    """Key of what the node's last successful transaction left."""
    return node_prefix(node) + "head"


def node_tx_key(node: str, seq: int) -> str:
    """Key of the node's transaction `seq`."""
    return f"{node_prefix(node)}tx/{seq_component(seq)}"


def parse_node_key(key: str) -> tuple[str, str] | None:
    """Node id and the rest (`rev`, `head`, `tx/<seq>`) of a `waymark/node/` key."""
    component, slash, rest = key.removeprefix(NODE_PREFIX).partition("/")
    node = text_after("", component)
    if not key.startswith(NODE_PREFIX) or not slash or node is None:
        return None
    if rest in {"rev", "head"} or seq_after("tx/", rest) is not None:
        return node, rest
    return None


def parse_node_tx_key(key: str) -> tuple[str, int] | None:
    """Node id and number of a node's transaction."""
    parsed = parse_node_key(key)
    seq = None if parsed is None else seq_after("tx/", parsed[1])
    return None if parsed is None or seq is None else (parsed[0], seq)


def address_key(address: str) -> str:
    """Key of a connection's address in an instance or node object."""
    return ADDRESS_PREFIX + text_component("address", address, _MAX_BYTES)


def parse_address_key(key: str) -> str | None:
    """The address in a `waymark/address/` key."""
    return text_after(ADDRESS_PREFIX, key)
