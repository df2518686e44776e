"""The tour of `e2e/try`: a first volume on a real Ceph, interrupted and resumed, in ten steps.

Everything happens in one temporary folder. However the tour ends, it leaves nothing behind.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import rados
import rbd

from e2e.harness import audit, in_guest
from e2e.harness.ceph import CephError
from e2e.harness.client import code_of, details_of, retried
from e2e.harness.temporary import folder_for
from e2e.harness.testbed import ROOT, Testbed, TestbedError
from e2e.harness.volumes import Claim
from e2e.kubernetes import tour as kubernetes_tour
from proto import csi_pb2

CRASH_VARIABLE = "WAYMARK_CRASH_AT"
CREATE_POINT = "create_volume.image.apply:after"
STAGE_POINT = "stage_volume.format.apply:after"


class TourError(Exception):
    """Something was not as the tour says it is."""


class Tour:
    """One walk through; `step` prints, times and numbers what it does."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._began = time.monotonic()
        self._steps = 0
        self._ids: dict[str, str] = {}

    def run(self) -> None:
        """Walk. Raises TourError, and whatever a call fails with."""
        bed = self._testbed
        first, second = Claim(bed, "pvc-first"), Claim(bed, "pvc-second")
        with self.step("Start a Ceph cluster (a monitor, an OSD), a controller and a node plugin"):
            bed.up()
            self.say(f"everything lies in {bed.folder}")
        with self.step("CreateVolume pvc-first, 1 GiB"):
            volume = self._create(first)
        with self.step("NodeStage (map, make ext4, mount), NodePublish, write a file"):
            self._attach(first, volume)
            file = first.publish_path / "data.bin"
            file.write_bytes(os.urandom(8 << 20))
            os.sync()
            written = _checksum(file)
            self.say(f"8 MiB, sha256 {written[:16]}...")
        with self.step("CreateVolume pvc-second; the controller is killed when the image exists"):
            other = self._create_interrupted(second)
        with self.step("NodeStage pvc-second; the node plugin is killed in the middle"):
            self._stage_interrupted(second, other)
        with self.step(
            "NodeUnpublish pvc-first; restart the node plugin, so that it knows nothing; NodeUnstage"
        ):
            with bed.client("node") as node:
                retried(node.node.NodeUnpublishVolume, first.unpublish(volume))
            bed.restart("node")
            with bed.client("node") as node:
                retried(node.node.NodeUnstageVolume, first.unstage(volume))
            self.say("the kernel's mounts and the key kept under /run told it all it needed")
        with self.step("Stage and publish pvc-first again, read the file"):
            self._attach(first, volume)
            if _checksum(file) != written:
                raise TourError("the file has changed")
            self.say("the checksum is the same")
        with self.step("Take both volumes off the node and delete them"):
            self._detach(first, volume)
            self._detach(second, other)
            self._delete(first, volume)
            self._delete(second, other)
        with self.step("What happened to each volume, as its history tells"):
            for name, volume_id in self._ids.items():
                self._print_history(name, volume_id)
        with self.step("Leak audit: all that the cluster and this host hold, against what the records say"):
            self._audit()

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

    def finish(self) -> None:
        """Print how long it all took."""
        print(f"\nDone in {time.monotonic() - self._began:.0f} s.", flush=True)

    def _create(self, claim: Claim) -> csi_pb2.Volume:
        with self._testbed.client() as controller:
            volume = retried(controller.controller.CreateVolume, claim.create(), told=self._tell).volume
        self._ids[claim.name] = volume.volume_id
        self.say(f"volume id {volume.volume_id}")
        return volume

    def _create_interrupted(self, claim: Claim) -> csi_pb2.Volume:
        bed = self._testbed
        before = self._images()
        with _crash_at(CREATE_POINT):
            bed.restart("controller")
        with bed.client() as controller:
            self._expect_death(lambda: controller.controller.CreateVolume(claim.create(), timeout=30))
        bed.await_end("controller")
        made = self._images() - before
        self.say(f"killed; the cluster has its image already ({', '.join(made) or 'none'}), nobody was told")
        if len(made) != 1:
            raise TourError(f"expected one new image, found {len(made)}")
        bed.restart("controller")
        self.say("controller started again; the same request once more:")
        volume = self._create(claim)
        if self._images() - before != made:
            raise TourError("the retry made another image")
        self.say("one volume, one image: the retry took over what the killed call had made")
        return volume

    def _stage_interrupted(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        bed = self._testbed
        with _crash_at(STAGE_POINT):
            bed.restart("node")
        with bed.client("node") as node:
            self._expect_death(lambda: node.node.NodeStageVolume(claim.stage(volume), timeout=30))
        bed.await_end("node")
        self.say(f"killed at {STAGE_POINT}; started again; the same request once more:")
        bed.restart("node")
        self._attach(claim, volume)
        self.say("staged and published: the retry went on from the last mark")

    def _expect_death(self, call: object) -> None:
        assert callable(call)
        try:
            call()
        except grpc.RpcError as error:
            self.say(f"the caller sees {code_of(error).name}, so it will ask again")
            return
        raise TourError("the call succeeded, though the plugin was to be killed in it")

    def _attach(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        with self._testbed.client("node") as node:
            retried(node.node.NodeStageVolume, claim.stage(volume), told=self._tell)
            retried(node.node.NodePublishVolume, claim.publish(volume), told=self._tell)

    def _detach(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        with self._testbed.client("node") as node:
            retried(node.node.NodeUnpublishVolume, claim.unpublish(volume), told=self._tell)
            retried(node.node.NodeUnstageVolume, claim.unstage(volume), told=self._tell)

    def _delete(self, claim: Claim, volume: csi_pb2.Volume) -> None:
        with self._testbed.client() as controller:
            retried(controller.controller.DeleteVolume, claim.delete(volume.volume_id), told=self._tell)

    def _tell(self, error: grpc.RpcError) -> None:
        self.say(f"{code_of(error).name}: {details_of(error)}")

    def _images(self) -> set[str]:
        with self._testbed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
            return set(rbd.RBD().list(ioctx))

    def _print_history(self, name: str, volume_id: str) -> None:
        endpoint = f"unix://{self._testbed.socket('controller')}"
        command = [str(ROOT / ".venv/bin/waymark"), "history", volume_id, "--endpoint", endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.say(f"{name}: waymark history {volume_id}")
        for line in (done.stdout or done.stderr).splitlines():
            self.say(f"  {line}")
        if done.returncode:
            raise TourError("the history could not be read")

    def _audit(self) -> None:
        result = audit.settled(self._testbed, [])
        for line in result.to_json(brief=True).splitlines():
            self.say(line)
        if not result.is_equal:
            raise TourError("the audit is not equal: see the difference above")
        self.say("equal: no image, object, key, device or mount is left that should not be")


@contextlib.contextmanager
def _crash_at(point: str) -> Iterator[None]:
    """Arm a crash point for the plugins that are started meanwhile."""
    os.environ[CRASH_VARIABLE] = point
    try:
        yield
    finally:
        del os.environ[CRASH_VARIABLE]


def _checksum(file: pathlib.Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> int:
    """Take the tour in a temporary folder; returns the exit status."""
    parser = argparse.ArgumentParser(prog="e2e/try", description=(__doc__ or "").partition("\n")[0])
    in_guest.add_option(parser)
    parser.add_argument(
        "--kubernetes", action="store_true", help="show a volume in a real Kubernetes, through kubectl alone"
    )
    asked = parser.parse_args()
    if asked.kubernetes:
        return kubernetes_tour.main()
    if asked.node == "guest":
        return in_guest.run_again("try", [])
    try:
        with folder_for("try") as testbed:
            tour = Tour(testbed)
            tour.run()
            tour.finish()
    except (TourError, TestbedError, CephError, rados.Error, OSError) as error:
        print(f"\ne2e/try: {error}", file=sys.stderr)
    except grpc.RpcError as error:
        print(f"\ne2e/try: {code_of(error).name}: {details_of(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ne2e/try: interrupted, everything was taken down", file=sys.stderr)
        return 130
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
