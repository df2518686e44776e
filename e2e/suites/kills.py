"""A controller that is killed again and again under load: `e2e/kills [--kills N] [--seed S]`.

Eight callers create and delete volumes, each retrying as the sidecars do, while the controller is killed with
SIGKILL at random moments and started again.  Every name must succeed in the end, and asking for it once more
must give the same volume.  When all volumes are deleted and purged, the audit must be equal: images, trash,
snapshots, RADOS objects and OMAP keys.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from e2e.harness import audit
from e2e.harness.client import Client, code_of, details_of, retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import Layout, Testbed
from e2e.harness.volumes import Claim

CALLERS = 8
PATIENCE_SECONDS = 120.0
"""For how long a caller goes on with one request."""

LONGEST_LIFE_SECONDS = 0.8
"""The controller is killed at a random moment of so long after it answers again."""

PURGE_SECONDS = 60.0
"""For how long the purge of what was killed half-way may take."""

FLAGS = ("--purge-interval", "1", "--recovery-interval", "2", "--trash-retention", "0")


@dataclass(slots=True)
class Tally:
    """What happened, counted by all callers."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    created: int = 0
    deleted: int = 0
    retried: int = 0
    problems: list[str] = field(default_factory=list)

    def count(self, what: str) -> None:
        """One more of these."""
        with self.lock:
            setattr(self, what, getattr(self, what) + 1)

    def complain(self, text: str) -> None:
        """Something was wrong."""
        with self.lock:
            self.problems.append(text)


class Caller:
    """One caller's volumes, one after the other."""

    def __init__(self, testbed: Testbed, number: int, seed: int, tally: Tally, stop: threading.Event) -> None:
        self._testbed = testbed
        self._number = number
        self._random = random.Random(seed + number)  # noqa: S311  a repeatable choice, no secret
        self._tally = tally
        self._stop = stop
        self._kept: dict[str, str] = {}

    def run(self) -> None:
        """Create and delete until told to stop, then delete what is left."""
        with self._testbed.client() as client:
            serial = 0
            while not self._stop.is_set():
                serial += 1
                self._one(client, Claim(self._testbed, f"pvc-{self._number}-{serial}"))
            for name, volume_id in list(self._kept.items()):
                self._delete(client, Claim(self._testbed, name), volume_id)

    def _one(self, client: Client, claim: Claim) -> None:
        try:
            made = retried(
                client.controller.CreateVolume, claim.create(), for_seconds=PATIENCE_SECONDS, told=self._told
            )
            again = retried(
                client.controller.CreateVolume, claim.create(), for_seconds=PATIENCE_SECONDS, told=self._told
            )
        except grpc.RpcError as error:
            self._tally.complain(f"create of {claim.name}: {code_of(error).name}: {details_of(error)}")
            return
        self._tally.count("created")
        if made != again:
            self._tally.complain(f"{claim.name} was answered first {made}, then {again}")
        self._kept[claim.name] = made.volume.volume_id
        if self._random.random() < 0.6:  # most go at once, some are left for the end
            self._delete(client, claim, made.volume.volume_id)

    def _delete(self, client: Client, claim: Claim, volume_id: str) -> None:
        try:
            retried(
                client.controller.DeleteVolume,
                claim.delete(volume_id),
                for_seconds=PATIENCE_SECONDS,
                told=self._told,
            )
        except grpc.RpcError as error:
            self._tally.complain(f"delete of {claim.name}: {code_of(error).name}: {details_of(error)}")
            return
        self._tally.count("deleted")
        del self._kept[claim.name]

    def _told(self, _error: grpc.RpcError) -> None:
        self._tally.count("retried")


def run(testbed: Testbed, kills: int, seed: int) -> list[str]:
    """Load and kill, delete all, audit; print the figures and return what was wrong."""
    tally, stop, began = Tally(), threading.Event(), time.monotonic()
    chance = random.Random(seed)  # noqa: S311  as above
    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(Caller(testbed, n, seed, tally, stop).run) for n in range(CALLERS)]
        try:
            for number in range(1, kills + 1):
                stop.wait(chance.uniform(0, LONGEST_LIFE_SECONDS))
                testbed.kill("controller")
                testbed.restart("controller")
                if number % 10 == 0:
                    print(f"{number} kills, {tally.created} created, {tally.deleted} deleted", flush=True)
        finally:
            stop.set()
        for caller in callers:
            caller.result()
    final = audit.settled(testbed, [], 60)
    deadline = time.monotonic() + PURGE_SECONDS
    while final.found["trash"] and time.monotonic() < deadline:
        time.sleep(0.5)
        final = audit.settled(testbed, [], 10)
    print(
        f"{kills} kills (seed {seed}) in {time.monotonic() - began:.0f} s: {tally.created} created, "
        f"{tally.deleted} deleted, {tally.retried} answers that asked for a retry"
    )
    problems = list(tally.problems)
    if not final.is_equal or final.found["trash"] or final.found["images"]:
        problems.append(f"the audit is not equal, or not empty: {final.to_json(brief=True)}")
        log = testbed.log_tail("controller", lines=2000).splitlines()
        problems += [line for line in log if '"level": "warning"' in line][-20:]
    return problems


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="of all random choices")
    asked = parser.parse_args()
    with temporary_testbed("kills", Layout(serve_flags=FLAGS)) as testbed:
        problems = run(testbed, asked.kills, asked.seed)
    for problem in problems:
        print(f"e2e/kills: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
