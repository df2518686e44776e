"""One name asked for by many at once, and again in other words: `e2e/parallel`.

Thirty-two parallel calls of one name make one image and get equal answers.  Afterwards the same request in
other words is the same request, and a request that differs is refused and never makes a second image.  A
delete of a create that is still running takes everything back.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import rados
import rbd

from csi import handles
from csi.handles import VolumeHandle
from e2e.harness import audit
from e2e.harness.ceph import command
from e2e.harness.client import code_of, details_of, retried
from e2e.harness.temporary import temporary_testbed
from e2e.harness.testbed import CLUSTER_ID, Layout, Testbed
from e2e.harness.volumes import GIB, Claim, filesystem
from omap import names
from proto import csi_pb2

CALLERS = 32
FLAGS = ("--purge-interval", "1", "--recovery-interval", "1", "--trash-retention", "0")
Change = Callable[[csi_pb2.CreateVolumeRequest], None]


class ParallelError(Exception):
    """Something was not as it must be."""


def run(testbed: Testbed) -> None:
    """Ask, compare, delete, audit.  Raises ParallelError."""
    claim = Claim(testbed, "pvc-wanted-by-many")
    request = claim.create()
    request.accessibility_requirements.requisite.add(segments={"zone": "a"})
    request.accessibility_requirements.requisite.add(segments={"zone": "b"})
    with (
        testbed.client() as client,
        testbed.client("controller-2") as other,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        create = client.controller.CreateVolume
        answers = list(pool.map(lambda _: retried(create, request), range(CALLERS)))
        _expect(all(answer == answers[0] for answer in answers), f"{CALLERS} answers differ: {answers}")
        _expect(_images(testbed) == 1, f"{CALLERS} parallel calls made {_images(testbed)} images")
        print(f"{CALLERS} parallel calls of one name: one image, {len(answers)} equal answers")
        same = _same(testbed)
        for what, change in same.items():
            reworded = copy.deepcopy(request)
            change(reworded)
            answer = retried(create, reworded)
            _expect(answer == answers[0], f"{what}: {answer} is not {answers[0]}")
        print(f"the same request in {len(same)} other wordings: the same answer")
        different = _different()
        for what, change in different.items():
            changed = copy.deepcopy(request)
            change(changed)
            code = _code(partial(create, changed, timeout=30))
            _expect(code == "ALREADY_EXISTS", f"{what} was answered {code}")
        _expect(_images(testbed) == 1, f"refused requests left {_images(testbed)} images")
        print(f"{len(different)} requests that differ: ALREADY_EXISTS, and still one image")
        both = Claim(testbed, "pvc-wanted-from-two").create()
        pair = list(pool.map(lambda c: retried(c.controller.CreateVolume, both), (client, other) * 8))
        _expect(all(answer == pair[0] for answer in pair), f"two controllers answer differently: {pair}")
        _expect(_images(testbed) == 2, f"two controllers made {_images(testbed) - 1} images for a name")
        print("two controllers, eight calls each of one name: one image, equal answers")
        for made in (answers[0], pair[0]):
            retried(client.controller.DeleteVolume, claim.delete(made.volume.volume_id))
    _delete_running(testbed)
    deadline = time.monotonic() + 30
    while True:
        final = audit.settled(testbed, [], 5)
        if final.is_equal and not final.found["trash"] and not final.found["images"]:
            break
        _expect(
            time.monotonic() < deadline, f"the audit is not equal, or not empty: {final.to_json(brief=True)}"
        )
    print("everything deleted: nothing is left")


def _same(testbed: Testbed) -> dict[str, Change]:
    def turn_topology(request: csi_pb2.CreateVolumeRequest) -> None:
        parts = list(request.accessibility_requirements.requisite)
        del request.accessibility_requirements.requisite[:]
        request.accessibility_requirements.requisite.extend(reversed(parts))

    def rotate_key(request: csi_pb2.CreateVolumeRequest) -> None:
        with testbed.ceph.connect() as cluster:
            caps = ["mon", "profile rbd", "osd", "profile rbd", "mgr", "profile rbd"]
            told = json.loads(
                command(
                    cluster, prefix="auth get-or-create", entity="client.rotated", caps=caps, format="json"
                )
            )
        request.secrets["userID"], request.secrets["userKey"] = "rotated", told[0]["key"]

    return {
        "topology in another order": turn_topology,
        "other topology": lambda r: (
            r.accessibility_requirements.requisite.add(segments={"zone": "c"}) and None
        ),
        "other metadata": lambda r: r.parameters.update({"csi.storage.k8s.io/pvc/name": "other"}),
        "another key": rotate_key,
        "no file system named": lambda r: r.volume_capabilities[0].CopyFrom(filesystem("")),
        "a limit": lambda r: setattr(r.capacity_range, "limit_bytes", 2 * GIB),
    }


def _different() -> dict[str, Change]:
    return {
        "another size": lambda r: setattr(r.capacity_range, "required_bytes", 2 * GIB),
        "another file system": lambda r: r.volume_capabilities[0].CopyFrom(filesystem("xfs")),
        "another pool": lambda r: r.parameters.update({"pool": "rbd2"}),
    }


def _delete_running(testbed: Testbed) -> None:
    """Stop a controller in the middle of a create, delete by the other one, let the first go on."""
    claim = Claim(testbed, "pvc-not-wanted-any-more")
    os.environ["WAYMARK_CRASH_AT"] = "create_volume.image.apply:after:stop"
    try:
        testbed.restart("controller")
    finally:
        del os.environ["WAYMARK_CRASH_AT"]
    with testbed.client() as client, testbed.client("controller-2") as other:
        running = client.controller.CreateVolume.future(claim.create(), timeout=60)
        volume_id = _recorded(testbed, claim.name)
        delete = other.controller.DeleteVolume
        code = _code(lambda: delete(claim.delete(volume_id), timeout=20))
        _expect(code == "ABORTED", f"the delete of a running create was answered {code}")
        testbed.kill("controller", signal.SIGCONT)
        retried(delete, claim.delete(volume_id))
        error = running.exception()
        text = details_of(error) if isinstance(error, grpc.RpcError) else str(error)
        _expect(_images(testbed) == 0, "the image of a deleted create is left")
        print(f"a delete of a running create: ABORTED, then OK, nothing left; the create was told: {text}")


def _recorded(testbed: Testbed, name: str) -> str:
    """The volume id of a create at work, from the records."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with testbed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
            pool_id = ioctx.get_pool_id()
            images = rbd.RBD().list(ioctx)
            for each in ioctx.list_objects():
                parsed = names.parse_record_name(each.key)
                if parsed is not None and images and _name_of(ioctx, each.key) == name:
                    return handles.encode(VolumeHandle(CLUSTER_ID, pool_id, parsed[1]))
        threading.Event().wait(0.1)
    raise ParallelError(f"no record of {name} with its image came up")


def _name_of(ioctx: rados.Ioctx, record: str) -> str:
    with rados.ReadOpCtx() as operation:
        found, _ = ioctx.get_omap_vals_by_keys(operation, (names.REQUEST_NAME,))
        ioctx.operate_read_op(operation, record)
        return dict(found).get(names.REQUEST_NAME, b"").decode()


def _images(testbed: Testbed) -> int:
    total = 0
    with testbed.ceph.connect() as cluster:
        for pool in ("rbd", "rbd2"):
            with cluster.open_ioctx(pool) as ioctx:
                total += len(rbd.RBD().list(ioctx))
    return total


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except grpc.RpcError as error:
        return code_of(error).name
    return "OK"


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ParallelError(otherwise)


def main() -> int:
    """Run from the command line; the exit code."""
    try:
        with temporary_testbed("parallel", Layout(controllers=2, serve_flags=FLAGS)) as testbed:
            run(testbed)
    except ParallelError as error:
        print(f"e2e/parallel: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
