"""Operations, stages and transactions: the plan, its state, and how that state is kept.

An `Operation` is the plan: named stages in a fixed order under a version.  A `Transaction` is one run of it,
as it stands in the record: which stages were intended and done, what was asked, and how it ended.  It is
frozen; a step makes a new one, which the journal writes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from executor.ports import Session
from omap.codec import JSON, CorruptError
from omap.store import Place

Object = dict[str, JSON]

S = TypeVar("S", bound=Session)


class Mark(enum.Enum):
    """How far a stage is.  A stage without a mark was not begun."""

    INTENDED = "intended"
    """Its effect may or may not have happened: only a probe tells."""
    DONE = "done"
    UNDONE = "undone"


class Verdict(enum.Enum):
    """What a probe found of a stage's effect."""

    DONE = "done"
    ABSENT = "absent"
    HALF_MADE = "half-made"


class Policy(enum.Enum):
    """What becomes of an operation that fails for good."""

    REVERT = "revert"
    """What it made is undone, and nobody is bound by it."""
    KEEP = "keep"
    """The subject stays as it was before; the attempt is recorded as unchanged."""
    FORWARD = "forward"
    """It is never given up: it only goes on."""


class SubjectState(enum.Enum):
    """State of a subject, as the record says it (`waymark/state`)."""

    CREATING = "creating"
    LIVE = "live"
    DELETING = "deleting"
    TRASHED = "trashed"
    PURGING = "purging"
    GONE = "gone"
    """Never in a record: the record itself is gone, a tombstone is left."""


class TransactionState(enum.Enum):
    """State of a transaction; the first two are open, the others final."""

    OPEN = "open"
    UNDOING = "undoing"
    DONE = "done"
    REVERTED = "reverted"
    UNCHANGED = "unchanged"
    """It failed before it changed anything, or all that it changed was put back."""

    @property
    def is_open(self) -> bool:
        """Whether work is left to do."""
        return self in (TransactionState.OPEN, TransactionState.UNDOING)


@dataclass(frozen=True, slots=True)
class Fact:
    """A key of the record that a stage changes in the write of its mark, if it holds `expected` before.

    None means absent, before or after.
    """

    key: str
    expected: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Finding:
    """A probe's answer; `data` is what the stage would have left had it ended well."""

    verdict: Verdict
    data: Mapping[str, JSON] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Intention:
    """What a stage found out before it begins, kept with its mark.

    `skip` says that there is nothing to do.
    """

    data: Mapping[str, JSON] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What a stage left behind: data for the stages after it and the facts that hold from now on."""

    data: Mapping[str, JSON] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True)
class Work(Generic[S]):
    """What a stage is given: the session to work with, the subject, the request and all data so far."""

    session: S
    uuid: str
    home: Place
    request: Mapping[str, JSON]
    data: Mapping[str, JSON]

    def text(self, key: str) -> str:
        """A text of the data.  Raises CorruptError when the recorded plan lacks it."""
        return _field(self.data, key, str)

    def number(self, key: str) -> int:
        """A number of the data.  Raises CorruptError when the recorded plan lacks it."""
        return _field(self.data, key, int)


@dataclass(frozen=True, slots=True)
class Stage(Generic[S]):
    """One step of an operation with at most one outside effect.

    * `prepare` looks, changes nothing, and runs before the intent is written.
    * `apply` makes the effect; it runs only where the effect is absent.
    * `probe` asks the world whether the effect is there.  It decides whenever a mark says no more than
      "intended".
    * `repair` clears a half-made effect away, after which it is absent.
    * `undo` takes the effect back, whole, half-made or absent, and verifies it.
    """

    name: str
    probe: Callable[[Work[S]], Finding]
    apply: Callable[[Work[S]], Done]
    undo: Callable[[Work[S]], Done] | None = None
    prepare: Callable[[Work[S]], Intention] | None = None
    repair: Callable[[Work[S]], None] | None = None


@dataclass(frozen=True, slots=True)
class Operation(Generic[S]):
    """A versioned plan.  A transaction begun under one version is ended by that version's stages.

    `during` is the subject's state while it runs and `after` the one its commit leaves (None: unchanged).
    `needs_unused`: it is refused while a node holds the subject.
    """

    name: str
    version: int
    policy: Policy
    stages: tuple[Stage[S], ...]
    during: SubjectState | None = None
    after: SubjectState | None = None
    needs_unused: bool = False

    def stage(self, name: str) -> Stage[S]:
        """The stage of this name.

        Raises CorruptError: a record that names another one was not written by this plan.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        msg = f"{self.name} version {self.version} has no stage {name!r}"
        raise CorruptError(msg)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as the history keeps it: its class and its public text."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """One run of an operation, as the record keeps it.

    `opens` are the attempts whose `open/` marks stand in the directory until it ended.  `after` is the state
    of the subject that its success leaves ("" when that is not changed), so that a scan needs no plan.
    Times are seconds since the epoch, for people.  `extra` keeps fields that a newer version wrote.
    """

    operation: str
    version: int
    seq: int
    holder: str
    request: Mapping[str, JSON]
    data: Mapping[str, JSON]
    marks: Mapping[str, Mark] = field(default_factory=dict)
    state: TransactionState = TransactionState.OPEN
    failure: Failure | None = None
    begun: float = 0.0
    ended: float | None = None
    opens: tuple[str, ...] = ()
    after: str = ""
    extra: Mapping[str, JSON] = field(default_factory=dict)

    def marked(self, stage: str, mark: Mark, data: Mapping[str, JSON] | None = None) -> Transaction:
        """With a stage's mark, and data merged in."""
        return dataclasses.replace(
            self, marks={**self.marks, stage: mark}, data={**self.data, **data} if data else self.data
        )

    def planned(self, data: Mapping[str, JSON]) -> Transaction:
        """With the data that its stages need."""
        return dataclasses.replace(self, data={**data, **self.data})

    def undoing(self, failure: Failure) -> Transaction:
        """Turned back: from here its stages are undone."""
        return dataclasses.replace(self, state=TransactionState.UNDOING, failure=self.failure or failure)

    def ended_as(self, state: TransactionState, now: float) -> Transaction:
        """Ended."""
        return dataclasses.replace(self, state=state, ended=now)

    def held_by(self, holder: str, attempt: str | None) -> Transaction:
        """Taken on by another holder, whose `open/` mark joins the others."""
        opens = self.opens if attempt is None else (*self.opens, attempt)
        return dataclasses.replace(self, holder=holder, opens=opens)

    @property
    def current_stage(self) -> str:
        """The stage at work, for messages."""
        for name, mark in reversed(tuple(self.marks.items())):
            if mark is Mark.INTENDED:
                return name
        return "undo" if self.state is TransactionState.UNDOING else "commit"

    def to_json(self) -> Object:
        """As kept in the record."""
        return {
            **self.extra,
            "operation": self.operation,
            "version": self.version,
            "seq": self.seq,
            "holder": self.holder,
            "request": dict(self.request),
            "data": dict(self.data),
            "marks": [[name, mark.value] for name, mark in self.marks.items()],
            "state": self.state.value,
            "failure": None
            if self.failure is None
            else {"kind": self.failure.kind, "text": self.failure.text},
            "begun": self.begun,
            "ended": self.ended,
            "opens": list(self.opens),
            "after": self.after,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, JSON]) -> Transaction:
        """From the record.  Raises CorruptError when a field is missing or of the wrong kind."""
        known = {f.name for f in dataclasses.fields(cls)} - {"extra"}
        failure = value.get("failure")
        begun, ended = value.get("begun"), value.get("ended")
        return cls(
            operation=_field(value, "operation", str),
            version=_field(value, "version", int),
            seq=_field(value, "seq", int),
            holder=_field(value, "holder", str),
            request=_field(value, "request", dict),
            data=_field(value, "data", dict),
            marks=_marks(_field(value, "marks", list)),
            state=_one_of(TransactionState, _field(value, "state", str)),
            failure=Failure(_field(failure, "kind", str), _field(failure, "text", str))
            if isinstance(failure, dict)
            else None,
            begun=float(begun) if isinstance(begun, int | float) else 0.0,
            ended=float(ended) if isinstance(ended, int | float) else None,
            opens=tuple(str(attempt) for attempt in _field(value, "opens", list)),
            after=_field(value, "after", str),
            extra={key: item for key, item in value.items() if key not in known},
        )


T = TypeVar("T")


def _field(value: Mapping[str, JSON], key: str, kind: type[T]) -> T:
    item = value.get(key)
    if not isinstance(item, kind):
        msg = f"a recorded transaction lacks {key!r} as {kind.__name__}"
        raise CorruptError(msg)
    return item


def _marks(rows: list[JSON]) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != len(("stage", "mark")):
            msg = "a recorded transaction holds a malformed mark"
            raise CorruptError(msg)
        marks[str(row[0])] = _one_of(Mark, str(row[1]))
    return marks


E = TypeVar("E", bound=enum.Enum)


def _one_of(kind: type[E], value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        msg = f"a recorded transaction holds {value!r}, which is no {kind.__name__} that this version knows"
        raise CorruptError(msg) from None
