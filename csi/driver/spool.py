"""The node's spool: what the cluster has not been told of yet is told it, again and again until it knows."""

from __future__ import annotations

import threading

from structlog.typing import FilteringBoundLogger

from csi.driver.node import NodeCore, session_of
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


def spool_round(core: NodeCore, log: FilteringBoundLogger) -> Round:
    """The round that tells the cluster; a cluster that is away is told of once until it is back."""
    told: dict[str, str] = {}
    driver = Driver(threading.Event())

    def once() -> None:
        for uuid in node_spool.spooled(core.place.local):
            try:
                _tell(core, driver, uuid)
            except ObjectMissingError:
                continue
            except (OperationError, StoreError) as error:
                if told.get(uuid) != str(error):
                    told[uuid] = str(error)
                    log.warning("not told to the cluster yet", volume=uuid, error=str(error))
                continue
            told.pop(uuid, None)

    return Round("spool", PERIOD_SECONDS, once)


def _tell(core: NodeCore, driver: Driver, uuid: str) -> None:
    local, node = core.place.local, core.place.node
    kept = parse_kept(local.read(names.record_name(uuid)))
    if kept.spooled and kept.home is not None:
        session = session_of(core, VolumeHandle(kept.home.cluster, 0, uuid), None)
        plugin = core.executor.context.instance.id
        driver.drive(node_spool.tell(session.store(kept.home), local, uuid, node, plugin))
    if _drop_key(core, uuid):
        driver.drive(node_spool.forget(local, uuid))


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
