"""Many volumes, and faults, in a real Kubernetes: `e2e/kube-suite [--on DIR] [TEST ...]`.

Each test ends with everything deleted and the audit equal to the model.  Without `--on`, a cluster is made
for it and taken down at the end.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from e2e.harness.interrupts import interrupts_clean_up
from e2e.harness.testbed import ROOT
from e2e.kubernetes import texts
from e2e.kubernetes.cluster import NAMESPACE, Cluster, ClusterError
from e2e.kubernetes.workloads import Workloads

MANY_CLAIMS, MANY_PODS = 100, 20
FAULTY_CLAIMS = 20
ABANDON_SECONDS = 75.0
"""More than `--abandon-after` of the overlay `lab` and a round of recovery."""

_CONTROLLERS = "app.kubernetes.io/component=controller"
_NODES = "app.kubernetes.io/component=node"


def many(cluster: Cluster) -> str:
    """A hundred claims at once, and twenty pods on them."""
    work = Workloads(cluster)
    claims = [f"many-{number}" for number in range(MANY_CLAIMS)]
    began = time.monotonic()
    work.claim(claims)
    work.await_bound(claims)
    bound = time.monotonic() - began
    pods = {f"pod-{number}": claims[number] for number in range(MANY_PODS)}
    work.run(pods)
    work.await_running(list(pods), 400)
    running = time.monotonic() - began - bound
    return f"{MANY_CLAIMS} claims bound in {bound:.0f} s, {MANY_PODS} pods running in {running:.0f} s more"


def controller_killed(cluster: Cluster) -> str:
    """The controller's processes are killed in the middle of twenty creates."""
    work = Workloads(cluster)
    claims = [f"killed-{number}" for number in range(FAULTY_CLAIMS)]
    work.claim(claims)
    for node in cluster.nodes:
        node.guest.run("pkill", "-KILL", "-f", "waymark serve --controller", check=False)
    work.await_bound(claims)
    return f"{len(claims)} claims bound"


def controller_deleted(cluster: Cluster) -> str:
    """The controller's pods are deleted gracefully in the middle of twenty creates."""
    work = Workloads(cluster)
    claims = [f"deleted-{number}" for number in range(FAULTY_CLAIMS)]
    work.claim(claims)
    cluster.kubectl("delete", "pod", "-n", NAMESPACE, "-l", _CONTROLLERS, "--wait=false")
    work.await_bound(claims)
    return f"{len(claims)} claims bound"


def leaders_moved(cluster: Cluster) -> str:
    """The leader of each sidecar is made another one in the middle."""
    work = Workloads(cluster)
    claims = [f"moved-{number}" for number in range(FAULTY_CLAIMS)]
    work.claim(claims)
    leases = cluster.kubectl("get", "lease", "-n", NAMESPACE, "-o", "name").split()
    cluster.kubectl("delete", "-n", NAMESPACE, *leases)
    work.await_bound(claims)
    return f"{len(leases)} leases deleted, {len(claims)} claims bound"


def deleted_while_pending(cluster: Cluster) -> str:
    """Ceph is frozen, ten claims are deleted before they are bound, and Ceph thaws."""
    work = Workloads(cluster)
    claims = [f"pending-{number}" for number in range(10)]
    cluster.ceph.pause("osd")
    try:
        work.claim(claims)
        told = partial(cluster.kubectl, "get", "events", "-o", "json")
        cluster.until("the provisioner to have asked", lambda: "Provisioning" in told())
        time.sleep(5)
        cluster.kubectl("delete", "pvc", *claims, "--wait=false")
    finally:
        cluster.ceph.resume()
    # Nobody may ask for these volumes any more: what was begun is then taken back after the time for that.
    time.sleep(ABANDON_SECONDS)
    return "10 claims deleted while Ceph was away"


def node_plugin_killed(cluster: Cluster) -> str:
    """The node plugins are killed again and again while pods come and go."""
    work = Workloads(cluster)
    claims = [f"plugin-{number}" for number in range(4)]
    pods = {f"pod-{name}": name for name in claims}
    work.claim(claims)
    work.await_bound(claims)
    work.run(pods)
    _kill_plugins(cluster)
    work.await_running(list(pods))
    for pod in pods:
        work.write(pod, pod)
    cluster.kubectl("delete", "pod", *pods, "--wait=false")
    _kill_plugins(cluster)
    cluster.kubectl("wait", "--for=delete", *(f"pod/{pod}" for pod in pods), "--timeout=180s")
    work.run(pods)
    work.await_running(list(pods))
    _same(work, pods)
    return f"{len(pods)} pods came, went and came back with their data"


def kubelet_restarted(cluster: Cluster) -> str:
    """Kubelet ends and is started again on each node, under running pods."""
    work = Workloads(cluster)
    pods = {"pod-kubelet": "kubelet"}
    work.claim(["kubelet"])
    work.run(pods)
    work.await_running(list(pods))
    work.write("pod-kubelet", "pod-kubelet")
    for node in cluster.nodes:
        node.guest.run("pkill", "-TERM", "-x", "kubelet")
    cluster.until("kubelet to answer", lambda: work.read("pod-kubelet") == "pod-kubelet")
    cluster.wait_for_driver()
    return "the pod went on"


def node_drained(cluster: Cluster) -> str:
    """A node is drained, and what ran there comes up on the other one with its data."""
    work = Workloads(cluster)
    pods = {"pod-drained": "drained"}
    first = cluster.nodes[0].name
    work.claim(["drained"])
    work.run(pods, first)
    work.await_running(list(pods))
    work.write("pod-drained", "pod-drained")
    cluster.kubectl(
        "drain", first, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"
    )
    work.run(pods)
    work.await_running(list(pods))
    _same(work, pods)
    cluster.kubectl("uncordon", first)
    cluster.wait_for_driver()
    return f"{first} drained, the data are on the other node"


def node_power_cut(cluster: Cluster) -> str:
    """The power of a node is cut under its pods; it boots, and they come back with their data."""
    work = Workloads(cluster)
    node = cluster.nodes[0]
    pods = {f"pod-power-{number}": f"power-{number}" for number in range(2)}
    work.claim(list(pods.values()))
    work.run(pods, node.name)
    work.await_running(list(pods))
    for pod in pods:
        work.write(pod, pod)
    node.guest.kill()
    node.guest.start()
    cluster.until("the pods to be back", lambda: all(work.read(pod) == pod for pod in pods), 300)
    cluster.wait_for_driver()
    return f"{len(pods)} pods are back with their data"


def api_server_away(cluster: Cluster) -> str:
    """The API server is away for a minute; what was asked before and after is done."""
    work = Workloads(cluster)
    pods = {"pod-away": "away-0"}
    work.claim(["away-0"])
    work.run(pods)
    work.await_running(list(pods))
    work.write("pod-away", "pod-away")
    cluster.stop_component("kube-apiserver")
    time.sleep(60)
    cluster.start_component("kube-apiserver")
    cluster.until("the API server", lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok")
    work.claim(["away-1"])
    work.await_bound(["away-1"])
    cluster.until("the pod", lambda: work.read("pod-away") == "pod-away")
    cluster.wait_for_driver()
    return "the pod went on, a new claim is bound"


def overlays_accepted(cluster: Cluster) -> str:
    """The API server would take everything that is shipped."""
    cluster.kubectl("create", "namespace", "rook-ceph")
    overlays = [ROOT / "deploy/base", *sorted((ROOT / "deploy/overlays").iterdir())]
    for overlay in overlays:
        cluster.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-k", str(overlay))
    for example in sorted((ROOT / "deploy/examples").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", str(example))
    cluster.kubectl("delete", "namespace", "rook-ceph")
    return f"{len(overlays)} sets of YAML and all examples"


def block_volume(cluster: Cluster) -> str:
    """The example of a raw device: a pod writes to it and reads it back."""
    work = Workloads(cluster)
    for name in ("block-pvc.yaml", "block-pod.yaml"):
        cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/examples" / name))
    work.await_running(["waymark-block-pod"])
    script = "echo raw | dd of=/dev/xvda conv=fsync 2>/dev/null && head -c 3 /dev/xvda"
    found = cluster.kubectl("exec", "waymark-block-pod", "--", "sh", "-c", script)
    if found != "raw":
        raise ClusterError(f"the device reads {found!r}")
    return "a pod wrote to the device"


def texts_of_trouble(cluster: Cluster) -> str:
    """What is wrong stands in the claim's events, and what to do."""
    return texts.check(cluster)


TESTS: tuple[Callable[[Cluster], str], ...] = (
    overlays_accepted,
    block_volume,
    texts_of_trouble,
    many,
    controller_killed,
    controller_deleted,
    leaders_moved,
    deleted_while_pending,
    node_plugin_killed,
    kubelet_restarted,
    node_drained,
    node_power_cut,
    api_server_away,
)


def _kill_plugins(cluster: Cluster) -> None:
    for _ in range(3):
        for node in cluster.nodes:
            node.guest.run("pkill", "-KILL", "-f", "waymark serve --node", check=False)
        time.sleep(1.5)


def _same(work: Workloads, pods: dict[str, str]) -> None:
    for pod in pods:
        found = work.read(pod)
        if found != pod:
            raise ClusterError(f"{pod} reads {found!r} where it wrote its name")


def run(cluster: Cluster, names: list[str]) -> int:
    """Run the tests with these names, or all; the number that failed."""
    failed = 0
    for test in TESTS:
        if names and test.__name__ not in names:
            continue
        began = time.monotonic()
        work = Workloads(cluster)
        try:
            told = test(cluster)
            work.clear()
            work.nothing_left()
        except (ClusterError, subprocess.SubprocessError) as error:
            failed += 1
            told = f"FAILED: {error}"
            for problem in _warnings(cluster):
                print(f"    {problem}", file=sys.stderr)
        print(f"{test.__name__}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
    return failed


def _warnings(cluster: Cluster) -> list[str]:
    """The newest warnings among the events."""
    told = json.loads(cluster.kubectl("get", "events", "--field-selector=type=Warning", "-o", "json"))
    return [f"{item['reason']}: {item['message']}"[:300] for item in told["items"]][-10:]


def main() -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="e2e/kube-suite", description=(__doc__ or "").partition("\n\n")[2])
    names = ", ".join(test.__name__ for test in TESTS)
    parser.add_argument("test", nargs="*", help=f"only these of: {names}")
    parser.add_argument("--on", metavar="DIR", help="a cluster that `e2e/kube up DIR` made")
    asked = parser.parse_args()
    unknown = set(asked.test) - {test.__name__ for test in TESTS}
    if unknown:
        parser.error(f"no test {', '.join(sorted(unknown))}; there are {names}")
    if asked.on:
        cluster = Cluster(asked.on)
        cluster.enter()
        return int(bool(run(cluster, asked.test)))
    cluster = Cluster(pathlib.Path(tempfile.mkdtemp(prefix="waymark-kube-")))
    with interrupts_clean_up():
        try:
            cluster.up()
            cluster.install()
            return int(bool(run(cluster, asked.test)))
        finally:
            interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
            cluster.down()
            shutil.rmtree(cluster.folder, ignore_errors=True)
            signal.signal(signal.SIGINT, interrupt)


if __name__ == "__main__":
    sys.exit(main())
