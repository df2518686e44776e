"""What a CreateVolume costs the cluster: `e2e/cost [--creates N]`.

N volumes are made through the driver, 16 at a time, and as many images by librbd itself, in one run on one
cluster.  The OSD counts its operations; what the driver adds to librbd's own must stay within the bounds
below.  The speeds are told as a ratio and judged by nobody: they depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import rbd

from e2e.harness.client import retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import Layout, Testbed, TestbedError
from e2e.harness.volumes import GIB, Claim
from omap import names
from omap.rados import open_store
from omap.store import Create, Place, Write

MOST_WRITES = 3.3
MOST_READS = 0.1
AT_A_TIME = 16
FEATURES = 61
SETTLE_SECONDS = 2.5
"""More than the driver waits before it removes served marks by a write of their own."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations the OSD counted, and how long it took."""

    writes: int
    reads: int
    seconds: float


def run(testbed: Testbed, creates: int) -> list[str]:
    """Measure, print the figures, and return what is over its bound."""
    _make_shards(testbed)
    with testbed.client() as client:
        # The connection, its addresses and the place are looked at once, not for each volume.
        retried(client.controller.CreateVolume, Claim(testbed, "warm-up").create())

        def through_driver(number: int) -> None:
            retried(client.controller.CreateVolume, Claim(testbed, f"pvc-{number}").create())

        with testbed.ceph.connect() as cluster, cluster.open_ioctx("rbd2") as ioctx:

            def directly(number: int) -> None:
                rbd.RBD().create(ioctx, f"image-{number}", GIB, features=FEATURES, old_format=False)

            direct = _measure(testbed, creates, directly)
            driver = _measure(testbed, creates, through_driver)
            alone = statistics.median(_each(range(creates, creates + 50), directly))
            one_caller = statistics.median(_each(range(creates, creates + 50), through_driver))
    writes = (driver.writes - direct.writes) / creates
    reads = (driver.reads - direct.reads) / creates
    print(f"librbd alone:  {direct.writes / creates:.2f} writes, {direct.reads / creates:.2f} reads a create")
    print(f"driver:        {driver.writes / creates:.2f} writes, {driver.reads / creates:.2f} reads a create")
    print(f"driver adds:   {writes:.2f} writes (at most {MOST_WRITES}), {reads:.3f} reads ({MOST_READS})")
    print(
        f"{AT_A_TIME} at a time: driver {creates / driver.seconds:.0f}/s, librbd alone "
        f"{creates / direct.seconds:.0f}/s, ratio {direct.seconds / driver.seconds:.2f}"
    )
    print(f"one caller, median: driver {one_caller * 1000:.1f} ms, librbd alone {alone * 1000:.1f} ms")
    complaints = []
    if writes > MOST_WRITES:
        complaints.append(f"{writes:.2f} writes a create are more than {MOST_WRITES}")
    if reads > MOST_READS:
        complaints.append(f"{reads:.3f} reads a create are more than {MOST_READS}")
    return complaints


def _make_shards(testbed: Testbed) -> None:
    """Make every shard of the directory beforehand, as in a cluster that has been in use for a while."""
    with testbed.ceph.connect() as cluster:
        store = open_store(cluster, Place("measured", testbed.layout.journal_pool))
        for shard in names.shard_names():
            store.write(shard, Write(create=Create.IF_ABSENT))
        store.close()


def _measure(testbed: Testbed, count: int, create: Callable[[int], None]) -> Cost:
    before = _counted(testbed)
    began = time.monotonic()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for _ in pool.map(create, range(count)):
            pass
    seconds = time.monotonic() - began
    after = _counted(testbed)
    return Cost(after[0] - before[0], after[1] - before[1], seconds)


def _each(numbers: range, create: Callable[[int], None]) -> list[float]:
    """Seconds that each of these takes, one after the other."""
    took = []
    for number in numbers:
        began = time.monotonic()
        create(number)
        took.append(time.monotonic() - began)
    return took


def _counted(testbed: Testbed) -> tuple[int, int]:
    """Writes and reads that the OSD has counted so far, once all that is on its way has arrived."""
    threading.Event().wait(SETTLE_SECONDS)
    with testbed.ceph.connect() as cluster:
        code, told, problem = cluster.osd_command(0, json.dumps({"prefix": "perf dump"}), b"", timeout=30)
    if code:
        raise TestbedError(f"the OSD does not tell its counters: {problem}")
    counters = json.loads(told)["osd"]
    return counters["op_w"] + counters["op_rw"], counters["op_r"]


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/cost", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--creates", type=int, default=2000, help="how many volumes (default: %(default)s)")
    asked = parser.parse_args()
    with temporary_testbed("cost", Layout(serve_flags=("--recovery-interval", "600"))) as testbed:
        complaints = run(testbed, asked.creates)
    for complaint in complaints:
        print(f"e2e/cost: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
