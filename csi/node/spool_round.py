"""A volume's turn in the node's spool: the cluster is told what it does not know, then all is forgotten.

The order makes it safe to be cut short anywhere.  The identity kept for the volume goes only when the cluster
knows everything, since telling needs it, and no device is left, which the local record need not know of when
the state directory was once lost; and it goes before the local record, which is what leads here again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from csi import handles
from csi.handles import VolumeHandle
from csi.node.session import HostParts, NodeSession
from executor import node_spool
from executor.effects import Routine, act, look
from executor.errors import NotFoundError, PendingError
from executor.keys import Keys, Running, subject_key
from executor.model import Object
from executor.node_change import NodePlace
from executor.node_record import Kept, parse_kept
from omap import names
from omap.store import ObjectMissingError, Place, Store

POINT = "spool"


@dataclass(frozen=True, slots=True)
class SpoolRound:
    """What a turn needs of the plugin.

    `plugin` names this life of it.  `session_for` gives the session of a volume, with the identity kept for
    it; `namespace_of` the RADOS namespace that a `clusterID` is configured with.
    """

    place: NodePlace
    plugin: str
    keys: Keys
    host: HostParts
    session_for: Callable[[VolumeHandle], NodeSession]
    namespace_of: Callable[[str], str]

    def volumes(self) -> tuple[str, ...]:
        """Every volume to give a turn, by uuid."""
        return node_spool.spooled(self.place.local)

    def turn(self, uuid: str) -> Routine[None]:
        """Tell the cluster of one volume, and forget the volume if nothing of it is here any more.

        Raises the store's and the session's errors: the next turn tries again, and nothing is lost by them.
        """
        try:
            kept = yield from self._kept(uuid)
        except ObjectMissingError:
            return
        if kept.spooled:
            store = yield from look(f"{POINT}.connect", lambda: self._store(kept))
            telling = node_spool.tell(store, self.place.local, uuid, self.place.node, self.plugin)
            if not (yield from telling):
                return
        yield from self._forget(uuid)

    def _kept(self, uuid: str) -> Routine[Kept]:
        read = self.place.local.read
        return parse_kept((yield from look(f"{POINT}.kept", lambda: read(names.record_name(uuid)))))

    def _store(self, kept: Kept) -> Store | None:
        """Where the volume's record is; None when its pool is gone.

        A volume that was only ever taken off this node has no place noted: its id tells it.
        """
        handle = handles.decode(kept.volume_id)
        session = self.session_for(handle)
        if kept.home is not None:
            return session.store(kept.home)
        try:
            pool = session.ceph.pool_name(handle.pool_id)
        except NotFoundError:
            return None
        return session.store(Place(handle.cluster_id, pool, self.namespace_of(handle.cluster_id)))

    def _forget(self, uuid: str) -> Routine[None]:
        """Under the volume's key, so that no stage that begins meanwhile loses what it has just kept.

        The key of a volume in use is not even asked for: who comes in that moment would have to come again.
        """
        try:
            kept = yield from self._kept(uuid)
        except ObjectMissingError:
            return
        running = self._admitted(uuid) if kept.is_over else None
        if running is None:
            return
        try:
            kept = yield from self._kept(uuid)
            if kept.is_over and (yield from look(f"{POINT}.device", lambda: self._is_clear(uuid))):
                yield from act(f"{POINT}.key", lambda: self.host.stage_keys.forget(uuid))
                yield from node_spool.forget(self.place.local, uuid)
        except ObjectMissingError:
            return
        finally:
            self.keys.leave(running)

    def _is_clear(self, uuid: str) -> bool:
        return all(mapper.is_clear(uuid) for mapper in self.host.mappers.values())

    def _admitted(self, uuid: str) -> Running | None:
        request: Object = {"forget": uuid}
        try:
            running, is_new = self.keys.admit(
                subject_key(uuid), "forget_volume", uuid, request, lambda _: False
            )
        except PendingError:
            return None
        assert is_new
        return running
