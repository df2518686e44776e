"""A test bed for the length of one `with`, in a temporary folder; nothing of it is left, whatever happens."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

from e2e.harness import teardown
from e2e.harness.interrupts import interrupts_clean_up
from e2e.harness.testbed import Layout, Testbed


@contextlib.contextmanager
def temporary_testbed(purpose: str, layout: Layout | None = None) -> Iterator[Testbed]:
    """Yield a test bed that is up; `purpose` becomes part of its folder's name.

    When the block fails, the end of each plugin's log is printed before it is removed.
    """
    with folder_for(purpose) as testbed:
        testbed.up(layout)
        yield testbed


@contextlib.contextmanager
def folder_for(purpose: str) -> Iterator[Testbed]:
    """Yield a test bed that is not up yet, and take it down at the end."""
    testbed = Testbed(pathlib.Path(tempfile.mkdtemp(prefix=f"waymark-{purpose}-")))
    with taken_down(testbed):
        yield testbed


@contextlib.contextmanager
def taken_down(testbed: Testbed) -> Iterator[None]:
    """Take a test bed down at the end of the block, and remove its folder."""
    with interrupts_clean_up():
        try:
            yield
        except Exception:
            _show_logs(testbed)
            raise
        finally:
            # A second Ctrl-C must not leave a mounted volume behind.
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            teardown.down(testbed)
            shutil.rmtree(testbed.folder, ignore_errors=True)
            signal.signal(signal.SIGINT, interrupt)


def _show_logs(testbed: Testbed) -> None:
    for log in sorted((testbed.folder / "log").glob("*.log")):
        print(f"\nthe end of {log.name}:\n{testbed.log_tail(log.stem)}", file=sys.stderr)
