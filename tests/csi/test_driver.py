"""The driver behind the services, on a cluster in memory."""

from __future__ import annotations

import base64
import io
import json
import pathlib
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from csi import handles, logs, memory_images
from csi.clusters import ClusterConfig, ClusterConfigs
from csi.commands import (
    AccessMode,
    Capability,
    CreateVolume,
    DeleteVolume,
    ListOperations,
    ReadVolume,
    ValidateVolume,
)
from csi.driver.controller import ControllerVolumes, Core
from csi.driver.records import RecordReader
from csi.driver.tending import ControllerRounds, Reach, Round, Tending
from csi.handles import VolumeHandle
from csi.host import RandomIds, SystemClock, boot_id, instance_id
from csi.identities import Keyring
from csi.memory_session import MemorySession
from csi.node.ports import Credentials
from csi.operations import create_volume, delete_volume, purge_volume
from csi.parameters import ClassParameters
from csi.session import DriverSession
from csi.sessions import Sessions
from executor.context import Context, Periods
from executor.directory import Served
from executor.errors import (
    MismatchError,
    NotFoundError,
    PreconditionError,
    UnauthenticatedError,
    UnavailableError,
)
from executor.instance import Instance
from executor.keys import Keys
from executor.operation_executor import OperationExecutor
from omap.files import FileStore
from omap.memory import MemoryCluster
from omap.store import Place

KEY = base64.b64encode(struct.pack("<HIIH", 1, 0, 0, 16) + bytes(16)).decode()
GIVEN = Credentials("kubernetes", KEY)
CLOCK = SystemClock()
OPERATIONS = (create_volume.OPERATION, delete_volume.OPERATION, purge_volume.OPERATION)
UUID = "7c1f53a0-3a3b-4a0e-8f0e-5e6f1f2a9d11"
CREATE = CreateVolume(
    name="pvc-1",
    required_bytes=1 << 30,
    limit_bytes=0,
    size_bytes=1 << 30,
    access="mount",
    fs_type="ext4",
    mount_flags=(),
    access_modes=(AccessMode.SINGLE_NODE_WRITER,),
    parameters=ClassParameters("prod", "rbd"),
    credentials=GIVEN,
)
MOUNTED = Capability("mount", AccessMode.SINGLE_NODE_WRITER, "ext4")


def soon() -> float:
    return CLOCK.monotonic() + 30.0


class OneCluster:
    """Connects every identity to the same cluster in memory, once it may."""

    def __init__(self) -> None:
        self.session = MemorySession(MemoryCluster(("rbd", "meta")), "prod")
        self.answers = threading.Event()
        self.answers.set()
        self.refuses: Exception | None = None
        self.opened: list[Credentials] = []

    def open(self, config: ClusterConfig, credentials: Credentials, timeout: float = 30.0) -> DriverSession:
        if not self.answers.wait(timeout):
            raise UnavailableError(f"cluster {config.cluster_id} has not answered yet")
        self.opened.append(credentials)
        if self.refuses is not None:
            raise self.refuses
        return self.session


class Bed:
    """A controller without its process."""

    def __init__(self, folder: pathlib.Path) -> None:
        config = folder / "config.json"
        config.write_text(
            json.dumps([{"clusterID": "prod", "monitors": ["192.0.2.1"], "journalPool": "meta"}])
        )
        self.keys = folder / "keys"
        self.cluster = OneCluster()
        self.log_stream = io.StringIO()
        self.log = logs.to_stream(self.log_stream, "info")
        self.sessions = Sessions(ClusterConfigs(config), Keyring(self.keys), self.cluster, CLOCK)
        instance = Instance(instance_id(), FileStore(folder / "instances"), CLOCK)
        context: Context[DriverSession] = Context(
            instance=instance,
            served=Served(),
            keys=Keys(CLOCK, instance.id),
            clock=CLOCK,
            ids=RandomIds(),
            periods=Periods(),
            operations={(each.name, each.version): each for each in OPERATIONS},
        )
        self.executor = OperationExecutor(context, workers=4)
        self.reach = Reach(self.executor, self.sessions, self.log)
        self.volumes = ControllerVolumes(lambda: Core(self.executor, self.sessions))
        self.records = RecordReader(self.sessions, CLOCK, self.reach.places, lambda _handle: None)

    def give_own_identity(self) -> None:
        folder = self.keys / "prod"
        folder.mkdir(parents=True)
        (folder / "userID").write_text("driver\n")
        (folder / "userKey").write_text(KEY + "\n")

    def read(self, volume_id: str) -> ReadVolume:
        return ReadVolume(volume_id, handles.decode(volume_id))


@pytest.fixture
def bed(tmp_path: pathlib.Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.executor.close(5.0)


def delete(volume_id: str) -> DeleteVolume:
    return DeleteVolume(volume_id, handles.decode(volume_id), GIVEN)


def validate(volume_id: str, **changed: object) -> ValidateVolume:
    command = ValidateVolume(volume_id, handles.decode(volume_id), (MOUNTED,), credentials=GIVEN)
    return replace(command, **changed)  # type: ignore[arg-type]  # fields of a table


def test_a_volume_is_made_once_told_of_and_deleted(bed: Bed) -> None:
    bed.give_own_identity()
    made = bed.volumes.create_volume(CREATE, soon())

    assert bed.volumes.create_volume(CREATE, soon()) == made
    state = bed.records.volume(bed.read(made.volume_id), soon())
    assert (state.state, state.size_bytes, state.place) == ("live", 1 << 30, Place("prod", "rbd"))
    bed.volumes.delete_volume(delete(made.volume_id), soon())
    bed.volumes.delete_volume(delete(made.volume_id), soon())
    history = bed.records.history(bed.read(made.volume_id), soon())
    assert [entry.transaction.operation for entry in history.entries] == ["create_volume", "delete_volume"]


def test_a_history_is_told_from_the_tombstone_too(bed: Bed) -> None:
    bed.give_own_identity()
    made = bed.volumes.create_volume(CREATE, soon())
    bed.volumes.delete_volume(delete(made.volume_id), soon())
    for place, session in bed.reach.places().items():
        for batch in bed.executor.purge(session, place, purge_volume.NAME):
            for begun in batch:
                begun.result(timeout=30)

    history = bed.records.history(bed.read(made.volume_id), soon())

    assert history.state == "gone"
    assert history.entries[0].transaction.operation == "create_volume"
    with pytest.raises(NotFoundError, match="has no record of it"):
        bed.records.volume(bed.read(made.volume_id), soon())


def test_a_volume_nobody_made_has_neither_state_nor_history(bed: Bed) -> None:
    bed.give_own_identity()
    made = handles.decode(bed.volumes.create_volume(CREATE, soon()).volume_id)
    other = handles.encode(replace(made, uuid=UUID))

    for ask in (bed.records.volume, bed.records.history):
        with pytest.raises(NotFoundError, match=UUID):
            ask(bed.read(other), soon())


def test_a_delete_in_a_pool_that_is_gone_has_nothing_to_do(bed: Bed) -> None:
    bed.volumes.delete_volume(delete(handles.encode(VolumeHandle("prod", 77, UUID))), soon())


def test_a_validation_says_in_what_a_volume_differs(bed: Bed) -> None:
    volume_id = bed.volumes.create_volume(CREATE, soon()).volume_id
    block = Capability("block", AccessMode.SINGLE_NODE_WRITER)

    assert bed.volumes.validate_volume(validate(volume_id), soon()) == ""
    for changed, says in (
        ({"capabilities": (block,)}, "made for mount access"),
        ({"capabilities": (replace(MOUNTED, fs_type="xfs"),)}, "made for ext4"),
        ({"parameters": ClassParameters("prod", "fast")}, "pool rbd, not fast"),
        ({"refusal": "not served"}, "not served"),
    ):
        assert says in bed.volumes.validate_volume(validate(volume_id, **changed), soon())
    bed.volumes.delete_volume(delete(volume_id), soon())
    with pytest.raises(NotFoundError):
        bed.volumes.validate_volume(validate(volume_id), soon())


def test_a_name_that_is_taken_is_refused(bed: Bed) -> None:
    bed.volumes.create_volume(CREATE, soon())

    with pytest.raises(MismatchError, match="xfs"):
        bed.volumes.create_volume(replace(CREATE, fs_type="xfs"), soon())


def test_no_operation_is_open_when_all_are_over(bed: Bed) -> None:
    bed.give_own_identity()
    bed.volumes.create_volume(CREATE, soon())

    assert bed.records.operations(ListOperations(0, ""), soon()).entries == ()


def test_without_any_identity_the_caller_is_told_what_to_set_up(bed: Bed) -> None:
    with pytest.raises(PreconditionError, match="no Ceph user for cluster prod"):
        bed.volumes.create_volume(replace(CREATE, credentials=None), soon())


def test_the_requests_identity_comes_before_the_drivers_own(bed: Bed) -> None:
    bed.give_own_identity()
    for given in (None, GIVEN):
        bed.sessions.open("prod", given, soon())

    assert [identity.user for identity in bed.cluster.opened] == ["driver", "kubernetes"]
    assert bed.sessions.identity("prod", None, lambda: GIVEN).user == "driver"


def test_a_cluster_that_does_not_answer_keeps_nobody_beyond_his_deadline(bed: Bed) -> None:
    bed.cluster.answers.clear()

    with pytest.raises(UnavailableError, match="cluster prod has not answered yet"):
        bed.sessions.open("prod", GIVEN, CLOCK.monotonic())

    bed.cluster.answers.set()
    assert bed.sessions.open("prod", GIVEN, soon()) is bed.cluster.session
    assert len(bed.cluster.opened) == 1


def test_a_refused_identity_is_told_and_tried_again(bed: Bed) -> None:
    bed.cluster.refuses = UnauthenticatedError("the key is refused")
    with pytest.raises(UnauthenticatedError):
        bed.sessions.open("prod", GIVEN, soon())

    bed.cluster.refuses = None

    assert bed.sessions.open("prod", GIVEN, soon()) is bed.cluster.session


def test_a_place_that_no_identity_reaches_is_logged_once(bed: Bed) -> None:
    for _ in range(2):
        assert bed.reach.places() == {}

    lines = bed.log_stream.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["place not reached"]
    bed.give_own_identity()
    assert list(bed.reach.places()) == [Place("prod", "meta")]


def test_a_round_that_fails_is_told_once_and_goes_on(bed: Bed) -> None:
    rounds = threading.Semaphore(0)

    def fail() -> None:
        rounds.release()
        raise UnavailableError("the cluster is away")

    tending = Tending([Round("purge", 0.0, fail)], bed.log)
    tending.start()
    for _ in range(5):
        assert rounds.acquire(timeout=30)
    tending.close()

    lines = [json.loads(line) for line in bed.log_stream.getvalue().splitlines()]
    assert [(line["round"], line["error"]) for line in lines] == [("purge", "the cluster is away")]


def test_one_round_purges_all_that_is_due_and_tells_of_what_is_not_to_be_purged(bed: Bed) -> None:
    made = [bed.volumes.create_volume(replace(CREATE, name=f"pvc-{n}"), soon()).volume_id for n in range(40)]
    for volume_id in made:
        bed.volumes.delete_volume(delete(volume_id), soon())
    images = bed.cluster.session.images(Place("prod", "rbd"))
    stuck = images.trash_entries()[0].image_id
    memory_images.open_image(bed.cluster.session.memory, Place("prod", "rbd"), stuck, "192.0.2.9:0/9")
    rounds = ControllerRounds(bed.executor, bed.reach, bed.log).all()

    next(each for each in rounds if each.name == "purge").work()

    assert [entry.image_id for entry in images.trash_entries()] == [stuck]
    lines = [json.loads(line) for line in bed.log_stream.getvalue().splitlines()]
    (line,) = (line for line in lines if "work" in line)
    assert line["work"] == "purge"
    assert "192.0.2.9:0/9" in line["error"]


def test_this_host_names_processes_and_boots() -> None:
    assert instance_id() != instance_id()
    assert "." not in instance_id()
    assert boot_id() == boot_id()
