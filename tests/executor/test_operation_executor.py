"""The door of the executor, with real threads: admission, joining, deadlines, faults and the end.

Threads are held inside a stage by a gate, never by time; a deadline is in the past or far away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from csi.commands import CreateVolume
from csi.operations import create_volume, purge_volume
from csi.requests import controller
from csi.session import DriverSession
from executor.change import Change
from executor.creation import Creation
from executor.drive import ShutdownError
from executor.errors import (
    MismatchError,
    OverloadedError,
    PendingError,
    TransientError,
    UnavailableError,
)
from executor.model import Done, Object, Operation, Work
from executor.operation_executor import OperationExecutor
from executor.record import CancelledError
from proto import csi_pb2
from tests.executor.audit import audit, images_found, names_in, records
from tests.executor.world import FAST, GIB, META, OPERATIONS, RBD, Process, World, command

PATIENCE = 30.0
"""Seconds that a test waits for another thread before it gives up."""


@dataclass
class Gate:
    """Holds whoever comes through until it is opened; then raises `failure`, if there is one."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure


class Rig:
    """A world, a process of it, its executor, and gates before and after the making of the image."""

    def __init__(
        self, *, state: str = "a", world: World | None = None, workers: int = 64, waiting: int = 256
    ) -> None:
        self.before = Gate()
        self.after = Gate()
        self.after.opened.set()
        self.operation = self._gated()
        self.world = world or World(journal_pool=META.pool)
        self.world.operations = {**OPERATIONS, (create_volume.NAME, 1): self.operation}
        self.process: Process = self.world.process(state)
        self.faults: list[tuple[str, BaseException]] = []
        self.fenced: list[str] = []
        self.executor = OperationExecutor(
            self.process.context,
            on_fault=lambda what, error: self.faults.append((what, error)),
            on_fenced=self.fenced.append,
            workers=workers,
            waiting=waiting,
        )
        self.callers = ThreadPoolExecutor(64)

    def _gated(self) -> Operation[DriverSession]:
        (stage,) = create_volume.OPERATION.stages

        def apply(work: Work[DriverSession]) -> Done:
            self.before.pass_through()
            done = stage.apply(work)
            self.after.pass_through()
            return done

        return replace(create_volume.OPERATION, stages=(replace(stage, apply=apply),))

    @property
    def later(self) -> float:
        return self.world.clock.monotonic() + PATIENCE

    @property
    def now(self) -> float:
        return self.world.clock.monotonic()

    def creation(self, wanted: CreateVolume | None = None) -> Creation[DriverSession]:
        return replace(self.process.creation(wanted), operation=self.operation)

    def create(self, wanted: CreateVolume | None = None) -> Object:
        return self.executor.run(self.creation(wanted), self.later)

    def deletion(self) -> Change[DriverSession]:
        ((place, uuid),) = records(self.world)
        return self.process.deletion(uuid, place.pool)

    def begin(self, wanted: CreateVolume | None = None) -> Future[Object]:
        """A create in another thread, held right before it makes its image."""
        call = self.callers.submit(self.create, wanted)
        assert self.before.reached.wait(PATIENCE)
        return call

    def images(self) -> int:
        found = [*images_found(self.world, RBD), *images_found(self.world, FAST)]
        return sum(name.startswith("rbd_header") for name in found)

    def audit(self) -> None:
        self.executor.flush()
        audit(self.world)


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    """Makes rigs, and ends them with the test."""
    made: list[Rig] = []

    def make(**limits: Any) -> Rig:
        made.append(Rig(**limits))
        return made[-1]

    yield make
    for rig in made:
        rig.before.opened.set()
        rig.after.opened.set()
        rig.executor.close(PATIENCE)
        rig.callers.shutdown(wait=True)


@pytest.fixture
def rig(rigs: Callable[..., Rig]) -> Rig:
    return rigs()


# Joining and admission


def test_equal_calls_at_once_make_one_image_and_get_one_answer(rig: Rig) -> None:
    first = rig.begin()
    others = [rig.callers.submit(rig.create) for _ in range(31)]
    rig.before.opened.set()
    answers = [call.result(PATIENCE) for call in (first, *others)]
    assert answers == [answers[0]] * 32
    assert rig.images() == 1
    rig.audit()


def test_a_call_that_joins_waits_for_the_very_operation(rig: Rig) -> None:
    first = rig.begin()
    joined = rig.executor.start(rig.creation())
    assert not joined.done()
    rig.before.opened.set()
    assert joined.result(PATIENCE) == first.result(PATIENCE)


def test_another_request_is_refused_and_told_who_is_at_work(rig: Rig) -> None:
    first = rig.begin()
    rig.world.clock.advance(7)
    with pytest.raises(PendingError) as refused:
        rig.create(command(required_bytes=2 * GIB, size_bytes=2 * GIB))
    for part in ("create_volume", "pvc-1", "image.apply", "7 s", rig.process.name):
        assert part in str(refused.value)
    rig.before.opened.set()
    first.result(PATIENCE)


@pytest.mark.parametrize(
    "change",
    [{"required_bytes": 2 * GIB, "size_bytes": 2 * GIB}, {"fs_type": "xfs"}, {"pool": FAST.pool}],
    ids=["size", "file-system", "pool"],
)
def test_one_name_is_one_volume_however_often_another_is_asked_for(rig: Rig, change: dict[str, Any]) -> None:
    first = rig.begin()
    with pytest.raises(PendingError):
        rig.create(command(**change))
    rig.before.opened.set()
    answer = first.result(PATIENCE)
    with pytest.raises(MismatchError):
        rig.create(command(**change))
    assert rig.create() == answer
    assert rig.images() == 1
    rig.audit()


def asked(change: Callable[[csi_pb2.CreateVolumeRequest], object] | None = None) -> CreateVolume:
    """The command of a protobuf request, changed a little."""
    request = csi_pb2.CreateVolumeRequest(name="pvc-1", parameters={"clusterID": "c", "pool": RBD.pool})
    request.capacity_range.required_bytes = GIB
    capability = request.volume_capabilities.add()
    capability.mount.fs_type = "ext4"
    capability.access_mode.mode = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
    for zone in ("z1", "z2"):
        request.accessibility_requirements.requisite.add().segments["zone"] = zone
    if change is not None:
        change(request)
    return controller.create_volume(request)


def _other_topology(request: csi_pb2.CreateVolumeRequest) -> None:
    del request.accessibility_requirements.requisite[:]
    for zone in ("z3", "z2", "z1"):
        request.accessibility_requirements.requisite.add().segments["zone"] = zone


def _other_metadata(request: csi_pb2.CreateVolumeRequest) -> None:
    request.parameters["csi.storage.k8s.io/pvc/name"] = "renamed"


def _rotated_key(request: csi_pb2.CreateVolumeRequest) -> None:
    request.secrets.update({"userID": "other", "userKey": "AQDzYwRlAAAAABAAW2w1rA0uUgYBbTJ1eR4T5g=="})


def _default_file_system(request: csi_pb2.CreateVolumeRequest) -> None:
    request.volume_capabilities[0].mount.fs_type = ""


def _limit_added(request: csi_pb2.CreateVolumeRequest) -> None:
    request.capacity_range.limit_bytes = 2 * GIB


@pytest.mark.parametrize(
    "change", [_other_topology, _other_metadata, _rotated_key, _default_file_system, _limit_added]
)
def test_the_same_request_in_other_words_joins_and_gets_the_result(
    rig: Rig, change: Callable[[csi_pb2.CreateVolumeRequest], object]
) -> None:
    first = rig.begin(asked())
    joined = rig.executor.start(rig.creation(asked(change)))
    rig.before.opened.set()
    answer = first.result(PATIENCE)
    assert joined.result(PATIENCE) == answer
    assert rig.create(asked(change)) == answer
    assert rig.images() == 1


# Deadlines


def test_the_end_of_a_call_is_not_the_end_of_its_operation(rig: Rig) -> None:
    first = rig.begin()
    with pytest.raises(PendingError, match="the work goes on"):
        rig.executor.run(rig.creation(), rig.now)
    rig.before.opened.set()
    assert rig.create() == first.result(PATIENCE)
    assert rig.images() == 1


# A delete that meets its create at work


@pytest.mark.parametrize("held", ["before", "after"])
def test_a_delete_takes_back_the_create_it_meets(rig: Rig, held: str) -> None:
    if held == "after":
        rig.before.opened.set()
        rig.after.opened.clear()
    call = rig.callers.submit(rig.create)
    gate: Gate = getattr(rig, held)
    assert gate.reached.wait(PATIENCE)
    deletion = rig.deletion()
    with pytest.raises(PendingError, match="take everything back"):
        rig.executor.run(deletion, rig.later)
    gate.opened.set()
    assert isinstance(call.exception(PATIENCE), CancelledError)
    assert rig.executor.run(deletion, rig.later) == {}
    assert rig.images() == 0
    assert names_in(rig.world) == {}
    rig.audit()


def test_a_delete_that_meets_another_delete_is_only_refused(rig: Rig) -> None:
    rig.before.opened.set()
    rig.create()
    deletion = rig.deletion()
    running, _ = rig.process.context.keys.admit(deletion.key, "purge_volume", "pvc-1", {}, lambda _: False)
    with pytest.raises(PendingError, match="purge_volume of pvc-1"):
        rig.executor.run(deletion, rig.later)
    rig.process.context.keys.leave(running)
    rig.executor.run(deletion, rig.later)


# Faults


class OddError(Exception):
    """What no stage should raise."""


@pytest.mark.parametrize("failure", [OddError("odd"), UnavailableError("away"), TimeoutError("slow")])
@pytest.mark.parametrize("held", ["before", "after"])
def test_whatever_a_stage_raises_the_key_is_free_and_the_retry_ends_it(
    rig: Rig, held: str, failure: Exception
) -> None:
    gate: Gate = getattr(rig, held)
    gate.failure = failure
    rig.before.opened.set()
    with pytest.raises(TransientError) as refused:
        rig.create()
    assert "odd" not in str(refused.value)
    assert rig.executor.context.keys.running() == ()
    ((_, record),) = records(rig.world).items()
    assert record.owner.instance is None
    if not isinstance(failure, UnavailableError):
        ((what, error),) = rig.faults
        assert "pvc-1" in what
        assert error is failure
    gate.failure = None
    rig.create()
    assert rig.images() == 1
    rig.audit()


def test_a_fault_outside_of_any_stage_is_no_final_answer_either(rig: Rig) -> None:
    def fails(_uuid: str) -> Object:
        raise OddError("odd")

    with pytest.raises(UnavailableError, match="safe to retry"):
        rig.executor.run(replace(rig.creation(), plan=fails), rig.later)
    assert [type(error) for _, error in rig.faults] == [OddError]
    rig.before.opened.set()
    rig.create()
    rig.audit()


class EndOfThread(BaseException):
    """What ends a thread."""


def test_whatever_ends_a_thread_the_key_is_free(rig: Rig) -> None:
    rig.before.failure = EndOfThread()
    rig.before.opened.set()
    with pytest.raises(EndOfThread):
        rig.create()
    assert rig.executor.context.keys.running() == ()


def test_being_shut_out_of_the_cluster_is_told_at_once(rig: Rig) -> None:
    first = rig.begin()
    for address in rig.process.session.addresses:
        rig.world.cluster.blocklist(address)
    rig.before.opened.set()
    assert isinstance(first.exception(PATIENCE), UnavailableError)
    assert rig.fenced


# Overload


def test_more_than_can_wait_is_refused_for_now(rigs: Callable[..., Rig]) -> None:
    rig = rigs(workers=1, waiting=1)
    first = rig.begin()
    second = rig.executor.start(rig.creation(command("pvc-2")))
    with pytest.raises(OverloadedError, match="pvc-3"):
        rig.create(command("pvc-3"))
    rig.before.opened.set()
    first.result(PATIENCE)
    second.result(PATIENCE)
    rig.create(command("pvc-3"))
    assert rig.images() == 3
    rig.audit()


# The end


def test_at_the_end_work_is_left_at_rest_and_the_next_process_goes_on(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.before.opened.set()
    rig.after.opened.clear()
    call = rig.callers.submit(rig.create)
    assert rig.after.reached.wait(PATIENCE)
    end = rig.callers.submit(rig.executor.close, PATIENCE)
    closing = rig.executor._closing
    assert closing.wait(PATIENCE)
    rig.after.opened.set()
    end.result(PATIENCE)
    assert isinstance(call.exception(PATIENCE), ShutdownError)
    with pytest.raises(ShutdownError):
        rig.create()
    ((_, record),) = records(rig.world).items()
    assert record.owner.instance is None
    assert record.open_transaction is not None
    other = rigs(state="b", world=rig.world)
    other.before.opened.set()
    other.create()
    assert other.images() == 1
    other.audit()


def test_at_the_end_what_still_waits_for_a_worker_is_told_to_come_again(rigs: Callable[..., Rig]) -> None:
    rig = rigs(workers=1)
    first = rig.begin()
    waiting = rig.executor.start(rig.creation(command("pvc-2")))
    rig.executor.close(0)
    assert isinstance(waiting.exception(PATIENCE), ShutdownError)
    rig.before.opened.set()
    assert isinstance(first.exception(PATIENCE), ShutdownError)
    assert rig.executor.context.keys.running() == ()


def test_a_delete_at_the_end_leaves_no_wish(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    first = rig.begin()
    deletion = rig.deletion()
    rig.executor.close(0)
    with pytest.raises(PendingError):
        rig.executor.run(deletion, rig.later)
    rig.before.opened.set()
    assert isinstance(first.exception(PATIENCE), ShutdownError)


# Rounds


def test_the_rounds_end_what_nobody_asks_for(rig: Rig) -> None:
    session: DriverSession = rig.process.session
    rig.before.failure = UnavailableError("away")
    rig.before.opened.set()
    with pytest.raises(UnavailableError):
        rig.create(command("given-up"))
    rig.before.failure = None
    rig.create()
    (uuid,) = [uuid for (_, uuid), record in records(rig.world).items() if record.open_transaction is None]
    rig.executor.run(rig.process.deletion(uuid), rig.later)
    for work in rig.executor.recover(session, META):
        work.result(PATIENCE)
    rig.world.clock.advance(rig.world.periods.abandonment + 1)
    for work in rig.executor.recover(session, META):
        work.result(PATIENCE)
    for batch in rig.executor.purge(session, META, purge_volume.NAME):
        for work in batch:
            work.result(PATIENCE)
    rig.audit()
    assert names_in(rig.world) == {}
    assert rig.images() == 0
    rig.world.clock.advance(rig.world.periods.tombstone + 1)
    assert rig.executor.expire(session, META) == 2


def test_recovery_leaves_alone_what_is_at_work(rig: Rig) -> None:
    first = rig.begin()
    assert rig.executor.recover(rig.process.session, META) == []
    rig.before.opened.set()
    first.result(PATIENCE)


def test_a_sign_of_life_is_given_only_while_something_is_at_work(rig: Rig) -> None:
    def beats() -> list[bytes]:
        name = f"csi.waymark.instance.{rig.process.name}"
        keys = rig.world.cluster.contents(META).get(name, {})
        return [value for key, value in keys.items() if key == "waymark/beat"]

    rig.executor.beat()
    assert beats() == []
    first = rig.begin()
    rig.executor.beat()
    rig.executor.beat()
    (beat,) = beats()
    assert beat.startswith(b"%020d" % 2)
    rig.before.opened.set()
    first.result(PATIENCE)
