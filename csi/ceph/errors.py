"""What librados' and librbd's errors say to the caller of an operation.

The bindings' exceptions carry errno; the texts here name cluster, pool and image and the next step.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping

import rados
import rbd

from executor.errors import (
    DeniedError,
    ExhaustedError,
    InUseError,
    InvalidError,
    MismatchError,
    NotFoundError,
    OperationError,
    PreconditionError,
    UnavailableError,
)

_MEANINGS: Mapping[int, tuple[type[OperationError], str]] = {
    errno.EPERM: (
        DeniedError,
        "the user may not do this: give it the caps `profile rbd` for mon, osd and mgr",
    ),
    errno.EACCES: (
        DeniedError,
        "the user may not do this: give it the caps `profile rbd` for mon, osd and mgr",
    ),
    errno.ENOENT: (NotFoundError, "it is not there"),
    errno.EEXIST: (MismatchError, "the name is taken, by a whole or a half-made image"),
    errno.EBUSY: (InUseError, "a client has it open: unmap it there, then try again"),
    errno.ENOTEMPTY: (InUseError, "it still has snapshots: delete them, then try again"),
    errno.ENOSPC: (ExhaustedError, "the pool or the cluster is full: free space or add OSDs"),
    errno.EDQUOT: (ExhaustedError, "a quota of the pool is used up: raise it or free space"),
    errno.EINVAL: (InvalidError, "Ceph calls the request invalid: check size, imageFeatures and dataPool"),
    errno.EDOM: (InvalidError, "Ceph calls a value out of its range: check size and imageFeatures"),
    errno.EOPNOTSUPP: (
        PreconditionError,
        "the pool cannot do this: is it erasure-coded? Name it as dataPool then",
    ),
    errno.EROFS: (PreconditionError, "it is read-only, perhaps a mirror's secondary copy"),
    errno.ESHUTDOWN: (UnavailableError, "this process is on the cluster's blocklist: it must be restarted"),
    errno.ETIMEDOUT: (UnavailableError, "no answer in time: look at `ceph -s`; it is tried again"),
}


def translated(error: rados.Error | rbd.Error, what: str) -> OperationError:
    """The operation error that says of `what` (an image or place) what this error says."""
    number: int | None = getattr(error, "errno", None)
    if number is None or number not in _MEANINGS:
        # Nothing that is not known to last may end an operation for good.
        code = "no errno" if number is None else errno.errorcode.get(number, str(number))
        return UnavailableError(f"{what}: Ceph answered {type(error).__name__} ({code}); it is tried again")
    kind, meaning = _MEANINGS[number]
    return kind(f"{what}: {meaning}")


@contextlib.contextmanager
def translating(what: str) -> Iterator[None]:
    """Raise the bindings' errors as operation errors about `what`."""
    try:
        yield
    except (rados.Error, rbd.Error) as error:
        raise translated(error, what) from error
