"""All that a micro Ceph holds, read as `client.admin` straight from RADOS and librbd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import rados
import rbd

from e2e.harness.ceph import ERASURE_POOL, POOLS, MicroCeph

DIRECTORY = "rbd_directory"
TRASH = "rbd_trash"
HEADER = "rbd_header."
_PAGE_KEYS = 1024
_WITH_KEYS = ("csi.", DIRECTORY, TRASH, HEADER)
"""Beginnings of the names of objects whose OMAP keys are of interest."""


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A pool and RADOS namespace; written `pool` or `pool/namespace`."""

    pool: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.namespace}" if self.namespace else self.pool


@dataclass(frozen=True, slots=True)
class Contents:
    """What was there at about one moment."""

    objects: dict[Location, set[str]] = field(default_factory=dict)
    keys: dict[tuple[Location, str], dict[str, bytes]] = field(default_factory=dict)
    images: dict[Location, set[str]] = field(default_factory=dict)
    """As `rbd ls` tells them."""
    trash: dict[Location, dict[str, str]] = field(default_factory=dict)
    """Names by image id, as `rbd trash ls` tells them."""
    pool_ids: dict[int, str] = field(default_factory=dict)


def read(ceph: MicroCeph) -> Contents:
    """Read every pool in all its namespaces, declared or not."""
    contents = Contents()
    with ceph.connect() as cluster:
        for pool in (*POOLS, ERASURE_POOL):
            with cluster.open_ioctx(pool) as ioctx:
                contents.pool_ids[ioctx.get_pool_id()] = pool
                ioctx.set_namespace(rados.LIBRADOS_ALL_NSPACES)
                for found in ioctx.list_objects():
                    contents.objects.setdefault(Location(pool, found.nspace), set()).add(found.key)
        for location, names in contents.objects.items():
            with cluster.open_ioctx(location.pool) as ioctx:
                ioctx.set_namespace(location.namespace)
                _read_location(ioctx, location, names, contents)
    return contents


def _read_location(ioctx: rados.Ioctx, location: Location, names: set[str], contents: Contents) -> None:
    for name in names:
        if name.startswith(_WITH_KEYS):
            contents.keys[location, name] = dict(_keys(ioctx, name))
    if DIRECTORY in names:
        contents.images[location] = set(rbd.RBD().list(ioctx))
    if TRASH in names:
        contents.trash[location] = {entry["id"]: entry["name"] for entry in rbd.RBD().trash_list(ioctx)}


def _keys(ioctx: rados.Ioctx, name: str) -> Iterator[tuple[str, bytes]]:
    after = ""
    while True:
        with rados.ReadOpCtx() as operation:
            page, _ = ioctx.get_omap_vals(operation, after, "", _PAGE_KEYS)
            try:
                ioctx.operate_read_op(operation, name)
            except rados.ObjectNotFound:  # removed since the listing
                return
            rows = list(page)
        yield from rows
        if len(rows) < _PAGE_KEYS:
            return
        after = rows[-1][0]
