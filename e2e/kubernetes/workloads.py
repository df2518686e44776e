"""Claims and pods as users make them, many at once."""

from __future__ import annotations

import json
from collections.abc import Sequence

from e2e.kubernetes import audit, images
from e2e.kubernetes.cluster import Cluster, ClusterError

STORAGE_CLASS = "waymark-rbd"
BOUND_SECONDS = 240.0
GONE_SECONDS = 300.0


class Workloads:
    """What a suite has made in the default namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def claim(self, names: Sequence[str], storage_class: str = STORAGE_CLASS) -> None:
        """Make claims of 1 GiB, all at once."""
        self.cluster.apply(*(_claim(name, storage_class) for name in names))

    def run(self, pods: dict[str, str], node: str = "") -> None:
        """Make pods, each with the claim of that name."""
        self.cluster.apply(*(_pod(name, claim, node) for name, claim in pods.items()))

    def await_bound(self, names: Sequence[str], seconds: float = BOUND_SECONDS) -> None:
        """Wait until each claim has its volume.  Raises ClusterError."""
        wanted = set(names)
        self.cluster.until(
            f"{len(wanted)} claims to be bound",
            lambda: wanted <= {name for name, phase in self.phases("pvc").items() if phase == "Bound"},
            seconds,
        )

    def await_running(self, names: Sequence[str], seconds: float = BOUND_SECONDS) -> None:
        """Wait until each pod is ready.  Raises ClusterError."""
        self.cluster.kubectl(
            "wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), f"--timeout={seconds:.0f}s"
        )

    def phases(self, kind: str) -> dict[str, str]:
        """The phase of each object of a kind."""
        told = json.loads(self.cluster.kubectl("get", kind, "-o", "json"))
        return {item["metadata"]["name"]: item["status"].get("phase", "") for item in told["items"]}

    def write(self, pod: str, text: str) -> None:
        """Have a pod write a file that is on the disk when this returns."""
        script = f"echo {text} > /data/file && sync /data/file && sync"
        self.cluster.kubectl("exec", pod, "--", "sh", "-c", script)

    def read(self, pod: str) -> str:
        """What `write` had written."""
        return self.cluster.kubectl("exec", pod, "--", "cat", "/data/file").strip()

    def clear(self) -> None:
        """Delete all pods and claims, and wait until Kubernetes has nothing of them left."""
        self.cluster.kubectl("delete", "pod", "--all", "--grace-period=1")
        self.cluster.kubectl("delete", "pvc", "--all", "--wait=false")
        self.cluster.until(
            "all volumes to go", lambda: not any(audit.objects(self.cluster).values()), GONE_SECONDS
        )

    def nothing_left(self) -> None:
        """The audit is equal and the trash is empty.  Raises ClusterError."""
        final = audit.settled(self.cluster, 120)
        if not final.is_equal or final.found["trash"]:
            raise ClusterError(f"the audit is not equal, or not empty: {final.to_json(brief=True)}")


def _claim(name: str, storage_class: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage_class,
        },
    }


def _pod(name: str, claim: str, node: str) -> dict[str, object]:
    spec: dict[str, object] = {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": images.BUSYBOX,
                "command": ["sleep", "86400"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
