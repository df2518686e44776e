from __future__ import annotations

import json

import pytest
import rados
import rbd

from e2e.harness import audit
from e2e.harness.testbed import NODE_ID, Testbed
from omap import names
from tests.e2e.mapped import map_and_mount

pytestmark = pytest.mark.ceph

UUID = "0c1d2e3f-0000-4000-8000-000000000001"
NAME = "pvc-1"
PLACE = b'{"cluster":"waymark-e2e","namespace":"","pool":"rbd"}'


def put(bed: Testbed, pool: str, name: str, keys: dict[str, bytes]) -> None:
    with bed.ceph.connect() as cluster, cluster.open_ioctx(pool) as ioctx, rados.WriteOpCtx() as write:
        ioctx.set_omap(write, tuple(keys), tuple(keys.values()))
        ioctx.operate_write_op(write, name)


def make_image(bed: Testbed, name: str) -> str:
    with bed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
        rbd.RBD().create(ioctx, name, 1 << 30, old_format=False)
        with rbd.Image(ioctx, name, read_only=True) as image:
            return image.id()


def make_volume(bed: Testbed, **more: bytes) -> None:
    """A live volume with its directory entry, as the driver leaves it."""
    image_id = make_image(bed, UUID)
    record = {
        names.REQUEST_NAME: NAME.encode(),
        names.IMAGE_NAME: UUID.encode(),
        names.IMAGE_ID: image_id.encode(),
        names.SCHEMA_KEY: b"1",
        names.REV: b"00000000000000000003 a.1.1-3",
        names.STATE: b"live",
        names.WRITER: b"none",
        names.HEAD: b'{"state":"live","data":{}}',
        names.OWNER: b'{"instance":null,"epoch":1}',
    }
    put(bed, "rbd", names.record_name(UUID), record | more)
    entry = b'{"place":' + PLACE + b',"uuid":"' + UUID.encode() + b'"}'
    put(bed, "meta", names.shard_name(NAME), {names.name_key(NAME): entry})


def unexpected(bed: Testbed) -> dict[str, set[str]]:
    return audit.take(bed).unexpected


def test_an_empty_cluster_is_equal(bed: Testbed) -> None:
    assert audit.take(bed, []).is_equal


def test_a_whole_volume_is_equal(bed: Testbed) -> None:
    make_volume(bed)

    assert audit.take(bed).is_equal


def test_a_volume_that_nobody_expects_is_a_difference(bed: Testbed) -> None:
    make_volume(bed)

    assert f"rbd: {UUID}" in audit.take(bed, []).unexpected["images"]


def test_a_volume_that_should_be_there_is_missed(bed: Testbed) -> None:
    handle = f"0001-000b-waymark-e2e-{1:016x}-{UUID}"

    assert f"rbd: {names.record_name(UUID)}" in audit.take(bed, [handle]).missing["objects"]


def test_an_image_without_a_record_is_found(bed: Testbed) -> None:
    image_id = make_image(bed, "stray")

    found = unexpected(bed)

    assert found["images"] == {"rbd: stray"}
    assert f"rbd: rbd_header.{image_id}" in found["objects"]


def test_a_half_made_image_is_found(bed: Testbed) -> None:
    make_volume(bed)
    with bed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
        ioctx.remove_object(f"rbd_id.{UUID}")

    assert f"rbd: rbd_id.{UUID}" in audit.take(bed).missing["objects"]


def test_a_snapshot_is_found(bed: Testbed) -> None:
    make_volume(bed)
    with bed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx, rbd.Image(ioctx, UUID) as image:
        image.create_snap("stray")

    assert len(unexpected(bed)["snapshots"]) == 1


def test_an_object_in_an_undeclared_namespace_is_found(bed: Testbed) -> None:
    with bed.ceph.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
        ioctx.set_namespace("nons")
        ioctx.write_full("csi.volume.stray", b"")

    assert unexpected(bed)["objects"] == {"rbd/nons: csi.volume.stray"}


def test_work_that_is_not_at_rest_is_found(bed: Testbed) -> None:
    make_volume(bed)
    put(bed, "rbd", names.record_name(UUID), {names.OWNER: b'{"instance":"a","epoch":2}'})
    put(bed, "meta", names.shard_name(NAME), {names.open_key(UUID, "a.7"): b"{}"})

    found = unexpected(bed)

    assert found["records"] == {f"rbd: {names.record_name(UUID)} state live, owner a, open: nothing"}
    assert len(found["keys"]) == 1


def test_a_device_and_a_mount_that_no_record_tells_of_are_found(bed: Testbed) -> None:
    make_volume(bed)
    map_and_mount(bed, "stray")

    found = unexpected(bed)

    assert {"stray: storage daemon", "stray: loop device", "stray: export"} <= found["devices"]
    assert len(found["mounts"]) == 2


def test_what_a_node_says_it_has_staged_is_expected(bed: Testbed) -> None:
    make_volume(bed)
    mapped = map_and_mount(bed, UUID)
    keys = bed.folder / "run" / "keys"
    keys.mkdir()
    (keys / UUID).write_text("{}")
    head = {
        "state": "staged",
        "data": {
            "access": "mount",
            "mounter": "fuse",
            "staging_path": str(mapped.staged),
            "published": {str(mapped.published): {}},
        },
    }
    record = names.record_name(UUID)
    put(bed, "rbd", record, {names.node_head_key(NODE_ID): json.dumps(head).encode()})

    assert audit.take(bed).is_equal

    head["data"] = {"access": "mount", "mounter": "fuse", "staging_path": str(mapped.staged)}
    put(bed, "rbd", record, {names.node_head_key(NODE_ID): json.dumps(head).encode()})

    assert unexpected(bed) == {"mounts": {f"{UUID} at {mapped.published}"}}
