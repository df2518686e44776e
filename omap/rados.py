"""The store on RADOS: one `Write` is one write operation of one object, carried out by its OSD.

Inside an operation the order is: make the object, check the conditions, change keys.  RADOS applies all or
nothing, so the order only decides which answer wins.  What each errno says is in `omap.errnos`.

Time-outs are the connection's own (`rados_osd_op_timeout`): without one, a call waits as long as the cluster
does.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import rados

from omap.errnos import read_error, write_answer
from omap.store import (
    PAGE_KEYS,
    Answer,
    Create,
    Equals,
    ObjectMissingError,
    Place,
    PlaceMissingError,
    StoreError,
    StoreUnavailableError,
    Write,
)

# A key that no object has.  Comparing it is the binding's only way to demand that the object exists: setting
# keys alone would make it.
_NO_SUCH_KEY = "waymark/"
_NO_SUCH_OBJECT = "waymark/"

# Far below any operation time-out, far above what a call without a message takes.
_AT_ONCE_SECONDS = 0.5


class RadosStore:
    """The objects of one place through one ioctx, which may be shared by threads.

    Close it before its connection is shut down: librados ends the process that uses an ioctx thereafter.
    """

    def __init__(self, ioctx: rados.Ioctx, place: Place) -> None:
        self._ioctx = ioctx
        self._place = place
        self._gate = threading.Condition()
        self._calls = 0
        self._closed = False

    @property
    def place(self) -> Place:
        """Where these objects live."""
        return self._place

    def read(self, name: str, *, prefix: str = "") -> dict[str, bytes]:
        """All keys that begin with `prefix`, page by page.

        A page shorter than asked for is taken for the last: the binding does not say whether there are more,
        so an OSD whose `osd_max_omap_entries_per_request` is set below its default of 1,024 is not supported.
        """
        found: dict[str, bytes] = {}
        after = ""
        while True:
            page = self._page(name, after, prefix)
            found.update(page)
            if len(page) < PAGE_KEYS:
                return found
            after = page[-1][0]

    def read_keys(self, name: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Those of the keys that are there, in one read."""

        def ask(operation: rados.ReadOp) -> rados.OmapIterator:
            return self._ioctx.get_omap_vals_by_keys(operation, tuple(keys))[0]

        return dict(self._read(name, ask))

    def write(self, name: str, write: Write) -> Answer:
        """Apply one write in one operation."""
        try:
            with self._in_use(), rados.WriteOpCtx() as operation:
                self._fill(operation, write)
                self._ioctx.operate_write_op(operation, name)
        except rados.Error as error:
            return self._answer(name, error.errno)
        return Answer.APPLIED

    def write_all(self, writes: Sequence[tuple[str, Write]]) -> list[Answer | StoreError]:
        """Send all operations at once, then wait for each."""
        with self._in_use():
            operations = [(name, self._ioctx.create_write_op(), write) for name, write in writes]
            sent: list[tuple[str, rados.Completion | rados.Error]] = []
            for name, operation, write in operations:
                self._fill(operation, write)
                try:
                    sent.append((name, self._ioctx.operate_aio_write_op(operation, name)))
                except rados.Error as error:
                    sent.append((name, error))
            answers = [self._outcome(name, outcome) for name, outcome in sent]
            for _, operation, _ in operations:  # only now: until then they may be on their way
                operation.release()
            return answers

    def names(self, prefix: str) -> Iterator[str]:
        """Names of the objects in the ioctx's namespace, complete when this returns."""
        with self._in_use():
            return iter([name for name in self._list() if name.startswith(prefix)])

    def close(self) -> None:
        """Wait for the calls at work and give up the ioctx.  Later calls raise StoreUnavailableError."""
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._calls == 0)
            self._ioctx.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        # The binding does not look whether the ioctx is still open: it crashes.
        with self._gate:
            if self._closed:
                raise StoreUnavailableError(f"{self._place}: the connection of this store was closed")
            self._calls += 1
        try:
            yield
        finally:
            with self._gate:
                self._calls -= 1
                self._gate.notify_all()

    def _list(self) -> Iterator[str]:
        """Every name, or an error.

        The binding ends the iteration when a listing fails, as if it were complete.  Asked again, it goes on
        where it failed; at the true end it stops at once, without a message to the cluster.  So an end is
        believed if the second one comes at once and the cluster then still answers this client.
        """
        objects = self._ioctx.list_objects()
        while True:
            for found in objects:
                yield found.key
            asked = time.monotonic()
            more = next(objects, None)
            if more is None:
                break
            yield more.key
        if time.monotonic() - asked > _AT_ONCE_SECONDS:
            raise read_error(self._place, "a listing", errno.ETIMEDOUT)
        with contextlib.suppress(ObjectMissingError):
            self.read_keys(_NO_SUCH_OBJECT, ())

    def _page(self, name: str, after: str, prefix: str) -> list[tuple[str, bytes]]:
        def ask(operation: rados.ReadOp) -> rados.OmapIterator:
            return self._ioctx.get_omap_vals(operation, after, prefix, PAGE_KEYS)[0]

        return self._read(name, ask)

    def _read(self, name: str, ask: Callable[[rados.ReadOp], rados.OmapIterator]) -> list[tuple[str, bytes]]:
        try:
            with self._in_use(), rados.ReadOpCtx() as operation:
                found = ask(operation)
                self._ioctx.operate_read_op(operation, name)
                return list(found)
        except rados.Error as error:
            raise self._read_error(name, error.errno) from error

    def _fill(self, operation: rados.WriteOp, write: Write) -> None:
        if write.create is Create.EXCLUSIVE:
            operation.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
        elif write.create is Create.IF_ABSENT:
            operation.new(rados.LIBRADOS_CREATE_IDEMPOTENT)
        else:
            operation.omap_cmp(_NO_SUCH_KEY, "")
        for condition in write.conditions:
            value = condition.value.decode("ascii") if isinstance(condition, Equals) else ""
            operation.omap_cmp(condition.key, value)
        if write.remove_object:
            operation.remove()
        if write.sets:
            self._ioctx.set_omap(operation, tuple(write.sets), tuple(write.sets.values()))
        if write.removes:
            self._ioctx.remove_omap_keys(operation, write.removes)

    def _outcome(self, name: str, outcome: rados.Completion | rados.Error) -> Answer | StoreError:
        if isinstance(outcome, rados.Error):
            number = outcome.errno
        else:
            outcome.wait_for_complete()
            number = -outcome.get_return_value()
        try:
            return self._answer(name, number)
        except StoreError as error:
            return error

    def _answer(self, name: str, number: int | None) -> Answer:
        if number == errno.ENOENT:
            self._check_pool()
        return write_answer(self._place, name, number)

    def _read_error(self, name: str, number: int | None) -> StoreError:
        if number == errno.ENOENT:
            try:
                self._check_pool()
            except PlaceMissingError as error:
                return error
        return read_error(self._place, name, number)

    def _check_pool(self) -> None:
        """Raise PlaceMissingError if the pool is gone: ENOENT says of an object and of a pool the same."""
        try:
            self._ioctx.alignment()  # answered from the osdmap at hand, without a message
        except rados.ObjectNotFound as error:
            raise _pool_missing(self._place) from error


def open_store(connection: rados.Rados, place: Place) -> RadosStore:
    """A store of its own ioctx on a connection.

    It asks for an error when the pool is full, where RADOS otherwise keeps a write waiting without end.
    Raises PlaceMissingError, AccessDeniedError, StoreUnavailableError.  The namespace is not checked: RADOS
    has no list of them, and what RBD declares is RBD's to ask.
    """
    try:
        ioctx = connection.open_ioctx(place.pool)
    except rados.ObjectNotFound as error:
        raise _pool_missing(place) from error
    except rados.Error as error:
        raise read_error(place, "the pool", error.errno) from error
    ioctx.set_namespace(place.namespace)
    ioctx.set_osdmap_full_try()
    return RadosStore(ioctx, place)


def _pool_missing(place: Place) -> PlaceMissingError:
    return PlaceMissingError(f"{place}: there is no such pool; create it or correct the name")
