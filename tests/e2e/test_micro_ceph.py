from __future__ import annotations

import json
import pathlib
import stat
from collections.abc import Iterator

import pytest
import rados
import rbd

from e2e.harness.ceph import ERASURE_POOL, NAMESPACE, CephError, MicroCeph
from e2e.harness.interrupts import interrupts_clean_up

pytestmark = pytest.mark.ceph


@pytest.fixture
def own(tmp_path: pathlib.Path) -> Iterator[MicroCeph]:
    """A cluster of the test's own, to be killed and stopped."""
    cluster = MicroCeph(tmp_path / "cluster")
    with interrupts_clean_up():
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.destroy()


def connected(ceph: MicroCeph) -> rados.Rados:
    """A connection as the driver makes it: monitors and key, no ceph.conf."""
    options = {"mon_host": ceph.monitors, "key": ceph.key, "client_mount_timeout": "10"}
    return rados.Rados(rados_id=ceph.user, conf=options)


def test_what_was_acknowledged_outlives_kill_9_of_all(own: MicroCeph) -> None:
    with own.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
        ioctx.write_full("kept", b"value")

    own.kill()
    assert all(pid is None for _, pid in own.status())
    own.start()

    with own.connect() as cluster, cluster.open_ioctx("rbd") as ioctx:
        assert ioctx.read("kept") == b"value"


def test_a_paused_osd_answers_once_it_is_resumed(own: MicroCeph) -> None:
    own.pause()
    with own.connect() as cluster, cluster.open_ioctx("rbd") as ioctx, rados.WriteOpCtx() as write:
        write.write_full(b"late")
        completion = ioctx.operate_aio_write_op(write, "late")
        assert not completion.is_complete()

        own.resume()
        completion.wait_for_complete()
        assert completion.get_return_value() == 0


def test_destroyed_it_leaves_nothing(own: MicroCeph) -> None:
    own.destroy()

    assert not own.folder.exists()
    assert list(own.status()) == [("mon.a", None)]


def test_a_daemon_that_is_not_there_is_named(ceph: MicroCeph) -> None:
    with pytest.raises(CephError, match=r"no daemon 'osd\.7' here; there are: all, osd\.0, mon\.a"):
        ceph.kill("osd.7")


def test_the_drivers_user_has_the_documented_caps_and_no_more(ceph: MicroCeph) -> None:
    with ceph.connect() as admin:
        command = json.dumps({"prefix": "auth get", "entity": f"client.{ceph.user}", "format": "json"})
        _, output, _ = admin.mon_command(command, b"")
    assert json.loads(output)[0]["caps"] == dict.fromkeys(("mon", "osd", "mgr"), "profile rbd")

    with connected(ceph) as driver:
        code, _, _ = driver.mon_command(json.dumps({"prefix": "osd pool create", "pool": "mine"}), b"")
    assert code < 0


def test_the_drivers_key_is_its_owners_alone(ceph: MicroCeph) -> None:
    assert stat.S_IMODE(ceph.secrets_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(ceph.admin_keyring.stat().st_mode) == 0o600


def test_one_namespace_is_declared(ceph: MicroCeph) -> None:
    with connected(ceph) as driver, driver.open_ioctx("rbd") as ioctx:
        assert NAMESPACE in rbd.RBD().namespace_list(ioctx)
        assert not rbd.RBD().namespace_exists(ioctx, "nons")


def test_the_erasure_coded_pool_keeps_data_and_no_omap(ceph: MicroCeph) -> None:
    with ceph.connect() as cluster, cluster.open_ioctx(ERASURE_POOL) as ioctx:
        ioctx.write_full("chunks", b"value")
        assert ioctx.read("chunks") == b"value"
        with rados.WriteOpCtx() as write:
            ioctx.set_omap(write, ("key",), (b"value",))
            with pytest.raises(rados.Error) as refused:
                ioctx.operate_write_op(write, "keys")
    assert refused.value.errno == 95
