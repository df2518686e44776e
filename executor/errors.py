"""What can go wrong with an operation, sorted by what the caller should do about it.

    OperationError
    ├── PermanentError              trying again unchanged is useless; what was begun is undone
    │   ├── InvalidError            the request is wrong in itself
    │   ├── OutOfRangeError         a size or count that cannot be served
    │   ├── NotFoundError           the thing named is not there
    │   ├── MismatchError           the name is taken by a request that differs
    │   ├── InUseError              something still uses the subject
    │   ├── PreconditionError       the system is not in the state that the call needs
    │   ├── ExhaustedError          no room left
    │   ├── DeniedError             the identity may not do this
    │   └── UnauthenticatedError    the identity is not valid
    └── TransientError              the cause may pass; nothing is given up
        ├── PendingError            another operation, or this one, is still at work
        ├── OverloadedError         no worker is free
        └── UnavailableError        the cluster or a tool does not answer

Each text names the thing, the state and the next step, and never holds a secret.  `csi.errors` is the one
place that turns these classes into gRPC codes.
"""

from __future__ import annotations


class OperationError(Exception):
    """Base of all errors whose text is meant for the caller."""


class PermanentError(OperationError):
    """Trying again unchanged is useless; what the operation began is undone."""


class InvalidError(PermanentError):
    """The request is wrong in itself."""


class OutOfRangeError(PermanentError):
    """A size, count or offset that cannot be served."""


class NotFoundError(PermanentError):
    """The thing that the request names is not there."""


class MismatchError(PermanentError):
    """The name or path is taken by an earlier request that differs; the text says in what."""


class InUseError(PermanentError):
    """Something still uses the subject; the text says what and where."""


class PreconditionError(PermanentError):
    """The system is not in the state that the call needs; the text says which state it is in."""


class ExhaustedError(PermanentError):
    """A pool, cluster or quota has no room left."""


class DeniedError(PermanentError):
    """The identity may not do this; the text says what is missing."""


class UnauthenticatedError(PermanentError):
    """The identity given with the request is not valid."""


class TransientError(OperationError):
    """The cause may pass: what was begun stays open, and the same request goes on from there."""


class PendingError(TransientError):
    """Another operation on the same subject, or this very one, is still at work."""


class OverloadedError(TransientError):
    """No worker is free to begin the operation."""


class UnavailableError(TransientError):
    """The cluster, a device or a tool does not answer."""
