"""A cluster in one folder: a micro Ceph, a control plane of processes, guests as nodes, the driver's pods.

All is in a network namespace of its own.  There is no kube-proxy: the API server listens on the address of
the `kubernetes` service itself, and only pods in their host's network reach it.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial

from e2e.harness import network, processes
from e2e.harness.ceph import MicroCeph
from e2e.harness.ceph_conf import Settings
from e2e.harness.network import Network
from e2e.harness.testbed import CLUSTER_ID, DRIVER, ROOT
from e2e.kubernetes import binaries, images
from e2e.kubernetes.nodes import SOURCES, Node
from e2e.kubernetes.pki import Pki

NODES = 2
API_ADDRESS = "10.99.0.129"
_SERVICES = "10.99.0.128/25"
_ETCD, _ETCD_PEER = "http://127.0.0.1:12379", "http://127.0.0.1:12380"
_READY_SECONDS = 120.0
_WATCH_SECONDS = 10
NAMESPACE = "waymark"
KEYS_NAME = "waymark-keys"
SECRET_NAME = "csi-rbd-secret"  # noqa: S105  a name


class ClusterError(Exception):
    """The cluster does not do what was asked; the text says what was waited for."""


class Cluster:
    """The cluster in one folder; its program must be in its network (`enter`)."""

    def __init__(self, folder: pathlib.Path | str) -> None:
        self.folder = pathlib.Path(folder).resolve()
        self.ceph = MicroCeph(self.folder / "ceph")
        self.network = Network(self.folder)
        self._kept = self.folder / "cluster.json"

    @property
    def programs(self) -> pathlib.Path:
        """Where this cluster's programs are."""
        return pathlib.Path(json.loads(self._kept.read_text())["programs"])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        disk = pathlib.Path(json.loads(self._kept.read_text())["disk"])
        return tuple(Node(self.folder, self.network, number, disk) for number in range(1, NODES + 1))

    def up(self) -> None:
        """Build what is missing, and start all but the driver; returns once the nodes are ready."""
        if self._kept.exists():
            raise ClusterError(f"{self.folder} holds a cluster already; end it first with e2e/kube down")
        programs = binaries.build()
        disk = images.node_disk(programs)
        for name in ("log", "cni/bin", "cni/conf"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._kept.write_text(json.dumps({"programs": str(programs), "disk": str(disk)}))
        os.environ[processes.MARK] = str(self.folder)
        self.network.create()
        self.network.add_address(f"{API_ADDRESS}/32")
        self.network.enter()
        settings = Settings(address=network.HOST_ADDRESS, msgr1=True, watch_timeout_seconds=_WATCH_SECONDS)
        self.ceph.start(settings)
        self._start(programs)

    def enter(self) -> None:
        """Join the cluster's network."""
        if not self._kept.exists():
            raise ClusterError(f"no cluster in {self.folder}; make one with e2e/kube up {self.folder}")
        os.environ[processes.MARK] = str(self.folder)
        self.network.enter()

    def install(self) -> None:
        """Apply the YAML that is shipped and what names this Ceph; returns once the driver is everywhere."""
        entry = [{"clusterID": CLUSTER_ID, "monitors": [self.ceph.monitors]}]
        identity = json.loads(self.ceph.secrets_file.read_text())
        self.kubectl("apply", "--server-side", "-k", str(ROOT / "deploy/overlays/lab"))
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "ceph-csi-config", "namespace": NAMESPACE},
                "data": {"config.json": json.dumps(entry)},
            },
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": name, "namespace": namespace},
                    "stringData": identity,
                }
                for name, namespace in ((SECRET_NAME, "default"), (KEYS_NAME, NAMESPACE))
            ),
        )
        self.kubectl("apply", "--server-side", "-f", str(ROOT / "deploy/examples/storageclass.yaml"))
        self.wait_for_driver()

    def wait_for_driver(self) -> None:
        """Wait until the driver is registered on each node and the controllers are available."""
        for node in self.nodes:
            self.until(f"{DRIVER} on {node.name}", partial(self._has_driver, node.name))
        self.kubectl(
            *("-n", NAMESPACE, "rollout", "status", "deployment/waymark-controller"),
            f"--timeout={_READY_SECONDS:.0f}s",
        )

    def kubectl(self, *words: str, given: str | None = None) -> str:
        """Run kubectl as the admin; its output.  Raises ClusterError with what it says."""
        done = subprocess.run(
            self.kubectl_command(words), input=given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def kubectl_command(self, words: Sequence[str]) -> list[str]:
        """What runs kubectl as the admin."""
        return [str(self.programs / "kubectl"), "--kubeconfig", str(self.folder / "admin.conf"), *words]

    def apply(self, *documents: dict[str, object]) -> None:
        """Apply objects."""
        self.kubectl(
            *("apply", "--server-side", "-f", "-"),
            given="\n---\n".join(json.dumps(document) for document in documents),
        )

    def until(self, what: str, is_so: Callable[[], object], seconds: float = _READY_SECONDS) -> None:
        """Wait until something is so; errors of kubectl count as not yet.  Raises ClusterError."""
        deadline = time.monotonic() + seconds
        problem = ""
        while time.monotonic() < deadline:
            try:
                if is_so():
                    return
            except ClusterError as error:
                problem = f"; {error}"
            time.sleep(0.3)
        raise ClusterError(f"waited {seconds:.0f} s for {what}{problem}")

    def down(self) -> None:
        """End all and remove the folder, whatever of it is there."""
        if self._kept.exists():
            for node in self.nodes:
                node.guest.kill()
        mine = [process.pid for process in processes.of_folder(self.folder)]
        for pid in mine:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue
        processes.end(mine, patience_seconds=0.0)
        for number in range(1, NODES + 1):
            self.network.remove_tap(f"tap{number}")
        self.network.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_component(self, name: str) -> None:
        """Start a component of the control plane, or start it again."""
        programs = self.programs
        words = self._components()[name]
        with (self.folder / "log" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [str(programs / name), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        (self.folder / f"{name}.pid").write_text(f"{child.pid}\n")

    def stop_component(self, name: str) -> None:
        """End a component of the control plane."""
        pid = int((self.folder / f"{name}.pid").read_text())
        processes.end([pid], patience_seconds=10.0)

    def _start(self, programs: pathlib.Path) -> None:
        pki = Pki(self.folder / "pki", API_ADDRESS)
        pki.make_authority()
        own = f"IP:{API_ADDRESS},IP:{network.HOST_ADDRESS},IP:127.0.0.1"
        pki.certificate("apiserver", "/CN=kube-apiserver", f"{own},DNS:kubernetes.default.svc")
        for name, subject in (
            ("admin", "/O=system:masters/CN=admin"),
            ("manager", "/CN=system:kube-controller-manager"),
            ("scheduler", "/CN=system:kube-scheduler"),
        ):
            pki.certificate(name, subject)
            pki.kubeconfig(name)
        cni = self.folder / "cni"
        shutil.copy(SOURCES / "lo_only.sh", cni / "bin" / "lo-only")
        (cni / "bin" / "loopback").symlink_to("/usr/lib/cni/loopback")
        plugin = {"cniVersion": "0.4.0", "name": "e2e", "plugins": [{"type": "lo-only"}]}
        (cni / "conf" / "e2e.conflist").write_text(json.dumps(plugin))
        for node in self.nodes:
            node.prepare(pki, programs, cni)
        for node in self.nodes:  # they boot beside the control plane, and their kubelets wait for it
            node.guest.boot()
        self.start_component("etcd")
        self.start_component("kube-apiserver")
        self.until("the API server", lambda: self.kubectl("get", "--raw", "/readyz") == "ok", 60)
        self.start_component("kube-controller-manager")
        self.start_component("kube-scheduler")
        for node in self.nodes:
            node.guest.await_up()
        for node in self.nodes:
            self.until(f"{node.name} to be ready", partial(self._is_ready, node.name))
        account = partial(self.kubectl, "get", "serviceaccount", "default")
        self.until("the default service account", account)

    def _is_ready(self, node: str) -> bool:
        return bool(self.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=1s"))

    def _has_driver(self, node: str) -> bool:
        found = self.kubectl("get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name}")
        return DRIVER in found.split()

    def _components(self) -> dict[str, list[str]]:
        pki, conf = self.folder / "pki", self.folder
        etcd = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": _ETCD,
            "advertise-client-urls": _ETCD,
            "listen-peer-urls": _ETCD_PEER,
            "initial-advertise-peer-urls": _ETCD_PEER,
            "initial-cluster": f"default={_ETCD_PEER}",
            "log-level": "warn",
        }
        server = {
            "etcd-servers": _ETCD,
            "bind-address": "0.0.0.0",  # noqa: S104  of its own network namespace
            "advertise-address": API_ADDRESS,
            "secure-port": 443,
            "service-cluster-ip-range": _SERVICES,
            "endpoint-reconciler-type": "none",
            "tls-cert-file": pki / "apiserver.crt",
            "tls-private-key-file": pki / "apiserver.key",
            "client-ca-file": pki / "ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": pki / "sa.key",
            "service-account-signing-key-file": pki / "sa.key",
            "kubelet-client-certificate": pki / "admin.crt",
            "kubelet-client-key": pki / "admin.key",
            "kubelet-certificate-authority": pki / "ca.crt",
            "kubelet-preferred-address-types": "InternalIP",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "event-ttl": "2h",
        }
        local = {"bind-address": "127.0.0.1", "leader-elect": "false"}
        manager = {
            **local,
            "kubeconfig": conf / "manager.conf",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": pki / "sa.key",
            "root-ca-file": pki / "ca.crt",
        }
        scheduler = {**local, "kubeconfig": conf / "scheduler.conf"}
        return {
            "etcd": [*_flags(etcd), "--unsafe-no-fsync"],
            "kube-apiserver": _flags(server),
            "kube-controller-manager": _flags(manager),
            "kube-scheduler": _flags(scheduler),
        }


def _flags(values: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
