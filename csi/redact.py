"""Requests as they may be logged: without what the proto files mark as secret (`csi_secret`).

The mark decides, never the name of a field, so that a new secret field is hidden from the day it is declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from proto import csi_pb2

HIDDEN = "***"

_MIN_SECRET_CHARACTERS = 4
"""Shorter values are no secrets worth hiding in free text, where they would blot out half of it."""

_NAMES = frozenset({"userID"})
"""Keys of a secret whose value is a name: texts tell it, and a cluster's name may have it in it."""

Json = str | int | float | bool | list["Json"] | dict[str, "Json"]


def loggable(message: Message) -> dict[str, Json]:
    """The set fields of a message, with every secret value replaced.  The keys of a secret map stay."""
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def secret_values(message: Message) -> frozenset[str]:
    """Every text that stands in a secret field of the message, nested ones too; users' names apart."""
    return frozenset(value for value in _secrets(message) if len(value) >= _MIN_SECRET_CHARACTERS)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text with every one of these secrets replaced."""
    # Longest first: a secret that is part of another one must not leave the other's rest behind.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _field(field: FieldDescriptor, value: object) -> Json:
    is_secret = _is_secret(field)
    if _is_map(field):
        assert hasattr(value, "items")
        return {str(key): HIDDEN if is_secret else _value(item) for key, item in sorted(value.items())}
    if is_secret:
        return HIDDEN
    if field.is_repeated:
        assert isinstance(value, Iterable)
        return [_value(item) for item in value]
    return _value(value)


def _value(value: object) -> Json:
    if isinstance(value, Message):
        return loggable(value)
    if isinstance(value, (str, int, float, bool)):
        return value
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__


def _secrets(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        is_secret = _is_secret(field)
        if _is_map(field):
            items: Iterable[object] = [item for key, item in value.items() if key not in _NAMES]
        else:
            items = value if field.is_repeated else (value,)
        for item in items:
            if isinstance(item, Message):
                yield from _secrets(item)
            elif is_secret and isinstance(item, str):
                yield item


def _is_secret(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().Extensions[csi_pb2.csi_secret])


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
