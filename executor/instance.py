"""This process as the cluster knows it, and the processes before it.

An instance is one controller process.  In each place it writes to, it first leaves a record of the addresses
under which its connections write, so that a successor can shut them out.  A process that holds the lock of
the same state directory knows that its predecessors are dead: in each place, before any work there, it marks
their records as taken, puts their addresses on the blocklist, and waits until its own connections know.
From then on nothing of theirs can land any more, and their open transactions are as good as at rest.
"""

from __future__ import annotations

import itertools
import threading
from functools import partial

from executor.effects import Routine, Wait, act, look, settle
from executor.errors import PermanentError, UnavailableError
from executor.lives import Lives
from executor.ports import Clock, Session
from omap import names
from omap.codec import Rev, Writer, encode, encode_schema
from omap.store import Absent, Answer, Create, Equals, ObjectMissingError, Place, Store, Write

_TURN_SECONDS = 0.02


class Instance:
    """One controller process.  `local` is the store of its state directory, whose lock the process holds."""

    def __init__(self, instance: str, local: Store, clock: Clock) -> None:
        """Note the new instance locally; whoever is noted there already is a dead predecessor."""
        self.id = instance
        self._clock = clock
        self._lives = Lives(local, instance)
        self._attempts = itertools.count(1)
        self._lock = threading.Lock()
        self._entered: set[tuple[Place, tuple[str, ...]]] = set()
        self._entering: set[Place] = set()

    @property
    def predecessors(self) -> frozenset[str]:
        """The instances known dead."""
        return self._lives.dead

    def places(self) -> frozenset[Place]:
        """Every place that this instance or a predecessor entered."""
        return self._lives.places()

    def attempt(self) -> str:
        """A name for one attempt at a transaction, never used again."""
        return f"{self.id}.{next(self._attempts)}"

    def may_take(self, instance: str | None) -> bool:
        """Whether what this owner left open may be taken on: nobody's, our own, or a dead predecessor's."""
        return instance is None or instance == self.id or instance in self._lives.dead

    def is_entered(self, session: Session, place: Place) -> bool:
        """Whether `enter` has nothing left to do."""
        with self._lock:
            return (place, tuple(session.addresses)) in self._entered

    def enter(self, session: Session, place: Place) -> Routine[None]:
        """Before a session's first effect in a place: leave its addresses, and shut predecessors out."""
        while not self._is_my_turn(place):
            yield Wait(_TURN_SECONDS, f"another operation is the first in {place}")
        try:
            if not self.is_entered(session, place):
                yield from self._enter(session, place)
        finally:
            with self._lock:
                self._entering.discard(place)

    def shut_out(self, place: Place) -> frozenset[str]:
        """Predecessors of which nothing can land in the place any more."""
        return self._lives.shut_out(place)

    def retire(self, dead: frozenset[str], place: Place) -> None:
        """Forget predecessors, shut out of a place before a scan that found nothing of theirs open."""
        self._lives.retire(dead, place)

    def _is_my_turn(self, place: Place) -> bool:
        """One routine at a time: what the first has done, the others need not do again."""
        with self._lock:
            if place in self._entering:
                return False
            self._entering.add(place)
            return True

    def _enter(self, session: Session, place: Place) -> Routine[None]:
        store = session.store(place)
        addresses = tuple(session.addresses)
        # The local note comes first: a record that no successor knows to look for would fence nothing.
        yield from act("instance.note", lambda: self._lives.enter(place))
        yield from self._leave_addresses(store, addresses)
        dead = self._lives.to_fence(place)
        for each in dead:
            yield from self._shut_out(session, store, each)
        if self._lives.dead:
            # Each session of its own: a map that another connection has tells nothing about this one's.
            yield from act("instance.barrier", session.barrier)
        if dead:
            # Only now: from here on no successor looks at them again.
            yield from act("instance.fenced", lambda: self._lives.fenced(dead, place))
        with self._lock:
            self._entered.add((place, addresses))

    def _leave_addresses(self, store: Store, addresses: tuple[str, ...]) -> Routine[None]:
        name = names.instance_name(self.id)
        for key in [names.address_key(address) for address in addresses]:
            value = encode({"writer": self.id, "since": self._clock.now()})
            write = Write(
                (Absent(key),), {key: value, names.SCHEMA_KEY: encode_schema()}, create=Create.IF_ABSENT
            )
            # A condition that fails means that the address stands there already.
            yield from settle(partial(act, "instance.address", partial(store.write, name, write)))

    def _shut_out(self, session: Session, store: Store, dead: str) -> Routine[None]:
        name = names.instance_name(dead)
        try:
            keys = yield from look("instance.read", lambda: store.read(name))
        except ObjectMissingError:
            return  # it never got as far as a connection here, so nothing of it can land here
        taken = encode({"writer": self.id, "time": self._clock.now()})
        if names.TAKEN not in keys:
            write = Write((Absent(names.TAKEN),), {names.TAKEN: taken})
            yield from settle(lambda: act("instance.taken", lambda: store.write(name, write)))
        addresses = [
            a for a in map(names.parse_address_key, keys) if a is not None and a not in session.addresses
        ]
        if addresses:
            try:
                yield from act("instance.fence", lambda: session.fence(addresses))
            except PermanentError as error:
                # No fault of whoever asks, and what the predecessor left is still there.
                msg = (
                    f"the earlier process {dead} cannot be shut out of {store.place}: {error}; what it left "
                    "waits until this user may put clients on the blocklist (mon caps `profile rbd`)"
                )
                raise UnavailableError(msg) from error

    def beat(self, store: Store) -> Routine[Answer]:
        """Show that this instance lives, by a conditional write that raises its count."""
        name = names.instance_name(self.id)
        keys = yield from look("instance.read", lambda: store.read_keys(name, [names.BEAT]))
        before = keys.get(names.BEAT)
        number = Rev.parse(before, f"{name} {names.BEAT}").number if before is not None else 0
        after = bytes(Rev(number + 1, str(Writer(self.id, "beat", f"{number + 1}"))))
        condition = Absent(names.BEAT) if before is None else Equals(names.BEAT, before)
        answer = yield from act(
            "instance.beat", lambda: store.write(name, Write((condition,), {names.BEAT: after}))
        )
        return answer
