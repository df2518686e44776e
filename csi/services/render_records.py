"""Results as protobuf, for the Operations service."""

from __future__ import annotations

import json

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from csi.services.ports import OpenOperation, OperationPage, VolumeState
from executor.history import Entry, History
from omap.store import Place
from proto import waymark_pb2


def volume(volume_id: str, state: VolumeState) -> waymark_pb2.GetResponse:
    """The answer to a Get."""
    response = waymark_pb2.GetResponse(volume_id=volume_id, state=state.state, head=state.head)
    if state.size_bytes is not None:
        response.data.size_bytes = state.size_bytes
    if state.image is not None:
        response.data.image = state.image
    if state.place is not None:
        response.data.place.CopyFrom(_place(state.place))
    if state.open_operation is not None:
        response.open_operation.CopyFrom(_open_operation(state.open_operation))
    return response


def history(volume_id: str, found: History) -> waymark_pb2.HistoryResponse:
    """The answer to a History."""
    return waymark_pb2.HistoryResponse(
        volume_id=volume_id, transactions=[_transaction(entry) for entry in found.entries]
    )


def operations(page: OperationPage) -> waymark_pb2.ListResponse:
    """The answer to a List."""
    return waymark_pb2.ListResponse(
        entries=[
            waymark_pb2.ListResponse.Entry(
                volume_id=entry.volume_id,
                place=_place(entry.place),
                open_operation=_open_operation(entry.open_operation),
            )
            for entry in page.entries
        ],
        next_token=page.next_token,
    )


def _transaction(entry: Entry) -> waymark_pb2.Transaction:
    transaction = entry.transaction
    return waymark_pb2.Transaction(
        seq=transaction.seq,
        operation=transaction.operation,
        version=transaction.version,
        state=transaction.state.value,
        stages=[
            waymark_pb2.StageMark(stage=stage, mark=mark.value) for stage, mark in transaction.marks.items()
        ],
        data=json.dumps(dict(transaction.data), sort_keys=True) if transaction.data else "",
        error=transaction.failure.text if transaction.failure else "",
        begun=_timestamp(transaction.begun),
        ended=_timestamp(transaction.ended) if transaction.ended is not None else None,
        holder=transaction.holder,
        node_id=entry.node,
    )


def _open_operation(found: OpenOperation) -> waymark_pb2.OpenOperation:
    age = Duration()
    age.FromMicroseconds(int(max(0.0, found.age_seconds) * 1e6))
    return waymark_pb2.OpenOperation(
        operation=found.operation, stage=found.stage, state=found.state, holder=found.holder, age=age
    )


def _place(place: Place) -> waymark_pb2.Place:
    return waymark_pb2.Place(cluster_id=place.cluster, pool=place.pool, namespace=place.namespace)


def _timestamp(seconds: float) -> Timestamp:
    moment = Timestamp()
    moment.FromMicroseconds(int(seconds * 1e6))
    return moment
