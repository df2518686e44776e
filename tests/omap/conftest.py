"""Stores under test: each is handed out empty."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator

import pytest
import rados

from e2e.harness.ceph import MicroCeph
from omap.files import FileStore
from omap.memory import MemoryCluster, MemoryStore
from omap.rados import RadosStore, open_store
from omap.store import Place, Store

_numbers = itertools.count()


@pytest.fixture(scope="session")
def connection(ceph: MicroCeph) -> Iterator[rados.Rados]:
    """One connection for all tests that do not break theirs."""
    with ceph.connect() as connection:
        yield connection


@pytest.fixture
def rados_store(connection: rados.Rados) -> RadosStore:
    """A store in a RADOS namespace that no other test uses."""
    return open_store(connection, Place("micro", "meta", f"omap-{next(_numbers)}"))


@pytest.fixture
def memory_store() -> MemoryStore:
    return MemoryStore(MemoryCluster(["meta"]), Place("memory", "meta"))


@pytest.fixture
def file_store(tmp_path: pathlib.Path) -> FileStore:
    return FileStore(tmp_path / "state")


@pytest.fixture(params=["memory", "file", pytest.param("rados", marks=pytest.mark.ceph)])
def store(request: pytest.FixtureRequest) -> Store:
    """Each implementation in turn."""
    fixture: Store = request.getfixturevalue(f"{request.param}_store")
    return fixture


@pytest.fixture(params=["memory", pytest.param("rados", marks=pytest.mark.ceph)])
def open_in_cluster(request: pytest.FixtureRequest) -> Callable[[str], Store]:
    """Opens a store of a pool on a cluster with the pools `meta` (replicated) and `ec` (erasure-coded)."""
    if request.param == "memory":
        cluster = MemoryCluster(["meta"])
        cluster.add_pool("ec", erasure_coded=True)
        return lambda pool: MemoryStore(cluster, Place("memory", pool))
    connection: rados.Rados = request.getfixturevalue("connection")
    namespace = f"omap-{next(_numbers)}"
    return lambda pool: open_store(connection, Place("micro", pool, namespace))
