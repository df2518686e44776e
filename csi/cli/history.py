"""`waymark history`: a client of the Operations service."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import cast

import grpc
from google.protobuf.json_format import MessageToDict

from proto import waymark_pb2, waymark_pb2_grpc

TIMEOUT_SECONDS = 60.0

_HEADINGS = ("TIME", "OPERATION", "STATE", "STAGE", "SECONDS", "HOLDER", "ERROR")


class HistoryError(Exception):
    """The driver could not tell; the text is its answer."""


def fetch(socket: pathlib.Path, volume_id: str, output: str) -> str:
    """A volume's history as `table` or `json`.  Raises HistoryError."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = waymark_pb2_grpc.OperationsStub(channel).History
        try:
            found = ask(waymark_pb2.HistoryRequest(volume_id=volume_id), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            # Every error of a finished call is a Call too, which grpcio's types do not tell.
            answer = cast("grpc.Call", error)
            raise HistoryError(f"{answer.code().name}: {answer.details()}") from None
    if output == "json":
        return json.dumps(MessageToDict(found, preserving_proto_field_name=True), indent=2)
    return table([_HEADINGS, *(_row(transaction) for transaction in found.transactions)])


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows with their columns aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(transaction: waymark_pb2.Transaction) -> tuple[str, ...]:
    is_open = not transaction.HasField("ended")
    holder = f"{transaction.holder} on {transaction.node_id}" if transaction.node_id else transaction.holder
    lasted = (
        ""
        if is_open
        else f"{transaction.ended.ToNanoseconds() / 1e9 - transaction.begun.ToNanoseconds() / 1e9:.3f}"
    )
    return (
        transaction.begun.ToDatetime().strftime("%Y-%m-%d %H:%M:%S"),
        transaction.operation,
        transaction.state,
        _stage(transaction.stages),
        lasted,
        holder,
        " ".join(transaction.error.split()),
    )


def _stage(marks: Sequence[waymark_pb2.StageMark]) -> str:
    """The last stage that was reached, with its mark unless it was done."""
    if not marks:
        return ""
    last = marks[-1]
    return last.stage if last.mark == "done" else f"{last.stage} ({last.mark})"
