"""A store's errors in the words of operations."""

from __future__ import annotations

from executor.errors import (
    DeniedError,
    ExhaustedError,
    NotFoundError,
    OperationError,
    PreconditionError,
    UnavailableError,
)
from omap.codec import CorruptError, SchemaTooNewError
from omap.store import (
    AccessDeniedError,
    ObjectMissingError,
    OmapUnsupportedError,
    PlaceMissingError,
    StoreError,
    StoreFullError,
)

_CLASSES: tuple[tuple[type[StoreError], type[OperationError]], ...] = (
    (ObjectMissingError, NotFoundError),
    (PlaceMissingError, NotFoundError),
    (OmapUnsupportedError, PreconditionError),
    (StoreFullError, ExhaustedError),
    (AccessDeniedError, DeniedError),
    (CorruptError, PreconditionError),
    (SchemaTooNewError, PreconditionError),
)


def operation_error(error: StoreError) -> OperationError:
    """The operation error that says the same; whatever is not known as lasting counts as passing."""
    for store_class, operation_class in _CLASSES:
        if isinstance(error, store_class):
            return operation_class(str(error))
    return UnavailableError(str(error))
