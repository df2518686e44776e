"""Wrong input, over real gRPC on a real Ceph: `e2e/inputs`.

One table: what is asked, the code that must come, words that the text must hold.  Then what needs more than
one call: places that must stay untouched, devices that must not be formatted, a mkfs that outlives its
plugin, and a search for the key everywhere it must not be.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import rados
import rbd

from e2e.harness.client import Client, code_of, details_of, retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import Testbed
from e2e.harness.volumes import GIB, Claim
from e2e.suites.inputs_table import InputError, Row, Table

MIB = 1 << 20
KEY_SECONDS = 15.0
UNDECLARED = "undeclared"
LOST_KEY = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw=="


class Inputs:
    """The table and the rest, on one test bed."""

    def __init__(self, testbed: Testbed, controller: Client, node: Client) -> None:
        self._bed = testbed
        self._controller = controller.controller
        self._node = node.node
        self._table = Table(testbed, controller, node)
        self.problems: list[str] = []

    def run(self) -> None:
        """Everything; what was wrong is in `problems`."""
        rows = self._table.rows()
        for row in rows:
            self._check(row)
        print(f"{len(rows)} wrong or odd requests: each has its code and its words")
        self._undeclared()
        self._keys()
        self._devices()
        self._stopped_mkfs()
        self._secrets()

    # What needs more than one call

    def _undeclared(self) -> None:
        entry = self._bed.cluster_entry(self._bed.layout)
        other = entry | {"clusterID": UNDECLARED, "rbd": {"radosNamespace": "nowhere"}}
        self._bed.config_file.write_text(json.dumps([entry, other]))
        self._check(
            Row(
                "undeclared namespace",
                self._table.create("u", clusterID=UNDECLARED),
                "NOT_FOUND",
                ("nowhere", "namespace create"),
            )
        )
        for pool in ("rbd", "meta"):
            with self._bed.ceph.connect() as cluster, cluster.open_ioctx(pool) as ioctx:
                ioctx.set_namespace("nowhere")
                found = [each.key for each in ioctx.list_objects()]
            self._expect(not found, f"written into the undeclared namespace of {pool}: {found}")
        print("an undeclared namespace: named, and nothing was written there")

    def _keys(self) -> None:
        def with_key(name: str, key: str, user: str = "waymark") -> Callable[[], object]:
            request = Claim(self._bed, name).create()
            request.secrets["userKey"], request.secrets["userID"] = key, user
            return lambda: self._controller.CreateVolume(request, timeout=30)

        good = self._bed.secrets()["userKey"]
        rows = [
            Row("a wrong key", with_key("k1", LOST_KEY), "UNAUTHENTICATED", ("key", "ceph auth get")),
            Row("an unknown user", with_key("k2", good, "nobody"), "UNAUTHENTICATED", ("nobody",)),
            Row("a key with a line end", with_key("k3", good + "\n"), "UNAUTHENTICATED", ("white space",)),
            Row("a key with a blank", with_key("k4", " " + good), "UNAUTHENTICATED", ("white space",)),
            Row("half a key", with_key("k5", good[:10]), "UNAUTHENTICATED", ("key",)),
        ]
        slowest = 0.0
        with ThreadPoolExecutor(len(rows)) as pool:
            bad = [pool.submit(self._check, row) for row in rows]
            for number in range(20):
                began = time.monotonic()
                self._table.create(f"good-{number}")()
                slowest = max(slowest, time.monotonic() - began)
            for each in bad:
                took = each.result()
                self._expect(took < KEY_SECONDS, f"a bad secret was answered after {took:.1f} s")
        print(
            f"{len(rows)} bad secrets: refused in time; creates with a good one took {slowest:.2f} s at most"
        )

    def _devices(self) -> None:
        painted = {
            "another file system": (_xfs, "xfs"),
            "garbage": (lambda image: image.write(os.urandom(64 << 10), 0), "data that no tool knows"),
            "zeroes over allocated objects": (
                lambda image: image.write(bytes(64 << 10), 8 * MIB),
                "data objects",
            ),
        }
        for what, (paint, words) in painted.items():
            claim = Claim(self._bed, f"painted-{what.split()[0]}")
            volume = retried(self._controller.CreateVolume, claim.create()).volume
            with self._bed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
                with rbd.Image(ioctx, volume.volume_context["imageName"]) as image:
                    paint(image)
                before = _content(ioctx, volume.volume_context["imageName"])
                self._check(
                    Row(
                        what,
                        partial(self._node.NodeStageVolume, claim.stage(volume), timeout=60),
                        "FAILED_PRECONDITION",
                        (words,),
                    )
                )
                after = _content(ioctx, volume.volume_context["imageName"])
            self._expect(before == after, f"{what}: the device was changed")
            retried(self._node.NodeUnstageVolume, claim.unstage(volume))
        print(f"devices with {', '.join(painted)}: never formatted, content unchanged")

    def _stopped_mkfs(self) -> None:
        claim = Claim(self._bed, "slow-mkfs", size_bytes=256 * GIB)
        options = {"mkfsOptions": "-E lazy_itable_init=0,lazy_journal_init=0,nodiscard"}
        volume = retried(
            self._controller.CreateVolume, claim.create({**self._bed.parameters(), **options})
        ).volume
        calling = self._node.NodeStageVolume.future(claim.stage(volume), timeout=60)
        mkfs = _await_process("mkfs.ext4")
        os.kill(mkfs, signal.SIGSTOP)
        try:
            self._bed.kill("node")
            self._expect(
                isinstance(calling.exception(), grpc.RpcError), "the stage of a killed plugin succeeded"
            )
            self._bed.restart("node")
            with self._bed.client("node") as node:
                text = ""
                try:
                    node.node.NodeStageVolume(claim.stage(volume), timeout=10)
                except grpc.RpcError as error:
                    self._expect(code_of(error).name == "UNAVAILABLE", f"answered {code_of(error).name}")
                    text = details_of(error)
                self._expect("mkfs.ext4" in text and str(mkfs) in text, f"the child is not named: {text!r}")
        finally:
            os.kill(mkfs, signal.SIGCONT)
        with self._bed.client("node") as node:
            retried(node.node.NodeStageVolume, claim.stage(volume), for_seconds=120)
            retried(node.node.NodeUnstageVolume, claim.unstage(volume))
        print(f"mkfs stopped, its plugin killed: the new one waited and named it ({text[:100]}...)")

    def _secrets(self) -> None:
        key = self._bed.secrets()["userKey"].encode()
        claim = Claim(self._bed, "secret-search")
        volume = retried(self._controller.CreateVolume, claim.create()).volume
        with self._bed.client("node") as node:
            retried(node.node.NodeStageVolume, claim.stage(volume))
            searched = 0
            allowed = {self._bed.folder / each for each in ("keys", "ceph", "run/keys", "secrets.json")}
            for path in (each for each in self._bed.folder.rglob("*") if each.is_file()):
                if (
                    not any(path == each or each in path.parents for each in allowed)
                    and path.name != "export"
                ):
                    searched += 1
                    self._expect(key not in path.read_bytes(), f"the key is in {path}")
            for kept in (self._bed.folder / "run/keys").iterdir():
                self._expect(kept.stat().st_mode & 0o777 == 0o600, f"{kept} may be read by others")
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                for file in ("cmdline", "environ"):
                    try:
                        content = (process / file).read_bytes()
                    except OSError:
                        continue
                    self._expect(key not in content, f"the key is in {process / file}")
            values = self._values()
            self._expect(not any(key in value for value in values), "the key is in OMAP")
            retried(node.node.NodeUnstageVolume, claim.unstage(volume))
        print(f"the key is in none of {searched} files, no process's arguments or environment, no OMAP value")

    def _values(self) -> list[bytes]:
        found: list[bytes] = []
        for pool in ("rbd", "meta"):
            with self._bed.ceph.connect() as cluster, cluster.open_ioctx(pool) as ioctx:
                for each in ioctx.list_objects():
                    with rados.ReadOpCtx() as operation:
                        values, _ = ioctx.get_omap_vals(operation, "", "", 1000)
                        ioctx.operate_read_op(operation, each.key)
                        found += [value or b"" for _, value in values]  # an empty value comes as None
        return found

    # Judging

    def _check(self, row: Row) -> float:
        began, code, text = time.monotonic(), "OK", ""
        try:
            row.call()
        except grpc.RpcError as error:
            code, text = code_of(error).name, details_of(error)
        except InputError as error:
            self.problems.append(f"{row.what}: {error}")
        missing = [words for words in row.words if words not in text]
        if code != row.code or missing:
            self.problems.append(f"{row.what}: {code} (expected {row.code}), lacking {missing}: {text}")
        return time.monotonic() - began

    def _expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.problems.append(otherwise)


def _xfs(image: rbd.Image) -> None:
    """Put an empty xfs onto an image."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(image.size())
        subprocess.run(["mkfs.xfs", "-q", "-f", file.name], check=True, timeout=60)
        offset = 0
        while True:
            try:
                offset = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            except OSError:
                return
            end = os.lseek(file.fileno(), offset, os.SEEK_HOLE)
            image.write(os.pread(file.fileno(), end - offset, offset), offset)
            offset = end


def _content(ioctx: rados.Ioctx, name: str) -> str:
    """A checksum of all that is allocated of an image, and where."""
    digest = hashlib.sha256()
    with rbd.Image(ioctx, name, read_only=True) as image:
        extents: list[tuple[int, int]] = []
        image.diff_iterate(0, image.size(), None, lambda offset, length, _: extents.append((offset, length)))
        for offset, length in extents:
            digest.update(f"{offset} {length} ".encode() + image.read(offset, length))
    return digest.hexdigest()


def _await_process(program: str) -> int:
    """The process id of a program that is about to start."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if pathlib.PurePath(words[0].decode(errors="replace")).name == program:
                return int(process.name)
        threading.Event().wait(0.002)
    raise InputError(f"no {program} was started")


def main() -> int:
    """Run from the command line; the exit code."""
    with temporary_testbed("inputs") as bed, bed.client() as controller, bed.client("node") as node:
        inputs = Inputs(bed, controller, node)
        inputs.run()
    for problem in inputs.problems:
        print(f"e2e/inputs: {problem}", file=sys.stderr)
    return 1 if inputs.problems else 0


if __name__ == "__main__":
    sys.exit(main())
