"""Waymark's own service: what the records say of volumes and of the work on them."""

from __future__ import annotations

import grpc

from csi.deadlines import deadline
from csi.requests import operations as requests
from csi.services import render_records
from csi.services.ports import Records
from executor.ports import Clock
from proto import waymark_pb2, waymark_pb2_grpc


class Operations(waymark_pb2_grpc.OperationsServicer):
    """Only reads."""

    def __init__(self, records: Records, clock: Clock) -> None:
        """Answer from these records; `clock` is the one that their deadlines are told in."""
        self._records = records
        self._clock = clock

    def Get(self, request: waymark_pb2.GetRequest, context: grpc.ServicerContext) -> waymark_pb2.GetResponse:
        """The present state of a volume."""
        command = requests.read_volume(request)
        state = self._records.volume(command, deadline(context, self._clock))
        return render_records.volume(command.volume_id, state)

    def History(
        self, request: waymark_pb2.HistoryRequest, context: grpc.ServicerContext
    ) -> waymark_pb2.HistoryResponse:
        """What was asked of a volume and what came of it."""
        command = requests.read_volume(request)
        found = self._records.history(command, deadline(context, self._clock))
        return render_records.history(command.volume_id, found)

    def List(
        self, request: waymark_pb2.ListRequest, context: grpc.ServicerContext
    ) -> waymark_pb2.ListResponse:
        """Operations that are not finished."""
        command = requests.list_operations(request)
        page = self._records.operations(command, deadline(context, self._clock))
        return render_records.operations(page)
