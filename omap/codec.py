"""What the bytes mean: JSON values, `rev` tokens, the schema number and reading a whole record.

JSON is ASCII only, with sorted keys and no spaces, so that equal values are equal bytes and can be compared
by RADOS.  Fields that this version does not know stay in the decoded value and go back as they came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from omap import names
from omap.store import PAGE_KEYS, Store, StoreError, StoreUnavailableError

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

SCHEMA = 1
"""The newest layout of a record that this version reads and the one it writes."""

_READS_OF_A_MOVING_RECORD = 16
_REV = re.compile(rb"([0-9]{20}) ([!-~]+)")
_WORD = re.compile(r"[A-Za-z0-9_-]+")


class CorruptError(StoreError):
    """A value is not what this version or an older one writes.  Nothing was changed; a person has to look."""


class SchemaTooNewError(StoreError):
    """The object was written by a newer version in a layout that this one does not know."""


def encode(value: JSON) -> bytes:
    """The one spelling of a JSON value.  Raises ValueError for NaN and infinities, which JSON has not."""
    return json.dumps(
        value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode("ascii")


def decode(value: bytes, what: str) -> JSON:
    """The JSON value of these bytes.  Raises CorruptError, which names `what` (object and key)."""
    try:
        decoded: JSON = json.loads(value)
    except ValueError as error:  # also what UnicodeDecodeError and JSONDecodeError are
        msg = f"{what} holds {len(value)} bytes that are not JSON: damaged, or another program wrote it"
        raise CorruptError(msg) from error
    return decoded


def decode_object(value: bytes, what: str) -> dict[str, JSON]:
    """Like `decode`, for a value that is a JSON object (else CorruptError)."""
    decoded = decode(value, what)
    if not isinstance(decoded, dict):
        msg = f"{what} holds JSON, but not an object with fields"
        raise CorruptError(msg)
    return decoded


@dataclass(frozen=True, slots=True)
class Writer:
    """Who made a write: process, its transaction and the step of it.  Unique among all writes ever made.

    The parts are words of letters, digits, `-` and `_`.  Raises ValueError otherwise.
    """

    instance: str
    transaction: str
    step: str

    def __post_init__(self) -> None:
        for part in (self.instance, self.transaction, self.step):
            if not _WORD.fullmatch(part):
                msg = f"{part!r} is no part of a writer: letters, digits, '-' and '_' are"
                raise ValueError(msg)

    def __str__(self) -> str:
        return f"{self.instance}.{self.transaction}.{self.step}"

    @classmethod
    def parse(cls, text: str, what: str) -> Writer:
        """The writer that spells itself so.  Raises CorruptError, which names `what`."""
        try:
            return cls(*text.split("."))
        except (TypeError, ValueError) as error:
            msg = f"{what} names the writer {text!r}, which is not of the form instance.transaction.step"
            raise CorruptError(msg) from error


@dataclass(frozen=True, slots=True)
class Rev:
    """The revision of a record: a number that each write raises by one, and who made that write.

    With the writer in it, no two writes ever leave the same token.  So a process whose write got no reply and
    whose settling write then met another token sees from the token alone whether the winner was its own late
    write.
    """

    number: int
    writer: str

    def __bytes__(self) -> bytes:
        return b"%020d %s" % (self.number, self.writer.encode("ascii"))

    @classmethod
    def first(cls, writer: Writer | str) -> Rev:
        """The revision that the write which makes the record leaves."""
        return cls(1, str(writer))

    def next(self, writer: Writer | str) -> Rev:
        """The revision that a write on this one leaves."""
        return Rev(self.number + 1, str(writer))

    @classmethod
    def parse(cls, value: bytes, what: str) -> Rev:
        """The revision of these bytes.  Raises CorruptError, which names `what`."""
        match = _REV.fullmatch(value)
        if match is None:
            msg = f"{what} holds no revision (20 digits and a writer)"
            raise CorruptError(msg)
        return cls(int(match[1]), match[2].decode("ascii"))


def encode_schema(number: int = SCHEMA) -> bytes:
    """The value of `waymark/schema`."""
    return b"%d" % number


def check_schema(name: str, keys: Mapping[str, bytes]) -> int:
    """The schema number of an object's keys; 0 for an object without one (not ours, or not yet adopted).

    Raises SchemaTooNewError, which names the object, and CorruptError.  Other objects go on being served.
    """
    value = keys.get(names.SCHEMA_KEY)
    if value is None:
        return 0
    if not value.isdigit():
        msg = f"{name} key {names.SCHEMA_KEY} holds no number"
        raise CorruptError(msg)
    schema = int(value)
    if schema > SCHEMA:
        msg = (
            f"{name} has schema {schema}, this version knows schemas up to {SCHEMA}: "
            "it was written by a newer driver; upgrade this one to work on it"
        )
        raise SchemaTooNewError(msg)
    return schema


def read_record(store: Store, name: str) -> dict[str, bytes]:
    """All keys of a record as they were at one moment, its schema checked.

    One page is one moment.  A longer record is read until two reads in a row are equal: each group of keys
    (the record's own, each node's) has a `rev` that never returns to an earlier value, so none of them
    changed between the two.  Raises StoreUnavailableError if it never holds still, what `check_schema`
    raises, and the store's own errors.
    """
    keys = store.read(name)
    for _ in range(_READS_OF_A_MOVING_RECORD):
        if len(keys) < PAGE_KEYS:
            break
        again = store.read(name)
        if again == keys:
            break
        keys = again
    else:
        msg = f"{name} in {store.place} changed during each of {_READS_OF_A_MOVING_RECORD} reads; try again"
        raise StoreUnavailableError(msg)
    check_schema(name, keys)
    return keys
