"""A served driver whose operations only note what reaches them, for tests of what comes before."""

from __future__ import annotations

import io
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc
import pytest
from prometheus_client import CollectorRegistry

from csi import logs
from csi.admission import Admission
from csi.commands import (
    CreateVolume,
    DeleteVolume,
    ExpandVolume,
    ListOperations,
    NodeExpandVolume,
    PublishVolume,
    ReadVolume,
    StageVolume,
    UnpublishVolume,
    UnstageVolume,
    ValidateVolume,
    VolumeStats,
)
from csi.interceptors import Calls
from csi.metrics import Metrics
from csi.node.ports import FileSystemUsage
from csi.server import Server
from csi.services.controller import Controller
from csi.services.identity import Identity
from csi.services.node import Node
from csi.services.operations import Operations
from csi.services.ports import CreatedVolume, DeviceUsage, OperationPage, VolumeState
from executor.history import History
from proto import csi_pb2_grpc, waymark_pb2_grpc

MAX_CALLS = 2
HANDLE = "0001-0004-prod-0000000000000002-7c1f53a0-3a3b-4a0e-8f0e-5e6f1f2a9d11"


class RealClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass
class Noting:
    """Operations that note each command and do what `act` says."""

    commands: list[object] = field(default_factory=list)
    act: Callable[[object], None] = lambda _command: None
    usage: FileSystemUsage | DeviceUsage = field(default_factory=lambda: DeviceUsage(1 << 20))
    state: VolumeState = field(default_factory=lambda: VolumeState("live", 1))
    found: History = field(default_factory=lambda: History("", "", "", {}, ()))

    def _note(self, command: object) -> None:
        self.commands.append(command)
        self.act(command)

    def create_volume(self, command: CreateVolume, deadline: float) -> CreatedVolume:
        self._note(command)
        return CreatedVolume(HANDLE, command.size_bytes)

    def delete_volume(self, command: DeleteVolume, deadline: float) -> None:
        self._note(command)

    def expand_volume(self, command: ExpandVolume | NodeExpandVolume, deadline: float) -> int:
        self._note(command)
        return command.size_bytes

    def validate_volume(self, command: ValidateVolume, deadline: float) -> str:
        self._note(command)
        return command.refusal

    def stage_volume(self, command: StageVolume, deadline: float) -> None:
        self._note(command)

    def unstage_volume(self, command: UnstageVolume, deadline: float) -> None:
        self._note(command)

    def publish_volume(self, command: PublishVolume, deadline: float) -> None:
        self._note(command)

    def unpublish_volume(self, command: UnpublishVolume, deadline: float) -> None:
        self._note(command)

    def volume_stats(self, command: VolumeStats, deadline: float) -> FileSystemUsage | DeviceUsage:
        self._note(command)
        return self.usage

    def volume(self, command: ReadVolume, deadline: float) -> VolumeState:
        self._note(command)
        return self.state

    def history(self, command: ReadVolume, deadline: float) -> History:
        self._note(command)
        return self.found

    def operations(self, command: ListOperations, deadline: float) -> OperationPage:
        self._note(command)
        return OperationPage(())


@dataclass
class Served:
    """A server, and clients for it."""

    socket: pathlib.Path
    operations: Noting
    registry: CollectorRegistry
    log_stream: io.StringIO
    channel: grpc.Channel

    @property
    def identity(self) -> csi_pb2_grpc.IdentityStub:
        return csi_pb2_grpc.IdentityStub(self.channel)

    @property
    def controller(self) -> csi_pb2_grpc.ControllerStub:
        return csi_pb2_grpc.ControllerStub(self.channel)

    @property
    def node(self) -> csi_pb2_grpc.NodeStub:
        return csi_pb2_grpc.NodeStub(self.channel)

    @property
    def records(self) -> waymark_pb2_grpc.OperationsStub:
        return waymark_pb2_grpc.OperationsStub(self.channel)

    def log_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log_stream.getvalue().splitlines()]


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[Served]:
    operations, clock, log_stream = Noting(), RealClock(), io.StringIO()
    admission, registry, numbers = Admission(MAX_CALLS), CollectorRegistry(), itertools.count(1)

    def register(server: grpc.Server) -> None:
        identity = Identity("test.waymark.dev", "1.2.3", has_controller=True)
        csi_pb2_grpc.add_IdentityServicer_to_server(identity, server)
        csi_pb2_grpc.add_ControllerServicer_to_server(Controller(operations, clock), server)
        csi_pb2_grpc.add_NodeServicer_to_server(Node(operations, clock, "node-1"), server)
        waymark_pb2_grpc.add_OperationsServicer_to_server(Operations(operations, clock), server)

    calls = Calls(
        logs.to_stream(log_stream, "debug"),
        Metrics("test.waymark.dev", registry),
        admission,
        request_ids=lambda: f"request-{next(numbers)}",
    )
    socket = tmp_path / "csi.sock"
    server = Server(socket, admission.threads, [calls], register)
    server.start()
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        yield Served(socket, operations, registry, log_stream, channel)
    server.stop(lambda: None)
