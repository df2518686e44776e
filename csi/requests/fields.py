"""Checks that fields of many requests share: presence, CSI's size limits, legal characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from csi import handles
from csi.handles import VolumeHandle
from executor.errors import InvalidError

MAX_STRING_BYTES = 128
MAX_NODE_ID_BYTES = 256
MAX_MAP_BYTES = 4096
MAX_PATH_BYTES = 4095
"""The kernel's PATH_MAX without the closing NUL."""

# The white space among the control characters is legal: CSI bans exactly these from names.
_BANNED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def check_sizes(message: Message) -> None:
    """Hold every field of a request to CSI's limits, nested ones too.

    128 bytes for a string (paths follow the operating system), 4 KiB for a map or list of strings as a whole.
    Raises InvalidError naming the field, the limit and the size found.
    """
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                _check_total(field.name, [*value.keys(), *value.values()])
                continue
            for part in value if field.is_repeated else (value,):
                check_sizes(part)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                _check_total(field.name, value)
            else:
                _check_string(field.name, value)


def present(field: str, value: str) -> str:
    """A string that must not be empty.  Raises InvalidError."""
    if not value:
        raise InvalidError(f"{field} is missing from the request")
    return value


def name(field: str, value: str) -> str:
    """A name that the caller chose: not empty, no control characters.  Raises InvalidError."""
    present(field, value)
    if _BANNED.search(value):
        raise InvalidError(f"{field} is {value!r}: control characters are not allowed in it")
    return value


def handle(field: str, value: str) -> VolumeHandle:
    """The handle in a volume id.  Raises InvalidError if empty, HandleError if no volume can have it."""
    present(field, value)
    return handles.decode(value)


def path(field: str, value: str) -> str:
    """An absolute path.  Raises InvalidError; whether it is a safe one, only the node can tell."""
    present(field, value)
    if not value.startswith("/") or "\0" in value:
        raise InvalidError(f"{field} is {value!r}: it must be an absolute path without NUL")
    return value


def _check_string(field: str, value: str) -> None:
    limit = MAX_STRING_BYTES
    if field.endswith("_path"):
        limit = MAX_PATH_BYTES
    elif field == "node_id":
        limit = MAX_NODE_ID_BYTES
    size = len(value.encode())
    if size > limit:
        raise InvalidError(f"{field} has {size} bytes; at most {limit} are allowed")


def _check_total(field: str, value: Iterable[str]) -> None:
    size = sum(len(item.encode()) for item in value)
    if size > MAX_MAP_BYTES:
        raise InvalidError(f"{field} has {size} bytes in all; at most {MAX_MAP_BYTES} are allowed")
