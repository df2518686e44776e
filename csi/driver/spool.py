"""The node's spool: what the cluster has not been told of yet is told it, again and again until it knows."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from structlog.typing import FilteringBoundLogger

from csi.driver.node_core import NodeCore, session_of
from csi.driver.tending import Round
from csi.node.spool_round import SpoolRound
from executor.drive import Driver
from executor.errors import OperationError
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
        self._turns = SpoolRound(
            core.place,
            core.executor.context.instance.id,
            core.executor.context.keys,
            core.host,
            lambda handle: session_of(core, handle, None),
            lambda cluster: core.sessions.config(cluster).namespace,
        )
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
            for uuid in self._turns.volumes():
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
        self._driver.drive(self._turns.turn(uuid))
