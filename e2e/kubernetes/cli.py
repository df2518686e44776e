"""A real Kubernetes on one machine, with the driver in it: `e2e/kube up|down|kubectl DIR [ARGS ...]`.

Two nodes with the kernel's own RBD driver, a control plane and a Ceph, all in a network namespace of its own.
What has to be built is kept and used again (`$WAYMARK_CACHE`, else `~/.cache/waymark`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from e2e.harness.interrupts import interrupts_clean_up
from e2e.kubernetes.cluster import Cluster, ClusterError


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/kube", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("command", choices=("up", "down", "kubectl"))
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGS", help="of kubectl")
    asked = parser.parse_args()
    cluster = Cluster(asked.folder)
    try:
        if asked.command == "up":
            _up(cluster)
        elif asked.command == "down":
            cluster.down()
        else:
            cluster.enter()
            command = cluster.kubectl_command(asked.words)
            os.execv(command[0], command)  # noqa: S606  its streams and its exit code are ours
    except (ClusterError, subprocess.CalledProcessError, OSError) as error:
        print(f"e2e/kube: {error}", file=sys.stderr)
        return 1
    return 0


def _up(cluster: Cluster) -> None:
    began = time.monotonic()
    with interrupts_clean_up():
        try:
            cluster.up()
            print(f"two nodes are ready after {time.monotonic() - began:.0f} s", flush=True)
            cluster.install()
        except BaseException:
            cluster.down()
            raise
    print(f"the driver is registered after {time.monotonic() - began:.0f} s", flush=True)
    print(f"e2e/kube kubectl {cluster.folder} get pods -A")


if __name__ == "__main__":
    sys.exit(main())
