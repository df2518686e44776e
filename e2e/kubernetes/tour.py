"""A first volume in a real Kubernetes, through kubectl alone: `e2e/try --kubernetes`.

What a newcomer sees: the YAML of `deploy/examples` is applied, a pod writes, the claim is made larger, the
driver's pods are deleted while the pod goes on writing, the pod moves to the other node, all is deleted, and
nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from e2e.harness.interrupts import interrupts_clean_up
from e2e.harness.testbed import ROOT
from e2e.kubernetes import audit
from e2e.kubernetes.cluster import NAMESPACE, Cluster, ClusterError

POD, CLAIM = "waymark-pod", "waymark-pvc"
EXAMPLES = ROOT / "deploy/examples"
_WRITE = (
    "n=0; while [ ! -e /data/stop ]; do n=$((n+1)); "
    "echo $n > /data/counter && sync /data/counter || exit 1; sleep 0.05; done; echo $n"
)


class Tour:
    """One walk through; `step` prints, times and numbers what it does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._steps = 0
        self._began = time.monotonic()

    def run(self) -> None:
        """Walk.  Raises ClusterError for whatever is not as the tour says."""
        cluster = self._cluster
        with self.step("Start a Ceph and a Kubernetes with two nodes (what has to be built is built once)"):
            cluster.up()
        with self.step("kubectl apply -k deploy/overlays/lab, a Secret and a StorageClass"):
            cluster.install()
            self.show("get", "pods", "-n", NAMESPACE, "-o", "wide")
        with self.step("kubectl apply -f deploy/examples/pvc.yaml -f deploy/examples/pod.yaml"):
            self._apply("pvc.yaml", "pod.yaml")
            self._await_running()
            self.show("get", "pvc", CLAIM)
        with self.step("The pod writes a file"):
            self._exec("dd if=/dev/urandom of=/data/file bs=1M count=8 2>/dev/null && sync /data/file")
            written = self._exec("sha256sum /data/file").split()[0]
            self.say(f"8 MiB, sha256 {written[:16]}...")
        with self.step("kubectl patch pvc: 1 GiB becomes 2 GiB, while the pod runs"):
            self._expand("2Gi")
            self.say(self._exec("df -h /data").splitlines()[-1])
        with self.step(
            "The driver's pods are deleted, at the controller and on the node, while the pod writes"
        ):
            self._disturb()
        handle = cluster.kubectl("get", "pv", "-o", "jsonpath={.items[0].spec.csi.volumeHandle}")
        with self.step("The pod moves to the other node"):
            self._move()
            if self._exec("sha256sum /data/file").split()[0] != written:
                raise ClusterError("the file has changed")
            self.say("the checksum is the same")
        with self.step("kubectl delete: the pod, then the claim"):
            cluster.kubectl("delete", "pod", POD, "--grace-period=1")
            cluster.kubectl("delete", "pvc", CLAIM)
            cluster.until("the volume to go", lambda: not any(audit.objects(cluster).values()))
        with self.step("What happened to the volume, as its history tells"):
            history = ("waymark", "history", "--endpoint=unix:///csi/csi.sock", handle)
            deployment = "deployment/waymark-controller"
            self.show("exec", "-n", NAMESPACE, deployment, "-c", "driver", "--", *history)
        with self.step("Leak audit: Ceph and both nodes, against what the records say"):
            final = audit.settled(cluster)
            for line in final.to_json(brief=True).splitlines():
                self.say(line)
            if not final.is_equal:
                raise ClusterError("the audit is not equal: see the difference above")
        print(f"\nDone in {time.monotonic() - self._began:.0f} s.", flush=True)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print the title before, the time after."""
        self._steps += 1
        print(f"\n{self._steps:2}. {title}", flush=True)
        began = time.monotonic()
        yield
        print(f"    {time.monotonic() - began:.1f} s", flush=True)

    def say(self, text: str) -> None:
        """Print a line that belongs to the step."""
        print(f"    {text}", flush=True)

    def show(self, *words: str) -> None:
        """Print what kubectl prints."""
        for line in self._cluster.kubectl(*words).splitlines():
            self.say(line)

    def _apply(self, *names: str) -> None:
        files = [word for name in names for word in ("-f", str(EXAMPLES / name))]
        self._cluster.kubectl("apply", "--server-side", *files)

    def _exec(self, script: str) -> str:
        return self._cluster.kubectl("exec", POD, "--", "sh", "-c", script)

    def _await_running(self) -> None:
        self._cluster.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=180s")

    def _node(self) -> str:
        return self._cluster.kubectl("get", "pod", POD, "-o", "jsonpath={.spec.nodeName}")

    def _expand(self, size: str) -> None:
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        self._cluster.kubectl("patch", "pvc", CLAIM, "-p", json.dumps(patch))
        told = ("get", "pvc", CLAIM, "-o", "jsonpath={.status.capacity.storage}")
        self._cluster.until(f"{CLAIM} to have {size}", lambda: self._cluster.kubectl(*told) == size)

    def _disturb(self) -> None:
        cluster = self._cluster
        command = cluster.kubectl_command(["exec", POD, "--", "sh", "-c", _WRITE])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
            for component in ("controller", "node"):
                label = f"app.kubernetes.io/component={component}"
                cluster.kubectl("delete", "pod", "-n", NAMESPACE, "-l", label, "--wait=true")
                self.say(f"deleted the pods of the {component}")
            cluster.wait_for_driver()
            self._exec("touch /data/stop")
            told, problem = writer.communicate(timeout=60)
        if writer.returncode or not told.strip().isdigit():
            raise ClusterError(f"a write failed: {problem.strip() or told.strip()}")
        self.say(f"{told.strip()} writes meanwhile, none failed")
        self._exec("rm /data/stop")

    def _move(self) -> None:
        cluster = self._cluster
        before = self._node()
        cluster.kubectl("cordon", before)
        cluster.kubectl("delete", "pod", POD, "--grace-period=1")
        self._apply("pod.yaml")
        self._await_running()
        cluster.kubectl("uncordon", before)
        if self._node() == before:
            raise ClusterError(f"the pod is on {before} again")
        self.say(f"from {before} to {self._node()}")


def main() -> int:
    """Run from the command line; the exit code."""
    cluster = Cluster(pathlib.Path(tempfile.mkdtemp(prefix="waymark-kube-")))
    with interrupts_clean_up():
        try:
            Tour(cluster).run()
        except (ClusterError, subprocess.SubprocessError, OSError) as error:
            print(f"\ne2e/try: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\ne2e/try: interrupted, everything was taken down", file=sys.stderr)
            return 130
        finally:
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            cluster.down()
            shutil.rmtree(cluster.folder, ignore_errors=True)
            signal.signal(signal.SIGINT, interrupt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
