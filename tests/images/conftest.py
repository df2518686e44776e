"""Image backends under test, each in a place of its kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import rados

from csi.ceph.connection import ConnectionSettings
from csi.ceph.sessions import CephSessions
from csi.clusters import ClusterConfig
from csi.node.ports import Credentials
from csi.session import DriverSession
from e2e.harness.ceph import ERASURE_POOL, NAMESPACE, MicroCeph
from omap.store import Place
from tests.images.rigs import CephRig, MemoryRig, Rig

# What a place is like: its namespace and the data pool of its images.
_KINDS = {"plain": ("", None), "namespace": (NAMESPACE, None), "data-pool": ("", ERASURE_POOL)}


@pytest.fixture(scope="session")
def admin(ceph: MicroCeph) -> Iterator[rados.Rados]:
    with ceph.connect() as connection:
        yield connection


@pytest.fixture(scope="session")
def config(ceph: MicroCeph) -> ClusterConfig:
    return ClusterConfig("micro", (ceph.monitors,), fsid=ceph.fsid)


@pytest.fixture(scope="session")
def credentials(ceph: MicroCeph) -> Credentials:
    return Credentials(ceph.user, ceph.key)


@pytest.fixture
def sessions() -> Iterator[CephSessions]:
    sessions = CephSessions(ConnectionSettings(connect_timeout=3, store_timeout=10))
    yield sessions
    sessions.close()


@pytest.fixture(scope="session")
def ceph_session(config: ClusterConfig, credentials: Credentials) -> Iterator[DriverSession]:
    sessions = CephSessions()
    yield sessions.open(config, credentials)
    sessions.close()


@pytest.fixture(
    params=[
        *(f"memory-{kind}" for kind in _KINDS),
        *(pytest.param(f"ceph-{kind}", marks=pytest.mark.ceph) for kind in _KINDS),
    ]
)
def rig(request: pytest.FixtureRequest) -> Rig:
    backend, _, kind = request.param.partition("-")
    namespace, data_pool = _KINDS[kind]
    place = Place("micro", "rbd", namespace)
    if backend == "memory":
        return MemoryRig(place, data_pool)
    session: DriverSession = request.getfixturevalue("ceph_session")
    admin: rados.Rados = request.getfixturevalue("admin")
    ceph: MicroCeph = request.getfixturevalue("ceph")
    return CephRig(ceph, session, admin, place, data_pool)
