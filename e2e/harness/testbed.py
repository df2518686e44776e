"""A cluster with plugins on it, in one folder: what `e2e/up`, `e2e/restart` and `e2e/down` work on.

env                       shell variables: CEPH_CONF CONTROLLER_SOCKET NODE_SOCKET STAGING_DIR PUBLISH_DIR
                          PARAMETERS SECRETS
parameters.json           StorageClass parameters; secrets.json (0600) the userID and userKey for each call
config.json               the clusters, as the plugins read it
keys/<clusterID>/         the driver's own user (0600), for recovery and calls that carry no secret
controller.{pid,socket}   the first controller; more are controller-2, controller-3 ...
node.{pid,socket}         the node plugin
ceph/  log/  state/       the cluster; what each process printed; each process's own state
run/                      what lies in /run/<driver> of a real host
kubelet/                  the tree in which staging and target paths lie
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import signal
import subprocess
import time

from e2e.harness import ceph_keys, processes
from e2e.harness.ceph import MicroCeph, SharedCeph
from e2e.harness.ceph_conf import Settings
from e2e.harness.client import Client
from e2e.harness.host_contents import HostContents

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = "rbd.csi.waymark.dev"
CLUSTER_ID = "waymark-e2e"
NODE_ID = "node-1"
START_SECONDS = 30.0
STOP_SECONDS = 10.0
SHARED_CEPH = "WAYMARK_SHARED_CEPH"
"""Environment variable: the folder of a running micro Ceph that test beds use instead of their own."""
MOUNTER = "WAYMARK_MOUNTER"
"""Environment variable: the mapper that test beds name in their StorageClass parameters."""
_LONGEST_SOCKET_PATH = 107


class TestbedError(Exception):
    """The test bed cannot do what was asked; the text says what is in the way."""

    __test__ = False  # its name would make pytest collect it


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """What was chosen at `up`; kept in `DIR/testbed.json` for `restart`."""

    controllers: int = 1
    journal_pool: str = "meta"
    namespace: str = ""
    serve_flags: tuple[str, ...] = ()
    """Handed to every `waymark serve`, after the flags that are made here."""

    def names(self) -> tuple[str, ...]:
        """The plugin processes, in the order in which they are started."""
        return ("controller", *(f"controller-{n}" for n in range(2, self.controllers + 1)), "node")


class Testbed:
    """The test bed in one folder."""

    __test__ = False

    def __init__(self, folder: pathlib.Path | str) -> None:
        self.folder = pathlib.Path(folder).resolve()
        shared = os.environ.get(SHARED_CEPH)
        self.ceph = SharedCeph(shared) if shared else MicroCeph(self.folder / "ceph")
        self.kubelet = self.folder / "kubelet"
        self.parameters_file = self.folder / "parameters.json"
        self.secrets_file = self.folder / "secrets.json"
        self.config_file = self.folder / "config.json"
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def layout(self) -> Layout:
        """What was chosen at `up`. Raises TestbedError where nothing is up."""
        try:
            kept = json.loads((self.folder / "testbed.json").read_text())
        except FileNotFoundError:
            raise TestbedError(f"no test bed in {self.folder}; make one with e2e/up {self.folder}") from None
        return Layout(**kept | {"serve_flags": tuple(kept["serve_flags"])})

    def up(self, layout: Layout | None = None, settings: Settings | None = None) -> None:
        """Start the cluster and every plugin; returns once each answers Probe."""
        layout = layout or Layout()
        longest = str(self.socket(layout.names()[-2]))
        if len(longest) > _LONGEST_SOCKET_PATH:
            raise TestbedError(f"{longest} is too long for a Unix socket ({_LONGEST_SOCKET_PATH} bytes)")
        if (self.folder / "testbed.json").exists():
            raise TestbedError(
                f"{self.folder} holds a test bed already; end it first with e2e/down {self.folder}"
            )
        for name in ("log", "state", "run", "kubelet"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        # First of all files: `down` finds by it what a half-finished `up` has made.
        (self.folder / "testbed.json").write_text(json.dumps(dataclasses.asdict(layout)) + "\n")
        self.ceph.start(settings)
        self._write_files(layout)
        for name in layout.names():
            self._spawn(name)
        for name in layout.names():
            self.await_probe(name)

    def restart(self, name: str) -> None:
        """Start a plugin again, ending it first if it still runs; returns once it answers Probe."""
        if name not in self.layout.names():
            raise TestbedError(f"no process {name!r} here; there are: {', '.join(self.layout.names())}")
        self.stop(name)
        self._spawn(name)
        self.await_probe(name)

    def stop(self, name: str) -> None:
        """End a plugin by SIGTERM, after ten seconds by SIGKILL."""
        pid = self.pid(name)
        if pid is not None:
            processes.end([pid], patience_seconds=STOP_SECONDS)
            self._reap(pid)

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Signal a plugin; after SIGKILL, wait for its end."""
        pid = self.pid(name)
        if pid is None:
            raise TestbedError(f"{name} does not run")
        os.kill(pid, how)
        if how is signal.SIGKILL:
            self.await_end(name)

    def await_end(self, name: str, seconds: float = START_SECONDS) -> None:
        """Wait until a plugin that dies by itself (at a crash point) is dead."""
        pid = self.pid(name)
        if pid is not None:
            if not processes.await_end(pid, seconds):
                raise TestbedError(f"{name} (pid {pid}) still runs after {seconds:g} s")
            self._reap(pid)

    def pid(self, name: str) -> int | None:
        """Return a plugin's process id if it runs."""
        try:
            pid = int((self.folder / f"{name}.pid").read_text())
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if f"unix://{self.endpoint(name)}".encode() in words and processes.alive(pid) else None

    def socket(self, name: str) -> pathlib.Path:
        """Path of a plugin's socket."""
        return self.folder / f"{name}.socket"

    def endpoint(self, name: str) -> pathlib.Path:
        """Path of the socket where a plugin itself makes it."""
        return self.socket(name)

    def on_node(self, *command: str) -> str:
        """Run a command on the node and return its output.  Raises CalledProcessError."""
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        ).stdout

    def held_by_node(self) -> HostContents:
        """What the node holds of volumes."""
        return HostContents.of_this_host(self.folder)

    def client(self, name: str = "controller") -> Client:
        """Return clients of a plugin's socket."""
        return Client(self.socket(name))

    def await_probe(self, name: str) -> None:
        """Wait until a plugin answers Probe. Raises TestbedError with the end of its log if it dies."""
        deadline = time.monotonic() + START_SECONDS
        with self.client(name) as client:
            while not client.answers():
                if self.pid(name) is None:
                    raise TestbedError(
                        f"{name} ended before it answered Probe; its log ends:\n{self.log_tail(name)}"
                    )
                if time.monotonic() > deadline:
                    raise TestbedError(
                        f"{name} runs and does not answer Probe; its log ends:\n{self.log_tail(name)}"
                    )

    def log_tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines of a plugin's log."""
        log = self.folder / "log" / f"{name}.log"
        return (
            "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"
        )

    def staging_path(self, volume: str) -> pathlib.Path:
        """Return the path at which kubelet stages a volume with a file system, and make its folder."""
        path = self.kubelet / "plugins/kubernetes.io/csi" / DRIVER / volume / "globalmount"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def publish_path(self, volume: str, pod: str = "pod-1") -> pathlib.Path:
        """Return the path at which kubelet publishes a volume to a pod, and make the folder above it."""
        path = self.kubelet / "pods" / pod / "volumes/kubernetes.io~csi" / volume / "mount"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def block_staging_path(self, volume: str) -> pathlib.Path:
        """Return the path at which kubelet stages a raw block volume, and make its folder."""
        path = self.kubelet / "plugins/kubernetes.io/csi/volumeDevices/staging" / volume
        path.mkdir(parents=True, exist_ok=True)
        return path

    def block_publish_path(self, volume: str, pod: str = "pod-1") -> pathlib.Path:
        """Return the path of the device file kubelet publishes to a pod, and make the folder above it."""
        path = self.kubelet / "plugins/kubernetes.io/csi/volumeDevices/publish" / volume / pod
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def parameters(self) -> dict[str, str]:
        """Return the StorageClass parameters."""
        parameters: dict[str, str] = json.loads(self.parameters_file.read_text())
        return parameters

    def secrets(self) -> dict[str, str]:
        """Return the secrets of a call."""
        secrets: dict[str, str] = json.loads(self.secrets_file.read_text())
        return secrets

    def cluster_entry(self, layout: Layout) -> dict[str, object]:
        """Return the cluster's entry of config.json."""
        entry: dict[str, object] = {
            "clusterID": CLUSTER_ID,
            "monitors": [self.ceph.monitors],
            "rbd": {"radosNamespace": layout.namespace},
        }
        return entry | ({"journalPool": layout.journal_pool} if layout.journal_pool else {})

    def _write_files(self, layout: Layout) -> None:
        self.config_file.write_text(json.dumps([self.cluster_entry(layout)], indent=1) + "\n")
        parameters = {"clusterID": CLUSTER_ID, "pool": "rbd", "mounter": os.environ.get(MOUNTER, "fuse")}
        self.parameters_file.write_text(json.dumps(parameters, indent=1) + "\n")
        secrets = json.loads(self.ceph.secrets_file.read_text())
        ceph_keys.write_private(self.secrets_file, json.dumps(secrets) + "\n")
        keys = self.folder / "keys" / CLUSTER_ID
        keys.mkdir(parents=True, exist_ok=True)
        (self.folder / "keys").chmod(0o700)
        for name, value in secrets.items():
            ceph_keys.write_private(keys / name, value)
        variables = {
            "CEPH_CONF": self.ceph.conf,
            "CONTROLLER_SOCKET": self.socket("controller"),
            "NODE_SOCKET": self.socket("node"),
            "STAGING_DIR": self.staging_path("volume-1"),
            "PUBLISH_DIR": self.publish_path("volume-1"),
            "PARAMETERS": self.parameters_file,
            "SECRETS": self.secrets_file,
        }
        lines = [f"{name}={shlex.quote(str(value))}\n" for name, value in variables.items()]
        (self.folder / "env").write_text("".join(lines))

    def _serve_command(self, name: str) -> list[str]:
        state = self.folder / "state" / name
        state.mkdir(parents=True, exist_ok=True)
        flags = {
            "--endpoint": f"unix://{self.endpoint(name)}",
            "--node-id": NODE_ID if name == "node" else name,
            "--config": self.config_file,
            "--keys": self.folder / "keys",
            "--run-dir": self.folder / "run",
            "--state-dir": state,
            "--kubelet-dir": self.kubelet,
            "--driver-name": DRIVER,
        }
        what = "--node" if name == "node" else "--controller"
        pairs = [str(part) for pair in flags.items() for part in pair]
        return [str(ROOT / ".venv/bin/waymark"), "serve", what, *pairs, *self.layout.serve_flags]

    def _spawn(self, name: str) -> None:
        """Start a plugin in a session of its own, so that a Ctrl-C meant for a script does not reach it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment[processes.MARK] = str(self.folder)
        with (self.folder / "log" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                self._serve_command(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        (self.folder / f"{name}.pid").write_text(f"{child.pid}\n")
        self._children[child.pid] = child

    def reap(self) -> None:
        """Take leave of plugins that this very process had started and that have ended."""
        for pid in [pid for pid in self._children if not processes.alive(pid)]:
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        child = self._children.pop(pid, None)
        if child is not None:
            child.wait()
