"""The nodes of a cluster: guests that become nodes when they start, with containerd and kubelet in them."""

from __future__ import annotations

import json
import pathlib
import shutil

from e2e.harness import network
from e2e.harness.guest import Guest
from e2e.harness.network import Network
from e2e.kubernetes import images
from e2e.kubernetes.pki import Pki

SOURCES = pathlib.Path(__file__).resolve().parent
RUNTIME_SOCKET = "/run/containerd/containerd.sock"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Node:
    """One node in `folder`, the `number`th of the cluster."""

    def __init__(self, folder: pathlib.Path, wires: Network, number: int, disk: pathlib.Path) -> None:
        self.name = f"node-{number}"
        self.folder = folder / self.name
        self.address = network.address(number).partition("/")[0]
        self._share = self.folder / "share"
        self.guest = Guest(
            self.folder / "guest",
            wires,
            number=number,
            shares=(self._share, folder / "cni"),
            disk=f"{self.folder / 'disk'}:{disk}",
            memory="1536M",
            name=self.name,
            tmpfs="256M",
            startup=self._share / "start",
        )

    def prepare(self, pki: Pki, programs: pathlib.Path, cni: pathlib.Path) -> None:
        """Write all that the guest finds when it starts."""
        self._share.mkdir(parents=True)
        pki.certificate(self.name, f"/O=system:nodes/CN=system:node:{self.name}", f"IP:{self.address}")
        config = json.loads(pki.kubeconfig(self.name).read_text())
        # The guest has its own copy: it sees what lies in its share, whenever that was written.
        for name in ("ca.crt", f"{self.name}.crt", f"{self.name}.key"):
            shutil.copy(pki.folder / name, self._share / name)
        config["clusters"][0]["cluster"]["certificate-authority"] = str(self._share / "ca.crt")
        config["users"][0]["user"] = {
            "client-certificate": str(self._share / f"{self.name}.crt"),
            "client-key": str(self._share / f"{self.name}.key"),
        }
        (self._share / "kubelet.conf").write_text(json.dumps(config))
        (self._share / "kubelet.json").write_text(json.dumps(self._kubelet()))
        (self._share / "containerd.toml").write_text(_containerd(cni))
        settings = f"NODE={self.name} ADDRESS={self.address} PATH={programs}:{_PATH}\n"
        (self._share / "settings").write_text(settings)
        shutil.copy(SOURCES / "node_start.sh", self._share / "start")

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": 10250,
            "healthzBindAddress": "127.0.0.1",
            "tlsCertFile": str(self._share / f"{self.name}.crt"),
            "tlsPrivateKeyFile": str(self._share / f"{self.name}.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._share / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "resolvConf": "/etc/resolv.conf",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            # Attaching, detaching and growing wait for these: by default they take three times as long.
            "syncFrequency": "1s",
            "nodeStatusUpdateFrequency": "1s",
            "volumePluginDir": "/var/lib/kubelet/exec-plugins",
        }


def _containerd(cni: pathlib.Path) -> str:
    unused = ("snapshotter.v1.btrfs", "snapshotter.v1.aufs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper")
    disabled = [f"io.containerd.{name}" for name in unused]
    return f"""\
version = 2
root = "/var/lib/node/containerd"
state = "/run/containerd"
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = "{RUNTIME_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  tolerate_missing_hugetlb_controller = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}/bin"
    conf_dir = "{cni}/conf"
"""
