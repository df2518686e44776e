"""Requests of the Operations service."""

from __future__ import annotations

from csi.commands import ListOperations, ReadVolume
from csi.handles import HandleError
from csi.requests import fields
from executor.errors import InvalidError
from proto import waymark_pb2


def read_volume(request: waymark_pb2.GetRequest | waymark_pb2.HistoryRequest) -> ReadVolume:
    """Check a Get or a History.  Raises InvalidError, also for an id that no volume can have."""
    fields.check_sizes(request)
    try:
        return ReadVolume(request.volume_id, fields.handle("volume_id", request.volume_id))
    except HandleError as error:
        raise InvalidError(str(error)) from None


def list_operations(request: waymark_pb2.ListRequest) -> ListOperations:
    """Check a List.  Raises InvalidError."""
    fields.check_sizes(request)
    if request.max_entries < 0:
        raise InvalidError(f"max_entries is {request.max_entries}; it must not be negative")
    return ListOperations(request.max_entries, request.starting_token)
