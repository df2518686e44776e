"""The parts that names and keys are made of: uuids, free text made safe, and sequence numbers.

A builder raises ValueError for what it cannot spell; a parser returns None for what no builder spells.
"""

from __future__ import annotations

import re
import urllib.parse

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SEQ = re.compile(r"[0-9]{10}")
_MAX_SEQ = 9_999_999_999


def is_uuid(text: str) -> bool:
    """Whether the text is a uuid as it is written here: lower-case hex with dashes."""
    return _UUID.fullmatch(text) is not None


def checked_uuid(uuid: str) -> str:
    """The uuid itself."""
    if not is_uuid(uuid):
        raise ValueError(f"{uuid!r} is not a uuid in lower-case hex with dashes")
    return uuid


def uuid_after(prefix: str, key: str) -> str | None:
    """The uuid that is all of the key after the prefix."""
    uuid = key.removeprefix(prefix)
    return uuid if key.startswith(prefix) and is_uuid(uuid) else None


def text_component(what: str, text: str, max_bytes: int) -> str:
    """Free text of 1 to `max_bytes` bytes (UTF-8) as one component; `what` names it in the error."""
    size = len(text.encode())
    if not 0 < size <= max_bytes:
        raise ValueError(f"a {what} has 1 to {max_bytes} bytes, this one has {size}")
    return urllib.parse.quote(text, safe="")


def text_after(prefix: str, key: str) -> str | None:
    """The free text whose component is all of the key after the prefix."""
    component = key.removeprefix(prefix)
    text = urllib.parse.unquote(component)
    # Encoded again it must be the same: two spellings of one text would be two keys for it.
    if not component or not key.startswith(prefix) or urllib.parse.quote(text, safe="") != component:
        return None
    return text


def seq_component(seq: int) -> str:
    """A sequence number, 0 to 9,999,999,999, in ten digits: RADOS orders keys by bytes."""
    if not 0 <= seq <= _MAX_SEQ:
        raise ValueError(f"sequence number {seq} is not between 0 and {_MAX_SEQ}")
    return f"{seq:010d}"


def seq_after(prefix: str, key: str) -> int | None:
    """The sequence number that is all of the key after the prefix."""
    digits = key.removeprefix(prefix)
    return int(digits) if key.startswith(prefix) and _SEQ.fullmatch(digits) else None
