"""A real one-node Ceph (a monitor and one to three OSDs on BlueStore, cephx on) in one folder.

Run by hand as `e2e/micro-ceph COMMAND DIR`, from tests through `MicroCeph`. Several clusters live side by side,
each in a block of 40 ports of its own. Needs no root, no containers and no systemd.

What a cluster holds once `start` returned:
  pools      `rbd` and `rbd2` for images, `meta` for a journal, and the erasure-coded `ec`
  namespace  `ns1` is declared in `rbd`; nothing else is, so `nons` is a good name for an undeclared one
  users      `client.admin` for these scripts and the audit only; `client.waymark` for the driver
  files      ceph.conf, cluster.json (what a client needs to know, no key), waymark.json (0600: userID, userKey)
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence

import rados
import rbd

from e2e.harness import ceph_conf

POOLS = ("rbd", "rbd2", "meta")
ERASURE_POOL = "ec"
NAMESPACE = "ns1"
USER = "waymark"

_CAPS: dict[str, dict[str, str]] = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *", "mgr": "allow *"},
    # What the admin docs ask for and nothing more. In the monitor the profile also allows `osd blocklist add`, by
    # which a successor fences a dead predecessor. The OSD profile names no pool, because one user serves every pool
    # of a StorageClass, its data pools and the journal pool; an admin may narrow it with `pool=`.
    f"client.{USER}": {"mon": "profile rbd", "osd": "profile rbd", "mgr": "profile rbd"},
}
_OSD_CAPS = {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"}
_CONNECT = {"client_mount_timeout": "20", "rados_osd_op_timeout": "30"}
_STOP_SECONDS = 30


class CephError(Exception):
    """A daemon or a tool of the micro Ceph failed; the text ends with what it printed."""


def _new_key() -> str:
    """Return a cephx key: type, creation time and length in front of 16 random bytes."""
    return base64.b64encode(struct.pack("<HIIH", 1, int(time.time()), 0, 16) + os.urandom(16)).decode()


def _free_port_block(address: str) -> int:
    for _ in range(200):
        first = random.randrange(20000, 32000, 40)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 40):
                    stack.enter_context(socket.socket()).bind((address, port))
            except OSError:
                continue
            return first
    raise CephError(f"no free block of 40 ports between 20000 and 32000 on {address}")


def _write_private(path: pathlib.Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


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
        return ceph_conf.Settings(**json.loads((self.folder / "settings.json").read_text()))

    @property
    def monitors(self) -> str:
        return self.settings.monitors()

    @property
    def key(self) -> str:
        """The key of `client.waymark`."""
        key = json.loads(self.secrets_file.read_text())["userKey"]
        assert isinstance(key, str)
        return key

    @property
    def fsid(self) -> str:
        fsid = json.loads((self.folder / "cluster.json").read_text())["fsid"]
        assert isinstance(fsid, str)
        return fsid

    @property
    def pools(self) -> tuple[str, ...]:
        """The replicated pools; `ERASURE_POOL` is there besides."""
        return POOLS

    # Commands ------------------------------------------------------------------------------------------------

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
        """End all daemons and wait for it. The OSDs go first: a stopping OSD waits for the monitor's answer."""
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

    # Making --------------------------------------------------------------------------------------------------

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
        self._write_keys(settings)
        # The OSDs' mkfs works offline and beside the monitor's. Without an empty pid file a stale one would remain.
        formats = [
            self._spawn("ceph-osd", "-i", str(n), "--no-mon-config", "--pid-file=", "--mkfs", "--osd-uuid", uuids[n])
            for n in osds
        ]
        monmap = str(self.folder / "monmap")
        monmap_args = ["--create", "--fsid", fsid, "--addv", "a", settings.monitors(), "--set-min-mon-release", "16"]
        self._finish(self._spawn("monmaptool", *monmap_args, monmap))
        keyring = str(self.folder / "bootstrap.keyring")
        mkfs = ["--pid-file=", "--mkfs", "--monmap", monmap, "--keyring", keyring]
        self._finish(self._spawn("ceph-mon", "-i", "a", *mkfs))
        (self.folder / "bootstrap.keyring").unlink()
        self._start_daemon("mon.a")
        with self.connect() as cluster:
            for n in osds:
                _command(cluster, prefix="osd new", uuid=uuids[n], id=n)
            # Clones of the second version, whose parents' snapshots need no protection.
            _command(cluster, prefix="osd set-require-min-compat-client", version="mimic")
            # In the monitor's database they reach clients without a ceph.conf too: a client notices a restarted
            # OSD after a second instead of thirteen.
            for option, value in (("objecter_tick_interval", "2"), ("objecter_timeout", "1")):
                _command(cluster, prefix="config set", who="client", name=option, value=value)
            for pool in POOLS:
                _command(cluster, prefix="osd pool create", pool=pool)
                _command(cluster, prefix="osd pool application enable", pool=pool, app="rbd")
            for n in osds:
                self._finish(formats[n])
                self._start_daemon(f"osd.{n}")
            for pool in POOLS:
                with cluster.open_ioctx(pool) as ioctx:
                    rbd.RBD().pool_init(ioctx, True)  # returns once the pool's placement groups are active
            with cluster.open_ioctx(POOLS[0]) as ioctx:
                rbd.RBD().namespace_create(ioctx, NAMESPACE)
            self._make_erasure_pool(cluster)
        self._write_facts(fsid, settings)  # last: its presence says that the cluster is complete

    def _write_keys(self, settings: ceph_conf.Settings) -> None:
        """Write all keyrings. The monitor takes every entity of its mkfs keyring, so nobody waits for `auth add`."""
        caps = _CAPS | {f"osd.{n}": _OSD_CAPS for n in range(settings.osds)}
        bootstrap = ""
        for entity, allowed in caps.items():
            key = _new_key()
            lines = [f"[{entity}]", f"\tkey = {key}", *(f'\tcaps {kind} = "{cap}"' for kind, cap in allowed.items())]
            keyring = "\n".join(lines) + "\n"
            bootstrap += keyring
            if entity == f"client.{USER}":
                _write_private(self.secrets_file, json.dumps({"userID": USER, "userKey": key}) + "\n")
            _write_private(self.folder / f"{'mon.a' if entity == 'mon.' else entity}.keyring", keyring)
        _write_private(self.folder / "bootstrap.keyring", bootstrap)

    def _make_erasure_pool(self, cluster: rados.Rados) -> None:
        """Make the pool `ec`, k=2 m=1, whose three chunks may share one OSD: the rule takes osd.0 three times."""
        text, binary = str(self.folder / "crush.txt"), str(self.folder / "crush.bin")
        pathlib.Path(binary).write_bytes(_command(cluster, prefix="osd getcrushmap"))
        self._finish(self._spawn("crushtool", "-d", binary, "-o", text))
        takes = "\tstep take osd.0\n\tstep emit\n" * 3
        rule = f"rule one_osd {{\n\tid 9\n\ttype erasure\n\tmin_size 3\n\tmax_size 3\n{takes}}}\n# end crush map"
        source = pathlib.Path(text).read_text()
        pathlib.Path(text).write_text(source.replace("# end crush map", rule))
        self._finish(self._spawn("crushtool", "-c", text, "-o", binary))
        _command(cluster, pathlib.Path(binary).read_bytes(), prefix="osd setcrushmap")
        profile = ["plugin=jerasure", "k=2", "m=1", "crush-failure-domain=osd"]
        _command(cluster, prefix="osd erasure-code-profile set", name="ec21", profile=profile)
        pool = {"pool": ERASURE_POOL, "pool_type": "erasure", "erasure_code_profile": "ec21", "rule": "one_osd"}
        _command(cluster, prefix="osd pool create", **pool)
        _command(cluster, prefix="osd pool application enable", pool=ERASURE_POOL, app="rbd")
        # Images keep their data there (dataPool); that needs partial overwrites.
        _command(cluster, prefix="osd pool set", pool=ERASURE_POOL, var="allow_ec_overwrites", val="true")

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

    # Processes -----------------------------------------------------------------------------------------------

    def _spawn(self, program: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a Ceph program; what it prints goes to a log of its own."""
        environment = dict(os.environ)
        takes_conf = program.startswith("ceph-")
        if takes_conf and self.settings.nosync:
            environment["LD_PRELOAD"] = "libeatmydata.so"
        with (self.folder / "log" / f"{program}.out").open("ab") as log:
            return subprocess.Popen(
                [program, *(["-c", str(self.conf)] if takes_conf else []), *args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
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


def _command(cluster: rados.Rados, inbuf: bytes = b"", /, **command: object) -> bytes:
    """Send a command to the monitor and return its output. Raises CephError with the monitor's words."""
    code, output, words = cluster.mon_command(json.dumps(command), inbuf, timeout=20)
    if code:
        raise CephError(f"{command['prefix']}: {words or os.strerror(-code)}")
    return output


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="micro-ceph", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    help_texts = {
        "start": "make the cluster, or start it again with its data",
        "stop": "clean stop, data kept",
        "kill": "SIGKILL (all, mon, osd, osd.N)",
        "pause": "SIGSTOP (osd, osd.N, mon, all)",
        "resume": "SIGCONT",
        "status": "one line a daemon; 1 unless all run",
        "destroy": "SIGKILL all and remove DIR",
    }
    defaults = {"kill": "all", "pause": "osd", "resume": "all"}
    for name, text in help_texts.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("dir", type=pathlib.Path, metavar="DIR")
        if name in defaults:
            command.add_argument("what", nargs="?", default=defaults[name], help="which daemons (%(default)s)")
        if name == "start":
            standard = ceph_conf.Settings()
            command.add_argument("--osds", type=int, default=standard.osds)
            command.add_argument("--osd-size-bytes", type=int, default=standard.osd_size_bytes, help="sparse file")
            command.add_argument("--port", type=int, default=standard.port, help="first of 40; 0: a free block")
            command.add_argument("--address", default=standard.address, help="what the daemons announce")
            command.add_argument("--msgr1", action="store_true", help="for a plain `rbd map` of the kernel client")
            command.add_argument("--nosync", action="store_true", help="preload libeatmydata (package eatmydata)")
            command.add_argument("--watch-timeout-seconds", type=int, default=standard.watch_timeout_seconds)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = vars(_parser().parse_args(argv))
    command, ceph = arguments.pop("command"), MicroCeph(arguments.pop("dir"))
    try:
        if command == "start":
            ceph.start(ceph_conf.Settings(**arguments))
        elif command == "status":
            daemons = list(ceph.status())
            for name, pid in daemons:
                print(f"{name} {'down' if pid is None else f'pid {pid}'}")
            return int(any(pid is None for _, pid in daemons))
        else:
            getattr(ceph, command)(**arguments)
    except (CephError, rados.Error) as error:
        print(f"micro-ceph: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
