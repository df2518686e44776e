"""One of two volumes on a node is shut out of the cluster, on the kernel's own RBD driver: `e2e/fence`.

Every map is a client of its own, so the other volume must go on writing.  The one that was shut out gives
errors, is taken off the node in the ordinary way, and has what was written before when it is staged again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time

import grpc

from e2e.harness import audit
from e2e.harness.ceph import command
from e2e.harness.guest_testbed import GuestTestbed, temporary_guest_testbed
from e2e.harness.testbed import Layout
from e2e.harness.volumes import Claim
from e2e.suites.calls import create, delete, publish, stage, unpublish, unstage

FENCE_SECONDS = 20.0
_MAPS = "/sys/bus/rbd/devices"


class FenceError(Exception):
    """Something was not as it must be with one volume shut out."""


def run(testbed: GuestTestbed) -> None:
    """Shut one of two volumes out.  Raises FenceError."""
    shut_out, other = Claim(testbed, "pvc-shut-out"), Claim(testbed, "pvc-other")
    volumes = {claim.name: create(claim) for claim in (shut_out, other)}
    with testbed.client("node") as node:
        for claim in (shut_out, other):
            stage(node, claim, volumes[claim.name])
            publish(node, claim, volumes[claim.name])
            _write(claim, "before")
        clients = _clients(testbed)
        if len(set(clients.values())) != len(volumes):
            raise FenceError(f"two maps are to be two clients of the cluster; they are {clients}")
        with testbed.ceph.connect() as cluster:
            uuid = next(uuid for uuid in clients if volumes[shut_out.name].volume_id.endswith(uuid))
            command(cluster, prefix="osd blocklist", blocklistop="add", addr=clients[uuid])
        _await_refusal(shut_out)
        _write(other, "after")
        print("one volume is shut out, and the other on the same node goes on writing", flush=True)
        for claim in (shut_out, other):
            unpublish(node, claim, volumes[claim.name])
            unstage(node, claim, volumes[claim.name])
        if left := _clients(testbed):
            raise FenceError(f"the node still maps {left}")
        for claim, file in ((shut_out, "before"), (other, "after")):
            stage(node, claim, volumes[claim.name])
            publish(node, claim, volumes[claim.name])
            if testbed.on_node("cat", str(claim.publish_path / file)) != f"{claim.name} {file}":
                raise FenceError(f"what was written to {claim.name} is not there any more")
            unpublish(node, claim, volumes[claim.name])
            unstage(node, claim, volumes[claim.name])
        print("both were taken off the node, staged again, and have what was written to them", flush=True)
    for claim in (shut_out, other):
        delete(claim, volumes[claim.name])
    last = audit.settled(testbed, [])
    if not last.is_equal:
        raise FenceError(f"the audit is not equal: {last.to_json(brief=True)}")


def _clients(testbed: GuestTestbed) -> dict[str, str]:
    """Each mapped volume's address as the cluster sees it."""
    script = f'for map in {_MAPS}/*; do [ ! -e "$map" ] || cat "$map/name" "$map/client_addr"; done'
    words = testbed.on_node("sh", "-c", script).split()
    return {name.removeprefix("csi-vol-"): address for name, address in zip(*[iter(words)] * 2, strict=True)}


def _write(claim: Claim, file: str) -> None:
    """Write a file that survives a power cut.  Raises CalledProcessError."""
    script = 'printf %s "$1" | dd of="$2" conv=fsync status=none'
    claim.testbed.on_node("sh", "-c", script, "sh", f"{claim.name} {file}", str(claim.publish_path / file))


def _await_refusal(claim: Claim) -> None:
    """Wait until what is written to a volume is refused: the OSD may learn a moment later."""
    deadline = time.monotonic() + FENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            _write(claim, "during")
        except subprocess.CalledProcessError:
            return
        threading.Event().wait(0.1)
    raise FenceError(f"{claim.name} is shut out and still takes writes after {FENCE_SECONDS:g} s")


def main() -> int:
    """Run from the command line; the exit code."""
    argparse.ArgumentParser(prog="e2e/fence", description=(__doc__ or "").partition("\n\n")[2]).parse_args()
    with temporary_guest_testbed(Layout()) as testbed:
        try:
            run(testbed)
        except (FenceError, subprocess.CalledProcessError, grpc.RpcError) as error:
            print(f"e2e/fence: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
