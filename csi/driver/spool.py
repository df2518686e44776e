"""The node's spool: what the cluster has not been told of yet is told it, again and again until it knows."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from structlog.typing import FilteringBoundLogger

from csi.driver.node_core import NodeCore, session_of
from csi.driver.tending import Round
from csi.handles import VolumeHandle
from executor import node_spool
from executor.drive import Driver
from executor.errors import OperationError, PendingError
from executor.keys import subject_key
from executor.model import Object
from executor.node_marks import STAGED
from executor.node_record import parse_kept
from omap import names
from omap.store import ObjectMissingError, StoreError

PERIOD_SECONDS = 1.0
"""Between two looks into the spool, which is a folder of this host."""

WAIT_SECONDS = 2.0
"""How long a call that took a volume off the node waits for the cluster to know."""

_THREADS = 4


class Spool:
    """Tells the cluster what this node did while nothing waited for it.  Safe for use by many threads."""

    def __init__(self, core: NodeCore, log: FilteringBoundLogger) -> None:
        """Nothing is told before it is asked for."""
        self._core = core
        self._log = log
        self._driver = Driver(threading.Event())
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="spool")
        self._problems: dict[str, str] = {}

    def tell_soon(self, uuid: str) -> Future[None]:
        """Begin to tell what is known of a volume; whatever fails is tried again by the next round."""
        return self._pool.submit(self._tell_one, uuid)

    def tell(self, uuid: str) -> None:
        """Tell what is known of a volume, and wait a moment: what comes next may ask the cluster.

        A volume is deleted right after it is unstaged, and by then the cluster must know that no node has it.
        """
        telling = self.tell_soon(uuid)
        try:
            telling.result(WAIT_SECONDS)
        except FutureTimeoutError:
            telling.cancel()

    def round(self) -> Round:
        """The round that tells of every volume that has something to tell."""

        def once() -> None:
            for uuid in node_spool.spooled(self._core.place.local):
                self._tell_one(uuid)

        return Round("spool", PERIOD_SECONDS, once)

    def _tell_one(self, uuid: str) -> None:
        """A cluster that is away is logged once until it is back."""
        problem = ""
        try:
            self._tell(uuid)
        except ObjectMissingError:
            pass  # told and forgotten meanwhile
        except (OperationError, StoreError) as error:
            problem = str(error)
            if self._problems.get(uuid) != problem:
                self._log.warning("not told to the cluster yet", volume=uuid, error=problem)
        if problem:
            self._problems[uuid] = problem
        else:
            self._problems.pop(uuid, None)

    def _tell(self, uuid: str) -> None:
        core, local = self._core, self._core.place.local
        kept = parse_kept(local.read(names.record_name(uuid)))
        if kept.spooled and kept.home is not None:
            session = session_of(core, VolumeHandle(kept.home.cluster, 0, uuid), None)
            plugin = core.executor.context.instance.id
            self._driver.drive(
                node_spool.tell(session.store(kept.home), local, uuid, core.place.node, plugin)
            )
        if _drop_key(core, uuid):
            self._driver.drive(node_spool.forget(local, uuid))


def _drop_key(core: NodeCore, uuid: str) -> bool:
    """Drop the identity kept for a volume that this node has done with; whether it has.

    Not before the cluster knows all, since telling needs it; before the local record, which is what leads
    here again.  Under the volume's key, so that it is never the one that a new stage has just kept.
    """
    keys = core.executor.context.keys
    request: Object = {"drop": uuid}
    try:
        running, is_new = keys.admit(subject_key(uuid), "drop_key", uuid, request, lambda _other: False)
    except PendingError:
        return False
    try:
        kept = parse_kept(core.place.local.read(names.record_name(uuid)))
        is_done = not (
            kept.spooled
            or kept.state == STAGED
            or kept.open_transaction is not None
            or kept.data.get("published")
        )
        if is_new and is_done:
            core.host.stage_keys.forget(uuid)
        return is_done
    finally:
        keys.leave(running)
