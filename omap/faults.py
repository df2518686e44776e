"""What can go wrong with a call on a memory store, and who decides it.

A lost reply, an effect that comes late and the end of the process are the three things that a transaction
must survive at each of its calls.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from omap.store import StoreError, Write


class Crash(BaseException):
    """The process ends here, and no `except Exception` may prevent it.

    Every later call on the same handle raises it too: the dead write nothing.
    """


class CallKind(enum.Enum):
    """What a call asks of the store.  A read of several pages is several calls."""

    READ = "read"
    WRITE = "write"
    NAMES = "names"


@dataclass(frozen=True, slots=True)
class Call:
    """One call on a handle; `number` counts that handle's calls from 1.

    `name` is the object's, for `NAMES` the prefix.  `write` is None unless the call is a write.
    """

    number: int
    kind: CallKind
    name: str
    write: Write | None = None


class Fault(enum.Enum):
    """What goes wrong with a call.  The last three are for writes; a read with one raises ValueError."""

    NONE = "none"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    """The effect is there, its answer reaches nobody."""
    LOSE_REPLY = "lose reply"
    """Applied as far as its conditions allow; answered `UNKNOWN`."""
    DROP = "drop"
    """Never applied; answered `UNKNOWN`."""
    APPLY_LATE = "apply late"
    """Answered `UNKNOWN`; applied, if its conditions then hold, at `MemoryCluster.deliver_late`."""


@dataclass(frozen=True, slots=True)
class ApplyLate:
    """Like `Fault.APPLY_LATE`, and by itself right after the `calls`-th later call on the cluster."""

    calls: int


Decision = Fault | ApplyLate | StoreError
"""A StoreError is raised in place of the call (in `write_all` it is that write's answer)."""


class Faults(Protocol):
    """Asked before each call what goes wrong with it."""

    def decide(self, call: Call) -> Decision:
        """What goes wrong with this call.  It runs under the cluster's lock and must not use its stores."""


class NoFaults:
    """Nothing goes wrong."""

    def decide(self, call: Call) -> Decision:
        """Always `Fault.NONE`."""
        del call
        return Fault.NONE


class FaultsAt:
    """The given decisions at the given call numbers, no fault at others; `calls` holds what was asked."""

    def __init__(self, decisions: dict[int, Decision] | None = None) -> None:
        self.decisions = dict(decisions or {})
        self.calls: list[Call] = []

    def decide(self, call: Call) -> Decision:
        """The decision at `call.number`."""
        self.calls.append(call)
        return self.decisions.get(call.number, Fault.NONE)
