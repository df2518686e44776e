"""The leak audit of a cluster whose volumes are all deleted: of Ceph, and of the nodes' kernels."""

from __future__ import annotations

import json
import time

from e2e.harness import audit_model, cluster_contents
from e2e.harness.audit import Audit
from e2e.kubernetes.cluster import Cluster

SETTLE_SECONDS = 60.0

_LOOK = "cat /sys/bus/rbd/devices/*/name 2>/dev/null; grep -E '/dev/rbd|csi' /proc/mounts; :"
"""What a node's kernel has of volumes: names of mapped images, and mounts."""


def take(cluster: Cluster) -> Audit:
    """Look once: no volume is wanted any more."""
    contents = cluster_contents.read(cluster.ceph)
    found, expected = audit_model.found_facts(contents), audit_model.expected_facts(contents, [])
    for node in cluster.nodes:
        lines = node.guest.run("sh", "-c", _LOOK).splitlines()
        # kubelet's own mounts of the driver's pod carry the driver's name and are no volume's.
        found[node.name] = {line for line in lines if "tmpfs" not in line and "/pods/" not in line}
        expected[node.name] = set()
    return Audit(expected, found)


def settled(cluster: Cluster, seconds: float = SETTLE_SECONDS) -> Audit:
    """Look until both sides are equal and nothing is in the trash, for at most `seconds`; the last look."""
    deadline = time.monotonic() + seconds
    while True:
        audit = take(cluster)
        if (audit.is_equal and not audit.found["trash"]) or time.monotonic() > deadline:
            return audit
        time.sleep(1.0)


def objects(cluster: Cluster) -> dict[str, list[str]]:
    """What Kubernetes still has of volumes, by kind."""
    found = {}
    for kind in ("persistentvolumes", "persistentvolumeclaims", "volumeattachments"):
        told = json.loads(cluster.kubectl("get", kind, "-A", "-o", "json"))
        found[kind] = [item["metadata"]["name"] for item in told["items"]]
    return found
