"""What the records say of volumes and of the work on them.  Reads only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from csi import handles
from csi.clusters import ClusterConfig
from csi.commands import ListOperations, ReadVolume
from csi.handles import VolumeHandle
from csi.node.ports import Credentials
from csi.services.ports import ListedOperation, OpenOperation, OperationPage, VolumeState
from csi.session import DriverSession
from csi.sessions import Sessions
from executor import history, recovery
from executor.creation import IMAGE
from executor.directory import OpenEntry
from executor.errors import NotFoundError, OperationError
from executor.history import History
from executor.model import SubjectState, Transaction
from executor.ports import Clock
from executor.record import Record
from executor.store_errors import operation_error
from omap import names
from omap.codec import read_record
from omap.store import ObjectMissingError, Place, Store, StoreError

PAGE_OPERATIONS = 500
"""The most operations that one answer lists, which keeps it far below gRPC's 4 MiB."""

Places = Callable[[], Iterable[Place]]
Kept = Callable[[VolumeHandle], Credentials | None]


class RecordReader:
    """The Operations service's answers."""

    def __init__(self, sessions: Sessions, clock: Clock, places: Places, kept: Kept) -> None:
        """`places` are the directories that this process looks after.

        `kept` tells the identity kept for a volume staged here; it is used where the driver has none of its
        own.
        """
        self._sessions = sessions
        self._clock = clock
        self._places = places
        self._kept = kept

    def volume(self, command: ReadVolume, deadline: float) -> VolumeState:
        """The present state.  Raises NotFoundError."""
        session, config = self._open(command.handle, deadline)
        home = home_of(session, command.handle, config)
        record = _read(session.store(home), command.volume_id, command.handle.uuid)
        data, seq = record.head_data, record.head.get("seq")
        size, image = data.get("size_bytes"), data.get(IMAGE)
        transaction = record.open_transaction
        return VolumeState(
            state=record.state.value,
            head=seq if isinstance(seq, int) else 0,
            size_bytes=size if isinstance(size, int) else None,
            image=image if isinstance(image, str) else None,
            place=home,
            open_operation=None if transaction is None else self._told(transaction),
        )

    def history(self, command: ReadVolume, deadline: float) -> History:
        """What was asked and what came of it, also of a deleted volume.  Raises NotFoundError."""
        session, config = self._open(command.handle, deadline)
        home, uuid = home_of(session, command.handle, config), command.handle.uuid
        try:
            record = _read(session.store(home), command.volume_id, uuid)
        except NotFoundError:
            value = _tombstone(session.store(journal_of(config, home)), uuid)
            if value is None:
                raise
            return history.of_tombstone(uuid, value)
        entries = history.entries_of(record.keys)
        return History(uuid, record.request_name, record.state.value, record.head, entries)

    def operations(self, command: ListOperations, deadline: float) -> OperationPage:
        """Operations not finished, ordered by volume id; a token is the last id told before."""
        limit = min(command.max_entries or PAGE_OPERATIONS, PAGE_OPERATIONS)
        found = sorted(self._listed(deadline), key=lambda entry: entry.volume_id)
        rest = [entry for entry in found if entry.volume_id > command.starting_token]
        page = tuple(rest[:limit])
        return OperationPage(page, page[-1].volume_id if len(rest) > limit else "")

    def _open(self, handle: VolumeHandle, deadline: float) -> tuple[DriverSession, ClusterConfig]:
        identity = self._sessions.identity(handle.cluster_id, None, lambda: self._kept(handle))
        session = self._sessions.open(handle.cluster_id, identity, deadline)
        return session, self._sessions.config(handle.cluster_id)

    def _listed(self, deadline: float) -> Iterator[ListedOperation]:
        for place in self._places():
            session = self._sessions.open(place.cluster, None, deadline)
            with translated():
                opened = recovery.scan(session.store(place), self._clock.now()).open
            for entry in {entry.uuid: entry for entry in opened}.values():
                listed = self._entry(session, entry)
                if listed is not None:
                    yield listed

    def _entry(self, session: DriverSession, entry: OpenEntry) -> ListedOperation | None:
        handle = VolumeHandle(entry.home.cluster, session.pool_id(entry.home.pool), entry.uuid)
        try:
            record = _read(session.store(entry.home), entry.request_name, entry.uuid)
        except NotFoundError:
            told = OpenOperation(entry.operation, "", "open", entry.instance, 0.0)
            return ListedOperation(handles.encode(handle), entry.home, told)
        transaction = record.open_transaction
        if transaction is None:
            return None
        return ListedOperation(handles.encode(handle), entry.home, self._told(transaction))

    def _told(self, transaction: Transaction) -> OpenOperation:
        return OpenOperation(
            operation=transaction.operation,
            stage=transaction.current_stage,
            state=transaction.state.value,
            holder=transaction.holder,
            age_seconds=self._clock.now() - transaction.begun,
        )


def home_of(session: DriverSession, handle: VolumeHandle, config: ClusterConfig) -> Place:
    """Where a volume's record and image are.  Raises NotFoundError when its pool is gone."""
    return Place(handle.cluster_id, session.pool_name(handle.pool_id), config.namespace)


def journal_of(config: ClusterConfig, home: Place) -> Place:
    """Where the directory is that has a volume's name."""
    return Place(home.cluster, config.journal_pool or home.pool, home.namespace)


def read_live(session: DriverSession, home: Place, volume_id: str, uuid: str) -> Record:
    """The record of a volume that can be used.  Raises NotFoundError if it is not there or was deleted."""
    record = _read(session.store(home), volume_id, uuid)
    if record.state is not SubjectState.LIVE:
        raise NotFoundError(f"volume {volume_id} ({record.request_name}) is {record.state.value}")
    return record


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise a store's errors as operations' errors."""
    try:
        yield
    except StoreError as error:
        problem: OperationError = operation_error(error)
        raise problem from error


def _read(store: Store, volume_id: str, uuid: str) -> Record:
    name = names.record_name(uuid)
    with translated():
        try:
            return Record.parse(name, read_record(store, name))
        except ObjectMissingError:
            raise NotFoundError(
                f"volume {volume_id} is not there: {store.place} has no record of it"
            ) from None


def _tombstone(store: Store, uuid: str) -> bytes | None:
    """A tombstone lies in the shard of a name that nobody knows any more: any of them may have it."""
    key = names.gone_key(uuid)
    with translated():
        for shard in names.shard_names():
            with contextlib.suppress(ObjectMissingError):
                found = store.read_keys(shard, [key])
                if key in found:
                    return found[key]
    return None
