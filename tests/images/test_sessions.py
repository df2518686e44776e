"""Sessions on a real Ceph: who gets in, who is told what, and who must not suffer from whom."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import dataclasses
import os
import struct
from collections.abc import Iterator

import pytest
import rados
import rbd

from csi.ceph.connection import Connection, ConnectionSettings
from csi.ceph.images import ceph_images
from csi.ceph.sessions import CephSessions
from csi.clusters import ClusterConfig
from csi.images import ImageCondition, ImageSpec
from csi.node.ports import Credentials
from csi.session import DriverSession
from e2e.harness.ceph import MicroCeph
from executor.errors import (
    OperationError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)
from omap.store import Answer, Create, FencedError, Place, Write
from tests.images.rigs import FEATURES, MIB, new_name

pytestmark = pytest.mark.ceph

PLACE = Place("micro", "rbd")


@pytest.fixture
def wrong_key() -> str:
    return base64.b64encode(struct.pack("<HIIH", 1, 1_700_000_000, 0, 16) + os.urandom(16)).decode()


def without_protocol(config: ClusterConfig) -> ClusterConfig:
    """The same monitor as host and port: librados then tries both protocols and tells no refusal."""
    address = config.monitors[0].removeprefix("[v2:").removesuffix("/0]")
    return dataclasses.replace(config, monitors=(address,))


def test_a_session_writes_reads_and_tells_its_addresses(
    ceph: MicroCeph, sessions: CephSessions, config: ClusterConfig, credentials: Credentials
) -> None:
    session: DriverSession = sessions.open(config, credentials)
    name = new_name()
    write = Write(create=Create.EXCLUSIVE, sets={"key": b"value"})
    assert session.store(PLACE).write(name, write) is Answer.APPLIED
    assert session.store(PLACE).read(name) == {"key": b"value"}
    assert session.cluster == "micro"
    assert len(set(session.addresses)) == 2
    session.barrier()
    with sessions_of(config, credentials) as other:
        assert not set(other.addresses) & set(session.addresses)


@contextlib.contextmanager
def sessions_of(config: ClusterConfig, credentials: Credentials) -> Iterator[DriverSession]:
    sessions = CephSessions()
    try:
        yield sessions.open(config, credentials)
    finally:
        sessions.close()


@pytest.mark.parametrize("spelled", ["v2", "host and port"])
@pytest.mark.parametrize("wrong", ["key", "user"])
def test_a_refused_identity_is_told_from_an_absent_cluster(
    sessions: CephSessions,
    config: ClusterConfig,
    credentials: Credentials,
    wrong_key: str,
    spelled: str,
    wrong: str,
) -> None:
    refused = Credentials("nobody", credentials.key) if wrong == "user" else Credentials("waymark", wrong_key)
    where = config if spelled == "v2" else without_protocol(config)
    with pytest.raises(UnauthenticatedError, match=f"micro refuses.*client.{refused.user}") as raised:
        sessions.open(where, refused)
    assert refused.key not in str(raised.value)
    assert sessions.open(where, credentials).pool_id("rbd") > 0


def test_librados_does_not_print_a_key_that_it_cannot_read(
    sessions: CephSessions, config: ClusterConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OperationError):
        sessions.open(config, Credentials("waymark", "c2VjcmV0"))
    assert capfd.readouterr() == ("", "")


def test_a_good_key_in_a_cluster_that_is_away_is_not_called_wrong(
    ceph: MicroCeph, sessions: CephSessions, config: ClusterConfig, credentials: Credentials
) -> None:
    ceph.pause("mon")
    try:
        with pytest.raises(UnavailableError, match=r"micro does not answer.*127\.0\.0\.1"):
            sessions.open(config, credentials)
    finally:
        ceph.resume("all")


def test_monitors_that_do_not_resolve_may_yet_resolve(
    sessions: CephSessions, config: ClusterConfig, credentials: Credentials
) -> None:
    nowhere = dataclasses.replace(config, monitors=("no.such.host.invalid:3300",))
    with pytest.raises(UnavailableError, match=r"no\.such\.host.*config\.json"):
        sessions.open(nowhere, credentials)


def test_a_pinned_cluster_is_not_mistaken_for_another(
    sessions: CephSessions, config: ClusterConfig, credentials: Credentials
) -> None:
    pinned = dataclasses.replace(config, fsid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(PreconditionError, match="pins 00000000"):
        sessions.open(pinned, credentials)


def test_one_identity_connects_once_while_a_bad_one_is_being_refused(
    sessions: CephSessions, config: ClusterConfig, credentials: Credentials, wrong_key: str
) -> None:
    slow = without_protocol(config)
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        bad = pool.submit(sessions.open, slow, Credentials(credentials.user, wrong_key))
        good = [pool.submit(sessions.open, slow, credentials) for _ in range(8)]
        opened = {id(future.result()) for future in good}
        unfinished = not bad.done()
        with pytest.raises(UnauthenticatedError):
            bad.result()
    assert len(opened) == 1
    assert unfinished


def test_a_failure_is_remembered_only_shortly(
    ceph: MicroCeph, config: ClusterConfig, credentials: Credentials, sessions: CephSessions
) -> None:
    clock = [0.0]
    forgetful = CephSessions(ConnectionSettings(connect_timeout=1), monotonic=lambda: clock[0])
    ceph.pause("mon")
    try:
        with pytest.raises(UnavailableError):
            forgetful.open(config, credentials)
    finally:
        ceph.resume("all")
    with pytest.raises(UnavailableError):
        forgetful.open(config, credentials)
    clock[0] += 10
    assert forgetful.open(config, credentials).pool_id("rbd") > 0
    forgetful.close()


def test_a_fenced_session_is_told_so_and_no_longer_changes_anything(
    config: ClusterConfig, credentials: Credentials, ceph_session: DriverSession
) -> None:
    name = new_name()
    with sessions_of(config, credentials) as zombie:
        images = zombie.images(PLACE)
        images.check_place(None)
        zombie.store(PLACE).write(name, Write(create=Create.EXCLUSIVE, sets={"key": b"1"}))
        ceph_session.fence(zombie.addresses)
        ceph_session.barrier()
        with pytest.raises(FencedError):
            zombie.store(PLACE).write(name, Write(sets={"key": b"2"}))
        with pytest.raises(UnavailableError, match="blocklist"):
            images.create(ImageSpec(name, 64 * MIB, FEATURES))
    assert ceph_session.store(PLACE).read(name) == {"key": b"1"}
    assert ceph_session.images(PLACE).probe(name).condition is ImageCondition.ABSENT


def test_looking_at_images_ends_in_time_while_the_cluster_is_away(
    ceph: MicroCeph, config: ClusterConfig, credentials: Credentials
) -> None:
    sessions = CephSessions(ConnectionSettings(store_timeout=1))
    images = sessions.open(config, credentials).images(PLACE)
    images.check_place(None)
    name = new_name()
    images.create(ImageSpec(name, 64 * MIB, FEATURES))
    ceph.pause("osd")
    try:
        for ask in (images.probe, images.is_allocated):
            with pytest.raises(UnavailableError, match="micro"):
                ask(name)
        with pytest.raises(UnavailableError, match="micro"):
            images.trash_entries()
        with pytest.raises(UnavailableError, match="micro"):
            images.trash(name, "1", 0)
    finally:
        ceph.resume("all")
    images.remove(name)
    sessions.close()


def test_a_caller_without_time_is_answered_while_the_connecting_goes_on(
    config: ClusterConfig, credentials: Credentials
) -> None:
    sessions = CephSessions()
    try:
        with pytest.raises(UnavailableError, match="micro has not answered yet"):
            sessions.open(config, credentials, timeout=0.0)

        first = sessions.open(config, credentials)
        assert sessions.open(config, credentials, timeout=0.0) is first
    finally:
        sessions.close()


def test_a_watch_that_counts_for_nothing_does_not_keep_an_image_in_the_trash(
    config: ClusterConfig, credentials: Credentials, admin: rados.Rados
) -> None:
    """librbd counts every watch but its own handle's: one of this session's other handle stands for all."""
    connection = Connection(config, credentials, ConnectionSettings())
    images, name = ceph_images(connection, PLACE), new_name()
    images.create(ImageSpec(name, 64 * MIB, FEATURES))
    image_id = images.probe(name).image_id
    images.trash(name, image_id, 0)
    with rbd.Image(connection.store_ioctx(PLACE), image_id=image_id) as image:
        image.write(b"x" * 4096, 0)
        image.create_snap("kept")
        with pytest.raises(OperationError, match=f"{image_id}.*snapshots"):
            images.purge(image_id)
        image.remove_snap("kept")
        images.purge(image_id)
    with admin.open_ioctx(PLACE.pool) as ioctx:
        assert [found.key for found in ioctx.list_objects() if image_id in found.key] == []
    assert image_id not in {entry.image_id for entry in images.trash_entries()}
    connection.close()
