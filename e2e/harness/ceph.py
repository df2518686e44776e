"""A real one-node Ceph (a monitor and one to three OSDs on BlueStore, cephx on) in one folder.

Run by hand as `e2e/micro-ceph COMMAND DIR`, from tests through `MicroCeph`. Several clusters live side by
side, each in a block of 40 ports of its own. Needs no root, no containers and no systemd.

What a cluster holds once `start` returned:
  pools      `rbd` and `rbd2` for images, `meta` for a journal, and the erasure-coded `ec`
  namespace  `ns1` is declared in `rbd`; nothing else is, so `nons` is a good name for an undeclared one
  users      `client.admin` for these scripts and the audit only; `client.waymark` for the driver
  files      ceph.conf; cluster.json, what a client needs to know, without a key; waymark.json, the driver's
             userID and userKey, readable by its owner alone
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator

import rados
import rbd

from e2e.harness import ceph_conf, ceph_keys
from e2e.harness.ceph_keys import USER

POOLS = ("rbd", "rbd2", "meta")
ERASURE_POOL = "ec"
NAMESPACE = "ns1"
_CONNECT = {"client_mount_timeout": "20", "rados_osd_op_timeout": "30"}
_STOP_SECONDS = 30


class CephError(Exception):
    """A daemon or a tool of the micro Ceph failed; the text ends with what it printed."""


def _free_port_block(address: str) -> int:
    for _ in range(200):
        first = random.randrange(20000, 32000, 40)  # noqa: S311 - a port is no secret
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 40):
                    stack.enter_context(socket.socket()).bind((address, port))
            except OSError:
                continue
            return first
    raise CephError(f"no free block of 40 ports between 20000 and 32000 on {address}")


class MicroCeph:
    """The cluster kept in one folder. Every method may be called again after it was interrupted."""

    def __init__(self, folder: pathlib.Path | str) -> None:
        self.folder = pathlib.Path(folder).resolve()
        self.conf = self.folder / "ceph.conf"
        self.admin_keyring = self.folder / "client.admin.keyring"
        self.secrets_file = self.folder / f"{USER}.json"
        self.user = USER

    @property
    def settings(self) -> ceph_conf.Settings:
        """What was chosen when the cluster was made."""
        return ceph_conf.Settings(**json.loads((self.folder / "settings.json").read_text()))

    @property
    def monitors(self) -> str:
        """The monitor's address as config.json takes it."""
        return self.settings.monitors()

    @property
    def key(self) -> str:
        """The key of `client.waymark`."""
        key = json.loads(self.secrets_file.read_text())["userKey"]
        assert isinstance(key, str)
        return key

    @property
    def fsid(self) -> str:
        """The cluster's id."""
        fsid = json.loads((self.folder / "cluster.json").read_text())["fsid"]
        assert isinstance(fsid, str)
        return fsid

    @property
    def pools(self) -> tuple[str, ...]:
        """The replicated pools; `ERASURE_POOL` is there besides."""
        return POOLS

    def start(self, settings: ceph_conf.Settings | None = None) -> None:
        """Make the cluster, or start again the one that was made here; returns once it serves.

        `settings` count only when the cluster is made.
        """
        if (self.folder / "cluster.json").exists():
            self._start_daemon("mon.a")
            for name in self._osd_names():
                self._start_daemon(name)
        else:
            self._make(settings or ceph_conf.Settings())
        with self.connect() as cluster, cluster.open_ioctx(POOLS[0]) as ioctx:
            ioctx.stat("rbd_info")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End all daemons and wait for it.

        The OSDs go first: a stopping OSD waits for the monitor's answer.
        """
        for name in self._osd_names():
            self._signal(name, how)
        for name in [*self._osd_names(), "mon.a"]:
            if name == "mon.a":
                self._signal(name, how)
            self._await_end(name)

    def kill(self, what: str = "all") -> None:
        """SIGKILL one daemon (`mon.a`, `osd.0`), the `osd`s, or `all`."""
        for name in self._named(what):
            self._signal(name, signal.SIGKILL)
            self._await_end(name)

    def pause(self, what: str = "osd") -> None:
        """SIGSTOP daemons: a Ceph that neither answers nor refuses."""
        for name in self._named(what):
            self._signal(name, signal.SIGSTOP)

    def resume(self, what: str = "all") -> None:
        """SIGCONT what `pause` stopped."""
        for name in self._named(what):
            self._signal(name, signal.SIGCONT)

    def destroy(self) -> None:
        """SIGKILL every daemon and remove the folder."""
        self.stop(signal.SIGKILL)
        for pid in self._strays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def status(self) -> Iterator[tuple[str, int | None]]:
        """Yield every daemon's name with its process id, or None when it does not run."""
        for name in ["mon.a", *self._osd_names()]:
            yield name, self._pid(name)

    @contextlib.contextmanager
    def connect(self) -> Iterator[rados.Rados]:
        """Yield a connection of `client.admin`."""
        with rados.Rados(conffile=str(self.conf), name="client.admin", conf=_CONNECT) as cluster:
            yield cluster

    def _make(self, settings: ceph_conf.Settings) -> None:
        if self.folder.exists():
            self.destroy()
        if not settings.port:
            settings = dataclasses.replace(settings, port=_free_port_block(settings.address))
        osds = range(settings.osds)
        for name in ["run", "log", "mon", *(f"osd{n}" for n in osds)]:
            (self.folder / name).mkdir(parents=True)
        (self.folder / "settings.json").write_text(json.dumps(dataclasses.asdict(settings), indent=1) + "\n")
        fsid = str(uuid.uuid4())
        uuids = [str(uuid.uuid4()) for _ in osds]
        self.conf.write_text(ceph_conf.render(self.folder, fsid, settings))
        keyring = ceph_keys.write_keyrings(self.folder, settings.osds)
        # The OSDs' mkfs works offline and beside the monitor's. Its pid file would stay behind.
        formats = [
            self._spawn(
                "ceph-osd", "-i", str(n), "--no-mon-config", "--pid-file=", "--mkfs", "--osd-uuid", osd_uuid
            )
            for n, osd_uuid in enumerate(uuids)
        ]
        monmap = str(self.folder / "monmap")
        monitor = ["--addv", "a", settings.monitors(), "--set-min-mon-release", "16"]
        self._finish(self._spawn("monmaptool", "--create", "--fsid", fsid, *monitor, monmap))
        mkfs = ["--pid-file=", "--mkfs", "--monmap", monmap, "--keyring", str(keyring)]
        self._finish(self._spawn("ceph-mon", "-i", "a", *mkfs))
        keyring.unlink()
        self._start_daemon("mon.a")
        with self.connect() as cluster:
            for n in osds:
                command(cluster, prefix="osd new", uuid=uuids[n], id=n)
            # Clones of the second version, whose parents' snapshots need no protection.
            command(cluster, prefix="osd set-require-min-compat-client", version="mimic")
            # In the monitor's database they reach clients without a ceph.conf too: a client notices a
            # restarted OSD after a second instead of thirteen.
            for option, value in (("objecter_tick_interval", "2"), ("objecter_timeout", "1")):
                command(cluster, prefix="config set", who="client", name=option, value=value)
            for pool in POOLS:
                command(cluster, prefix="osd pool create", pool=pool)
                command(cluster, prefix="osd pool application enable", pool=pool, app="rbd")
            for n in osds:
                self._finish(formats[n])
                self._start_daemon(f"osd.{n}")
            for pool in POOLS:
                with cluster.open_ioctx(pool) as ioctx:
                    # Returns once the pool's placement groups are active.
                    rbd.RBD().pool_init(ioctx, force=True)
            with cluster.open_ioctx(POOLS[0]) as ioctx:
                rbd.RBD().namespace_create(ioctx, NAMESPACE)
            self._make_erasure_pool(cluster)
        self._write_facts(fsid, settings)  # last: its presence says that the cluster is complete

    def _make_erasure_pool(self, cluster: rados.Rados) -> None:
        """Make the pool `ec`, k=2 m=1; its three chunks share one OSD: the rule takes osd.0 three times."""
        text, binary = str(self.folder / "crush.txt"), str(self.folder / "crush.bin")
        pathlib.Path(binary).write_bytes(command(cluster, prefix="osd getcrushmap"))
        self._finish(self._spawn("crushtool", "-d", binary, "-o", text))
        takes = "\tstep take osd.0\n\tstep emit\n" * 3
        rule = f"rule one_osd {{\n\tid 9\n\ttype erasure\n\tmin_size 3\n\tmax_size 3\n{takes}}}\n"
        with pathlib.Path(text).open("a") as source:
            source.write(rule)
        self._finish(self._spawn("crushtool", "-c", text, "-o", binary))
        command(cluster, pathlib.Path(binary).read_bytes(), prefix="osd setcrushmap")
        profile = ["plugin=jerasure", "k=2", "m=1", "crush-failure-domain=osd"]
        command(cluster, prefix="osd erasure-code-profile set", name="ec21", profile=profile)
        kind = {"pool_type": "erasure", "erasure_code_profile": "ec21", "rule": "one_osd"}
        command(cluster, prefix="osd pool create", pool=ERASURE_POOL, **kind)
        command(cluster, prefix="osd pool application enable", pool=ERASURE_POOL, app="rbd")
        # Images keep their data there (dataPool); that needs partial overwrites.
        command(cluster, prefix="osd pool set", pool=ERASURE_POOL, var="allow_ec_overwrites", val="true")

    def _write_facts(self, fsid: str, settings: ceph_conf.Settings) -> None:
        facts = {
            "fsid": fsid,
            "conf": str(self.conf),
            "monitors": settings.monitors(),
            "user": USER,
            "pools": [*POOLS, ERASURE_POOL],
            "namespace": NAMESPACE,
        }
        (self.folder / "cluster.json").write_text(json.dumps(facts, indent=1) + "\n")

    def _spawn(self, program: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a Ceph program; what it prints goes to a log of its own."""
        environment = dict(os.environ)
        takes_conf = program.startswith("ceph-")
        if takes_conf and self.settings.nosync:
            environment["LD_PRELOAD"] = "libeatmydata.so"
        with (self.folder / "log" / f"{program}.out").open("ab") as log:
            return subprocess.Popen(
                [program, *(["-c", str(self.conf)] if takes_conf else []), *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() == 0:
            return
        assert isinstance(process.args, list)
        program = process.args[0]
        printed = (self.folder / "log" / f"{program}.out").read_text(errors="replace").splitlines()[-5:]
        raise CephError(f"{' '.join(process.args)} ended with {process.returncode}: " + " | ".join(printed))

    def _start_daemon(self, name: str) -> None:
        """Start a daemon unless it runs. Daemons put themselves into the background once they are up."""
        if self._pid(name) is None:
            kind, number = name.split(".")
            self._finish(self._spawn(f"ceph-{kind}", "-i", number))

    def _osd_names(self) -> list[str]:
        try:
            return [f"osd.{n}" for n in range(self.settings.osds)]
        except FileNotFoundError:
            return []

    def _named(self, what: str) -> list[str]:
        known = [*self._osd_names(), "mon.a"]
        named = known if what == "all" else [name for name in known if what in (name, name.split(".")[0])]
        if not named:
            raise CephError(f"no daemon {what!r} here; there are: all, {', '.join(known)}")
        return named

    def _pid(self, name: str) -> int | None:
        """Return the daemon's process id; the file may be older than the process that now has its number."""
        try:
            pid = int((self.folder / "run" / f"{name}.pid").read_text())
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            return None
        return pid if str(self.conf).encode() in words and state != "Z" else None

    def _strays(self) -> Iterator[int]:
        """Yield processes on our ceph.conf that an interrupted start left without a pid file."""
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if (
                    pathlib.PurePath(words[0].decode()).name.startswith("ceph-")
                    and str(self.conf).encode() in words
                ):
                    yield int(entry.name)

    def _signal(self, name: str, what: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def _await_end(self, name: str) -> None:
        patience = time.monotonic() + _STOP_SECONDS
        while self._pid(name) is not None:
            if time.monotonic() > patience:
                self._signal(name, signal.SIGKILL)
            time.sleep(0.02)
        (self.folder / "run" / f"{name}.pid").unlink(missing_ok=True)


class SharedCeph(MicroCeph):
    """A cluster that somebody else started and will end, seen from where its daemons are not."""

    def start(self, settings: ceph_conf.Settings | None = None) -> None:
        """It runs already."""
        del settings

    def destroy(self) -> None:
        """It is not ours to end."""


def command(cluster: rados.Rados, inbuf: bytes = b"", /, **command: object) -> bytes:
    """Send a command to the monitor and return its output. Raises CephError with the monitor's words."""
    code, output, words = cluster.mon_command(json.dumps(command), inbuf, timeout=20)
    if code:
        raise CephError(f"{command['prefix']}: {words or os.strerror(-code)}")
    return output
