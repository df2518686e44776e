"""What an admin reads in `kubectl describe pvc` when something is wrong, and whether it says what to do."""

from __future__ import annotations

import base64
import json
import os
import struct
from dataclasses import dataclass
from functools import partial

from e2e.harness.testbed import CLUSTER_ID, DRIVER
from e2e.kubernetes.cluster import SECRET_NAME, Cluster
from e2e.kubernetes.workloads import Workloads

_PREFIX = "csi.storage.k8s.io/"
WRONG_SECRET = "wrong-key"  # noqa: S105  a name
TEXT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """A StorageClass that cannot work, and words that the claim's events must have."""

    name: str
    words: tuple[str, ...]
    parameters: dict[str, str]
    secret: str = SECRET_NAME


TROUBLES = (
    Trouble("unknown-pool", ("nopool", "create it or correct the name"), {"pool": "nopool"}),
    Trouble("unknown-parameter", ("frobnicate", "known are", "mounter"), {"frobnicate": "yes"}),
    Trouble("unknown-cluster", ("nocluster", "config.json"), {"clusterID": "nocluster"}),
    Trouble("wrong-key", ("refuses", "client.waymark"), {}, WRONG_SECRET),
    Trouble("secret-absent", ("no-such-secret", "not found"), {}, "no-such-secret"),
)


def check(cluster: Cluster) -> str:
    """Make a claim of each class and wait for its text.  Raises ClusterError."""
    work = Workloads(cluster)
    wrong = struct.pack("<HIIH", 1, 1_700_000_000, 0, 16) + os.urandom(16)
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": WRONG_SECRET, "namespace": "default"},
            "stringData": {"userID": "waymark", "userKey": base64.b64encode(wrong).decode()},
        },
        *(_storage_class(trouble) for trouble in TROUBLES),
    )
    for trouble in TROUBLES:
        work.claim([trouble.name], trouble.name)
    for trouble in TROUBLES:
        cluster.until(f"the text of {trouble.name}", partial(_says, cluster, trouble), TEXT_SECONDS)
    cluster.ceph.pause("osd")
    try:
        work.claim(["ceph-away"])
        away = Trouble("ceph-away", (CLUSTER_ID, "retry"), {})
        cluster.until("the text of ceph-away", partial(_says, cluster, away), TEXT_SECONDS + 60)
    finally:
        cluster.ceph.resume()
    cluster.kubectl("delete", "storageclass", *(trouble.name for trouble in TROUBLES))
    cluster.kubectl("delete", "secret", WRONG_SECRET)
    return f"{len(TROUBLES) + 1} texts name the thing and what to do"


def _says(cluster: Cluster, trouble: Trouble) -> bool:
    told = cluster.kubectl(
        *("get", "events", "-o", "json"), f"--field-selector=involvedObject.name={trouble.name},type=Warning"
    )
    texts = [item["message"] for item in json.loads(told)["items"]]
    return any(all(word in text for word in trouble.words) for text in texts)


def _storage_class(trouble: Trouble) -> dict[str, object]:
    parameters = {"clusterID": CLUSTER_ID, "pool": "rbd", **trouble.parameters}
    for purpose in ("provisioner", "node-stage"):
        parameters[f"{_PREFIX}{purpose}-secret-name"] = trouble.secret
        parameters[f"{_PREFIX}{purpose}-secret-namespace"] = "default"
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": trouble.name},
        "provisioner": DRIVER,
        "parameters": parameters,
    }
