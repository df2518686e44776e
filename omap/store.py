"""The contract of a state store.

A store holds objects of one **place** (cluster, pool, RADOS namespace).  An object is a set of keys with byte
values and the unit of atomicity: one `Write` applies whole or not at all.  There are no locks, because an
advisory lock stops nobody's writes; whoever must exclude others puts a condition into the very write that
matters.

A write has four answers, and they are told apart because each asks for something else from the caller:

* `APPLIED`: it is durable.
* `CONDITION_FAILED`: nothing was changed; a key held something else.  It may be the late success of one's own
earlier
  write, so the caller looks for its own mark.
* `MISSING` / `EXISTS`: the object was absent for a write that needs it, or present for an exclusive create.
* `UNKNOWN`: the reply was lost.  The write **may be applied later**, so a read settles nothing; only a
further
  conditional write does.

Anything else is an exception and means that the write was not and will not be applied.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PAGE_KEYS = 1024
"""Most keys that one read of RADOS returns; a read of fewer keys is one moment."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where objects live: a cluster (`clusterID`), a pool by name, a RADOS namespace ("": the default)."""

    cluster: str
    pool: str
    namespace: str = ""

    def __str__(self) -> str:
        inside = f"{self.pool}/{self.namespace}" if self.namespace else self.pool
        return f"cluster {self.cluster} pool {inside}"


class Answer(enum.Enum):
    """What became of a write."""

    APPLIED = "applied"
    CONDITION_FAILED = "condition failed"
    MISSING = "missing"
    EXISTS = "exists"
    UNKNOWN = "unknown"


class Create(enum.Enum):
    """Whether a write may make its object."""

    NO = "no"
    """The object must exist, else `MISSING`."""
    IF_ABSENT = "if absent"
    """Made if it is not there (a condition on a missing object would otherwise be answered `MISSING`)."""
    EXCLUSIVE = "exclusive"
    """Made by this write or not at all: `EXISTS` when it is there."""


@dataclass(frozen=True, slots=True)
class Equals:
    """The key holds exactly this value.  It is ASCII and not empty: RADOS compares nothing else reliably."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Absent:
    """The key is not there.  Sound because no value is ever empty: RADOS compares a missing key as ""."""

    key: str


Condition = Equals | Absent


@dataclass(frozen=True, slots=True)
class Write:
    """One atomic change of one object: conditions, then sets and removes, or the removal of the object.

    `remove_object` excludes sets, removes and create.  Values are never empty.  A write that breaks these
    rules raises ValueError when it is made.
    """

    conditions: tuple[Condition, ...] = ()
    sets: Mapping[str, bytes] = field(default_factory=dict)
    removes: tuple[str, ...] = ()
    create: Create = Create.NO
    remove_object: bool = False

    def __post_init__(self) -> None:
        if self.remove_object and (self.sets or self.removes or self.create is not Create.NO):
            msg = "a write that removes its object sets, removes and creates nothing"
            raise ValueError(msg)
        for key, value in self.sets.items():
            if not value:
                msg = f"key {key!r} is given an empty value"
                raise ValueError(msg)
        for condition in self.conditions:
            if isinstance(condition, Equals) and not (condition.value and condition.value.isascii()):
                msg = f"the value compared under {condition.key!r} is empty or not ASCII"
                raise ValueError(msg)
        if set(self.sets) & set(self.removes):
            msg = "a key is both set and removed"
            raise ValueError(msg)


class StoreError(Exception):
    """A store could not do what it was asked, and certainly nothing was changed.  Names the place."""


class ObjectMissingError(StoreError):
    """The object to be read is not there."""


class StoreUnavailableError(StoreError):
    """The cluster did not answer a read in time, or could not be reached.  Worth trying again."""


class PlaceMissingError(StoreError):
    """The pool (or its declared namespace) does not exist."""


class OmapUnsupportedError(StoreError):
    """The pool keeps no OMAP: it is erasure-coded (errno 95)."""


class StoreFullError(StoreError):
    """The pool or the cluster is full (errno 28), or a quota is used up (errno 122)."""


class AccessDeniedError(StoreError):
    """The identity may not do this in this place (errno 1 or 13)."""


class FencedError(StoreError):
    """This client's address is on the cluster's blocklist (errno 108).

    The one exception after which a write may nevertheless be there: it can have been applied just before the
    fence.  Who is fenced stops; the successor judges.
    """


class Store(Protocol):
    """The objects of one place.  Safe for use by many threads at once."""

    @property
    def place(self) -> Place:
        """Where these objects live."""

    def read(self, name: str, *, prefix: str = "") -> dict[str, bytes]:
        """All keys of the object that begin with `prefix`, however many pages that takes.

        A read of several pages is not one moment: a record's reader compares its `rev` before and after
        (`omap.codec` has the loop).  Raises ObjectMissingError and the other StoreErrors.
        """

    def read_keys(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Those of the keys that are there, in one read.  Raises ObjectMissingError and other StoreErrors."""

    def write(self, name: str, write: Write) -> Answer:
        """Apply one write.  Raises a StoreError when it certainly was not applied."""

    def write_all(self, writes: Sequence[tuple[str, Write]]) -> list[Answer | StoreError]:
        """Apply writes that do not depend on each other side by side; one answer each, in order.

        A StoreError of one write is returned in its place, so that the answers of the others are not lost.
        """

    def names(self, prefix: str) -> Iterator[str]:
        """Names of all objects that begin with `prefix`, in any order.  Cost: a listing of the place."""
