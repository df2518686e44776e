"""A cluster that stops answering under load: `e2e/outage [--seconds S]`.

The OSD is stopped (SIGSTOP).  Three hundred callers go on asking: half of them for new volumes, half for the
end of volumes that are there.  Each call must be answered before its deadline with a code that makes the
caller ask again and a text that names the cluster; Probe must be answered within a second; the process must
not grow without bound.  Then the OSD goes on: everything asked for must come about, and after deleting all
the audit must be equal.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from csi.settings import DEFAULT_MAX_CALLS, DEFAULT_WORKERS
from e2e.harness import audit
from e2e.harness.client import code_of, details_of, retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import CLUSTER_ID, Layout, Testbed
from e2e.harness.volumes import Claim
from proto import csi_pb2

CALLERS = 300
CALL_SECONDS = 10.0
PAUSE_SECONDS = 1.0
PROBE_SECONDS = 1.0
RECOVERY_SECONDS = 180.0
LIBRARY_THREADS = 60
"""What librados and librbd run for the handful of connections of one identity, and gRPC for itself."""

MOST_THREADS = DEFAULT_MAX_CALLS + DEFAULT_WORKERS + LIBRARY_THREADS + 40
FLAGS = ("--purge-interval", "1", "--recovery-interval", "2", "--trash-retention", "0")
WANTED = frozenset({grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE})


@dataclass(slots=True)
class Seen:
    """What all callers saw."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    codes: collections.Counter[str] = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def answer(self, code: grpc.StatusCode | None, text: str, seconds: float) -> None:
        """One call was answered while the cluster was away."""
        with self.lock:
            self.codes[code.name if code else "OK"] += 1
            self.slowest = max(self.slowest, seconds)
            if code is None:
                return
            if code not in WANTED:
                self.problems.append(f"{code.name} after {seconds:.1f} s: {text}")
            elif CLUSTER_ID not in text:
                self.problems.append(f"the cluster is not named: {text}")


def run(testbed: Testbed, seconds: float) -> list[str]:
    """Load, stop, watch, go on, audit; print the figures and return what was wrong."""
    seen = Seen()
    with testbed.client() as client, ThreadPoolExecutor(CALLERS) as pool:
        there = [Claim(testbed, f"pvc-there-{n}") for n in range(CALLERS // 2)]
        wanted = [Claim(testbed, f"pvc-wanted-{n}") for n in range(CALLERS // 2)]
        create, delete = client.controller.CreateVolume, client.controller.DeleteVolume
        ids = [v.volume.volume_id for v in pool.map(lambda c: retried(create, c.create()), there)]
        stop = threading.Event()

        def go_on(call: Callable[..., object], request: object) -> None:
            while not stop.is_set():
                began = time.monotonic()
                code, text = None, ""
                try:
                    call(request, timeout=CALL_SECONDS)
                except grpc.RpcError as error:
                    code, text = code_of(error), details_of(error)
                seen.answer(code, text, time.monotonic() - began)
                if code is None:
                    return
                stop.wait(PAUSE_SECONDS)

        testbed.ceph.pause()
        try:
            callers = [pool.submit(go_on, create, claim.create()) for claim in wanted]
            callers += [
                pool.submit(go_on, delete, claim.delete(volume_id))
                for claim, volume_id in zip(there, ids, strict=True)
            ]
            probes, threads = _watch(testbed, seconds)
        finally:
            stop.set()
            testbed.ceph.resume()
        for caller in callers:
            caller.result()
        began = time.monotonic()
        made = list(pool.map(lambda c: retried(create, c.create(), for_seconds=RECOVERY_SECONDS), wanted))
        requests = [claim.delete(volume_id) for claim, volume_id in zip(there, ids, strict=True)]
        requests += [c.delete(v.volume.volume_id) for c, v in zip(wanted, made, strict=True)]
        list(pool.map(lambda r: retried(delete, r, for_seconds=RECOVERY_SECONDS), requests))
        resumed = time.monotonic() - began
    answers = ", ".join(f"{count} {code}" for code, count in sorted(seen.codes.items()))
    print(f"{seconds:.0f} s without the OSD, {CALLERS} callers: {answers}")
    print(f"slowest answer {seen.slowest:.1f} s of {CALL_SECONDS:.0f}, slowest Probe {max(probes):.3f} s")
    print(f"at most {threads} threads (bound {MOST_THREADS}); all done {resumed:.0f} s after it went on")
    problems = sorted(set(seen.problems))[:20]
    if max(probes) > PROBE_SECONDS:
        problems.append(f"a Probe took {max(probes):.1f} s")
    if threads > MOST_THREADS:
        problems.append(f"{threads} threads are more than {MOST_THREADS}")
    return problems + _nothing_left(testbed)


def _watch(testbed: Testbed, seconds: float) -> tuple[list[float], int]:
    """Probe again and again; how long each answer took, and the most threads that there were."""
    probes, threads = [], 0
    deadline = time.monotonic() + seconds
    status = pathlib.Path(f"/proc/{testbed.pid('controller')}/status")
    with testbed.client() as client:
        while time.monotonic() < deadline:
            began = time.monotonic()
            client.identity.Probe(csi_pb2.ProbeRequest(), timeout=30)
            probes.append(time.monotonic() - began)
            (line,) = (each for each in status.read_text().splitlines() if each.startswith("Threads:"))
            threads = max(threads, int(line.split()[1]))
            threading.Event().wait(0.2)
    return probes, threads


def _nothing_left(testbed: Testbed) -> list[str]:
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        final = audit.settled(testbed, [], 5)
        if final.is_equal and not final.found["trash"] and not final.found["images"]:
            return []
        if time.monotonic() > deadline:
            return [f"the audit is not equal, or not empty: {final.to_json(brief=True)}"]


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/outage", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: %(default)s)")
    asked = parser.parse_args()
    with temporary_testbed("outage", Layout(serve_flags=FLAGS)) as testbed:
        problems = run(testbed, asked.seconds)
    for problem in problems:
        print(f"e2e/outage: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
