"""What the services say of themselves, and how results are told."""

from __future__ import annotations

import grpc
import pytest

from csi.cli import history
from csi.deadlines import DEFAULT_SECONDS, MARGIN_SECONDS, deadline
from csi.node.ports import FileSystemUsage
from csi.services.ports import OpenOperation, VolumeState
from executor.history import Entry, History
from executor.model import Failure, Mark, Transaction, TransactionState
from omap.store import Place
from proto import csi_pb2, waymark_pb2
from tests.csi.conftest import HANDLE, Served
from tests.csi.test_requests import create, refusal

STATS = csi_pb2.NodeGetVolumeStatsRequest(volume_id=HANDLE, volume_path="/kubelet/target")


def test_the_driver_says_who_it_is(served: Served) -> None:
    info = served.identity.GetPluginInfo(csi_pb2.GetPluginInfoRequest())
    capabilities = served.identity.GetPluginCapabilities(csi_pb2.GetPluginCapabilitiesRequest()).capabilities

    assert (info.name, info.vendor_version) == ("test.waymark.dev", "1.2.3")
    assert [capability.service.type for capability in capabilities if capability.HasField("service")] == [
        csi_pb2.PluginCapability.Service.CONTROLLER_SERVICE
    ]
    assert [each.volume_expansion.type for each in capabilities if each.HasField("volume_expansion")] == [
        csi_pb2.PluginCapability.VolumeExpansion.ONLINE
    ]


def test_the_services_say_what_they_offer(served: Served) -> None:
    controller = served.controller.ControllerGetCapabilities(csi_pb2.ControllerGetCapabilitiesRequest())
    node = served.node.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest())

    assert [capability.rpc.type for capability in controller.capabilities] == [
        csi_pb2.ControllerServiceCapability.RPC.CREATE_DELETE_VOLUME,
        csi_pb2.ControllerServiceCapability.RPC.EXPAND_VOLUME,
    ]
    assert [capability.rpc.type for capability in node.capabilities] == [
        csi_pb2.NodeServiceCapability.RPC.STAGE_UNSTAGE_VOLUME,
        csi_pb2.NodeServiceCapability.RPC.GET_VOLUME_STATS,
        csi_pb2.NodeServiceCapability.RPC.EXPAND_VOLUME,
    ]


def test_a_node_says_its_name(served: Served) -> None:
    assert served.node.NodeGetInfo(csi_pb2.NodeGetInfoRequest()).node_id == "node-1"


@pytest.mark.parametrize("service", ["Controller", "Node"])
def test_every_method_of_csi_is_answered_by_the_driver_itself(served: Served, service: str) -> None:
    descriptor = csi_pb2.DESCRIPTOR.services_by_name[service]
    answers = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}
    for method in descriptor.methods:
        path = f"/csi.v1.{service}/{method.name}"
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = served.channel.unary_unary(path)
        if method.name.endswith(("GetCapabilities", "GetInfo")):
            send(b"")
        else:
            assert refusal(send, b"")[0] in answers
    assert len(served.log_lines()) == len(descriptor.methods)


def test_a_created_volume_is_told(served: Served) -> None:
    answer = served.controller.CreateVolume(create())

    assert (answer.volume.volume_id, answer.volume.capacity_bytes) == (HANDLE, 1 << 30)


def test_an_expanded_volume_is_told_and_the_node_has_to_notice(served: Served) -> None:
    wanted = csi_pb2.CapacityRange(required_bytes=(2 << 30) - 1)
    request = csi_pb2.ControllerExpandVolumeRequest(volume_id=HANDLE, capacity_range=wanted)
    answer = served.controller.ControllerExpandVolume(request)
    assert (answer.capacity_bytes, answer.node_expansion_required) == (2 << 30, True)
    there = csi_pb2.NodeExpandVolumeRequest(
        volume_id=HANDLE, volume_path="/kubelet/target", capacity_range=wanted
    )
    assert served.node.NodeExpandVolume(there).capacity_bytes == 2 << 30


def test_the_usage_of_a_file_system_and_of_a_device_is_told(served: Served) -> None:
    device = served.node.NodeGetVolumeStats(STATS).usage
    served.operations.usage = FileSystemUsage(100, 30, 60, 10, 4, 6)
    mounted = served.node.NodeGetVolumeStats(STATS).usage

    unit = csi_pb2.VolumeUsage
    assert list(device) == [unit(unit=unit.BYTES, total=1 << 20)]
    assert list(mounted) == [
        unit(unit=unit.BYTES, total=100, used=30, available=60),
        unit(unit=unit.INODES, total=10, used=4, available=6),
    ]


def test_a_volumes_state_is_told_as_far_as_it_is_known(served: Served) -> None:
    request = waymark_pb2.GetRequest(volume_id=HANDLE)
    served.operations.state = VolumeState("creating", 0)
    least = served.records.Get(request)
    served.operations.state = VolumeState(
        "live",
        3,
        1 << 30,
        "csi-vol-1",
        Place("prod", "rbd", "ns"),
        OpenOperation("delete_volume", "trash_image", "open", "controller-1", 12.5),
    )
    most = served.records.Get(request)

    assert least == waymark_pb2.GetResponse(volume_id=HANDLE, state="creating")
    assert (most.state, most.head, most.data.size_bytes, most.data.image) == ("live", 3, 1 << 30, "csi-vol-1")
    assert most.data.place == waymark_pb2.Place(cluster_id="prod", pool="rbd", namespace="ns")
    assert most.open_operation.age.ToMilliseconds() == 12_500
    assert most.open_operation.stage == "trash_image"


FAILED = Transaction(
    operation="create_volume",
    version=1,
    seq=1,
    holder="controller-1",
    request={},
    data={"size_bytes": 5},
    marks={"check": Mark.DONE, "image": Mark.UNDONE},
    state=TransactionState.REVERTED,
    failure=Failure("ExhaustedError", "pool rbd is full"),
    begun=1_700_000_000.0,
    ended=1_700_000_001.5,
)
OPEN = Transaction(
    operation="stage_volume",
    version=2,
    seq=1,
    holder="node plugin",
    request={},
    data={},
    marks={"map": Mark.INTENDED},
    begun=1_700_000_002.0,
)


def test_a_history_is_told_and_printed(served: Served) -> None:
    served.operations.found = History("u", "pvc-1", "gone", {}, (Entry(FAILED), Entry(OPEN, "node-1")))

    answer = served.records.History(waymark_pb2.HistoryRequest(volume_id=HANDLE))
    first, second = answer.transactions
    lines = history.fetch(served.socket, HANDLE, "table").splitlines()
    document = history.fetch(served.socket, HANDLE, "json")

    assert (first.operation, first.state, first.error) == ("create_volume", "reverted", "pool rbd is full")
    assert [(mark.stage, mark.mark) for mark in first.stages] == [("check", "done"), ("image", "undone")]
    assert first.data == '{"size_bytes": 5}'
    assert first.ended.ToMilliseconds() - first.begun.ToMilliseconds() == 1500
    assert (second.node_id, second.version, second.HasField("ended")) == ("node-1", 2, False)
    assert lines[0].split() == ["TIME", "OPERATION", "STATE", "STAGE", "SECONDS", "HOLDER", "ERROR"]
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "2023-11-14 22:13:20 create_volume reverted image (undone) 1.500 controller-1 pool rbd is full",
        "2023-11-14 22:13:22 stage_volume open map (intended) node plugin on node-1",
    ]
    assert '"operation": "create_volume"' in document


def test_a_history_that_cannot_be_told_says_why(served: Served) -> None:
    with pytest.raises(history.HistoryError, match=r"INVALID_ARGUMENT: no volume 'x'"):
        history.fetch(served.socket, "x", "table")


def test_a_list_is_told(served: Served) -> None:
    assert served.records.List(waymark_pb2.ListRequest()) == waymark_pb2.ListResponse()


class Call:
    def __init__(self, remaining: float | None) -> None:
        self._remaining = remaining

    def time_remaining(self) -> float | None:
        return self._remaining


class Clock:
    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 1000.0


@pytest.mark.parametrize(
    ("remaining", "wait"),
    [(None, DEFAULT_SECONDS), (10.0, 10.0 - MARGIN_SECONDS), (0.5, 0.0), (1e9, DEFAULT_SECONDS)],
)
def test_a_handler_answers_a_moment_before_its_caller_gives_up(remaining: float | None, wait: float) -> None:
    assert deadline(Call(remaining), Clock()) == 1000.0 + wait
