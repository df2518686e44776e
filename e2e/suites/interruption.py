"""A call in whose middle a plugin is killed, or the node's power is cut."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from e2e.harness.client import Client
from e2e.harness.guest_testbed import GuestTestbed
from e2e.harness.testbed import Testbed, TestbedError

VARIABLE = "WAYMARK_CRASH_AT"
REACH_SECONDS = 20.0

_LOOK_SECONDS = 0.05


class CrashError(Exception):
    """Something was not as it must be after a crash."""


class Method(Protocol):
    """A method of a stub."""

    def __call__(self, request: Any, timeout: float | None = None) -> object:
        """Call it."""

    def future(self, request: Any, timeout: float | None = None) -> Any:
        """Begin a call; returns a `grpc.Future`."""


Call = Callable[[Client], tuple[Method, object]]
"""Which method of a client is called with which request."""


class Interruption:
    """How calls are interrupted: here by the death of the plugin that serves them."""

    cuts_power = False

    def __init__(self, testbed: Testbed) -> None:
        self._bed = testbed

    def during(self, plugin: str, armed: str, call: Call, *, again: bool = True) -> None:
        """Make a call until it is interrupted at a point; start again what died.  Raises CrashError."""
        self.arm(plugin, self._armed(armed))
        deadline = time.monotonic() + REACH_SECONDS
        with self._bed.client(plugin) as client:
            while not self._has_struck(plugin):
                method, request = call(client)
                answer = method.future(request, timeout=REACH_SECONDS)
                while not answer.done() and not self._has_struck(plugin):
                    threading.Event().wait(_LOOK_SECONDS)
                # A caller that comes while recovery looks at the volume is asked to come again.
                if answer.done() and answer.exception() is None:
                    raise CrashError("the call succeeded; the point was not reached")
                if time.monotonic() > deadline:
                    raise CrashError(f"the point was not reached in {REACH_SECONDS:g} s")
        self._end(plugin)
        if again:
            self._bed.restart(plugin)

    def arm(self, plugin: str, armed: str) -> None:
        """Start a plugin that dies at a point."""
        os.environ[VARIABLE] = armed
        try:
            self._bed.restart(plugin)
        except TestbedError:
            if self._bed.pid(plugin) is not None:
                raise
            # Recovery begins at once, and may reach the point before the first Probe is answered.
        finally:
            del os.environ[VARIABLE]

    def _armed(self, armed: str) -> str:
        return armed

    def _has_struck(self, plugin: str) -> bool:
        return self._bed.pid(plugin) is None

    def _end(self, plugin: str) -> None:
        self._bed.await_end(plugin)


class PowerCut(Interruption):
    """The plugin stops at the point, and then the power of its node is cut: nothing at all ends in order."""

    cuts_power = True

    def __init__(self, testbed: GuestTestbed) -> None:
        super().__init__(testbed)
        self._guest_bed = testbed

    def _armed(self, armed: str) -> str:
        return f"{armed}:stop"

    def _has_struck(self, plugin: str) -> bool:
        return self._guest_bed.is_stopped(plugin)

    def _end(self, _plugin: str) -> None:
        self._guest_bed.cut_power()
        self._guest_bed.boot()
