"""One identity's connections to one cluster.

There are two handles.  The store's has an operation time-out, since a lost reply is an answer that the
executor knows how to settle.  The images' has none: an aborted librbd call leaves an image half-made.  No
ceph.conf is needed; the key goes into librados' own memory and into no file, argument or log.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import rados

from csi.ceph import monitors
from csi.ceph.errors import translating
from csi.clusters import ClusterConfig
from csi.node.ports import Credentials
from executor.errors import NotFoundError, PreconditionError, UnauthenticatedError, UnavailableError
from omap.store import Place

_KNOCK_SECONDS = 1.5
_SECOND_TRY_SECONDS = 2.5
_LEAST_SECONDS = 2.0
_BARRIER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Seconds for connecting (both handles together) and for each call of the store's handle."""

    connect_timeout: float = 10.0
    store_timeout: float = 10.0


class Connection:
    """Both handles, connected.  Safe for use by many threads.

    Raises UnauthenticatedError if the cluster refuses user or key, UnavailableError if no monitor lets
    anybody in, PreconditionError for another cluster than the one pinned.
    """

    def __init__(self, config: ClusterConfig, credentials: Credentials, settings: ConnectionSettings) -> None:
        self.config = config
        self.user = credentials.user
        self._lock = threading.Lock()
        self._ioctxs: dict[tuple[bool, str, str], rados.Ioctx] = {}
        deadline = time.monotonic() + settings.connect_timeout
        store_options = dict.fromkeys(
            ("rados_osd_op_timeout", "rados_mon_op_timeout"), _seconds(settings.store_timeout)
        )
        self.store = _connected(config, credentials, store_options, settings.connect_timeout)
        try:
            self.fsid = _checked_fsid(config, self.store.get_fsid())
            remaining = max(_LEAST_SECONDS, deadline - time.monotonic())
            self.images = _connected(config, credentials, {"rbd_default_clone_format": "2"}, remaining)
        except BaseException:
            self.store.shutdown()
            raise
        self.image_address = self.images.get_addrs()
        self.addresses = (self.store.get_addrs(), self.image_address)

    def store_ioctx(self, place: Place) -> rados.Ioctx:
        """The place on the handle whose calls time out: for the store and for reads.

        Raises NotFoundError.
        """
        return self._ioctx(place, for_images=False)

    def image_ioctx(self, place: Place) -> rados.Ioctx:
        """The place on the handle without time-outs: for whatever changes an image.  Raises NotFoundError."""
        # Asked on the other handle first, because here a question about an unknown pool may wait without end.
        self._ioctx(place, for_images=False)
        return self._ioctx(place, for_images=True)

    def barrier(self) -> None:
        """Wait until both handles have the newest osdmap.  Raises UnavailableError."""
        what = f"cluster {self.config.cluster_id}"
        with translating(what):
            self.store.wait_for_latest_osdmap()
            if not _within(_BARRIER_SECONDS, self.images.wait_for_latest_osdmap):
                raise UnavailableError(f"{what}: the image connection gets no new osdmap; look at `ceph -s`")

    def blocklisted(self) -> frozenset[str]:
        """Addresses that the cluster has shut out.  Raises UnavailableError, DeniedError."""
        what = f"the blocklist of cluster {self.config.cluster_id}"
        with translating(what):
            code, told, problem = self.store.mon_command(
                json.dumps({"prefix": "osd blocklist ls", "format": "json"}), b""
            )
        if code:
            raise UnavailableError(
                f"{what} cannot be read ({problem or os.strerror(-code)}): look at `ceph -s`"
            )
        # Ceph 16.2 writes a second list behind the one that is meant.
        entries, _ = json.JSONDecoder().raw_decode(told.decode())
        return frozenset(str(entry["addr"]) for entry in entries)

    def close(self) -> None:
        """End both connections; nothing may be in use any more."""
        with self._lock:
            for ioctx in self._ioctxs.values():
                ioctx.close()
            self._ioctxs.clear()
        self.images.shutdown()
        self.store.shutdown()

    def _ioctx(self, place: Place, *, for_images: bool) -> rados.Ioctx:
        key = (for_images, place.pool, place.namespace)
        found = self._ioctxs.get(key)
        if found is not None:
            return found
        handle = self.images if for_images else self.store
        try:
            with translating(str(place)):
                opened = handle.open_ioctx(place.pool)
        except NotFoundError as error:
            raise NotFoundError(
                f"cluster {place.cluster} has no pool {place.pool}: create it or correct the name"
            ) from error
        opened.set_namespace(place.namespace)
        # A full pool then answers so; otherwise RADOS keeps the write waiting without end and without error.
        opened.set_osdmap_full_try()
        with self._lock:
            return self._ioctxs.setdefault(key, opened)


def _checked_fsid(config: ClusterConfig, fsid: str) -> str:
    if config.fsid is not None and fsid != config.fsid:
        raise PreconditionError(
            f"behind the monitors of cluster {config.cluster_id} is the cluster with fsid {fsid}, but"
            f" config.json pins {config.fsid}: correct the monitors or the pin"
        )
    return fsid


def _connected(
    config: ClusterConfig, credentials: Credentials, options: dict[str, str], timeout: float
) -> rados.Rados:
    try:
        return _connect(config.monitors, credentials, options, timeout)
    except rados.TimedOut as error:
        cause: rados.Error = error
    except (rados.PermissionDeniedError, rados.PermissionError) as error:
        raise _refused(config, credentials) from error
    except rados.InvalidArgumentError as error:
        raise UnavailableError(
            f"the monitors {', '.join(config.monitors)} of cluster {config.cluster_id} are no addresses"
            " or their names do not resolve: check config.json and DNS"
        ) from error
    except rados.Error as error:
        raise UnavailableError(
            f"cluster {config.cluster_id} cannot be reached ({type(error).__name__}): look at `ceph -s`"
        ) from error
    # A refused key shows as a time-out when there are several addresses to try.  Asked alone, one says so.
    alive = monitors.answering(config.monitors, _KNOCK_SECONDS)
    if not alive:
        raise UnavailableError(
            f"cluster {config.cluster_id} does not answer: no monitor greets at"
            f" {', '.join(map(str, monitors.endpoints(config.monitors)))}; check the network and `ceph -s`"
        ) from cause
    try:
        return _connect([f"[{alive[0]}/0]"], credentials, options, _SECOND_TRY_SECONDS)
    except (rados.PermissionDeniedError, rados.PermissionError) as error:
        raise _refused(config, credentials) from error
    except rados.Error as error:
        raise UnavailableError(
            f"cluster {config.cluster_id} lets nobody in although the monitor {alive[0]} greets:"
            " perhaps its monitors have no quorum; look at `ceph -s`"
        ) from error


def _connect(
    mon_hosts: Sequence[str], credentials: Credentials, options: dict[str, str], timeout: float
) -> rados.Rados:
    handle = rados.Rados(
        rados_id=credentials.user,
        # Reading a file, even none, is what makes the defaults count: otherwise librados prints to our log
        # what it finds wrong, a key among it.
        conf_defaults={"log_to_stderr": "false", "err_to_stderr": "false"},
        conffile=os.devnull,
        conf={
            "mon_host": ",".join(mon_hosts),
            "key": credentials.key,
            "keyring": "",
            "client_mount_timeout": _seconds(timeout),
            **options,
        },
    )
    try:
        handle.connect()
    except BaseException:
        handle.shutdown()
        raise
    return handle


def _seconds(duration: float) -> str:
    """A duration as an option takes it: whole seconds, and 0 would mean without end."""
    return str(max(1, math.ceil(duration)))


def _refused(config: ClusterConfig, credentials: Credentials) -> UnauthenticatedError:
    return UnauthenticatedError(
        f"cluster {config.cluster_id} refuses the user client.{credentials.user}: it is unknown or its key is"
        f" wrong; compare the secret with `ceph auth get client.{credentials.user}`"
    )


def _within(seconds: float, call: Callable[[], object]) -> bool:
    """Whether the call returned in time; if not, its thread waits on for as long as the cluster is away.

    Raises the call's own rados.Error.
    """
    failures: list[rados.Error] = []

    def run() -> None:
        try:
            call()
        except rados.Error as error:
            failures.append(error)

    worker = threading.Thread(target=run, name="barrier", daemon=True)
    worker.start()
    worker.join(seconds)
    if failures:
        raise failures[0]
    return not worker.is_alive()
