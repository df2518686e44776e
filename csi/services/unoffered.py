"""CSI methods that this driver does not offer."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf.message import Message


def unoffered(self: object, request: Message, context: grpc.ServicerContext) -> NoReturn:
    """Answer UNIMPLEMENTED, as `csi.errors` maps it.  Callers go by the capabilities."""
    raise NotImplementedError
