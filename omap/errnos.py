"""What RADOS' error numbers say of a read or a write, as seen on Ceph 16.2."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from omap.store import (
    AccessDeniedError,
    Answer,
    FencedError,
    ObjectMissingError,
    OmapUnsupportedError,
    Place,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

_NO_CAPS = "the identity may not do this: its caps must cover the pool and namespace"
_TOO_LARGE = "the request is larger than the OSD accepts"

_ANSWERS: Mapping[int, Answer] = {
    0: Answer.APPLIED,
    errno.ECANCELED: Answer.CONDITION_FAILED,
    errno.ENOENT: Answer.MISSING,
    errno.EEXIST: Answer.EXISTS,
}

_REFUSALS: Mapping[int, tuple[type[StoreError], str]] = {
    errno.EOPNOTSUPP: (OmapUnsupportedError, "the pool keeps no OMAP (erasure-coded?); use another one"),
    errno.ESHUTDOWN: (FencedError, "this client's address is on the cluster's blocklist"),
    errno.ENOSPC: (StoreFullError, "the pool or the cluster is full; free space or add OSDs"),
    errno.EDQUOT: (StoreFullError, "a quota of the pool is used up; raise it or free space"),
    errno.EPERM: (AccessDeniedError, _NO_CAPS),
    errno.EACCES: (AccessDeniedError, _NO_CAPS),
    errno.EINVAL: (StoreError, "the OSD calls the request invalid"),
    errno.ENAMETOOLONG: (StoreError, "the name of the object is too long"),
    errno.E2BIG: (StoreError, _TOO_LARGE),
    errno.EMSGSIZE: (StoreError, _TOO_LARGE),
}


def write_answer(place: Place, name: str, number: int | None) -> Answer:
    """The answer to a write that ended with this errno (0: it succeeded).  Raises a refusal's StoreError.

    Any other errno, and none at all, is `UNKNOWN`: "not applied" is a promise, made only where it is known
    to hold.
    """
    refusal = _refused(place, name, number)
    if refusal is not None:
        raise refusal
    return Answer.UNKNOWN if number is None else _ANSWERS.get(number, Answer.UNKNOWN)


def read_error(place: Place, name: str, number: int | None) -> StoreError:
    """The error of a read (or listing, or opening) that ended with this errno."""
    if number == errno.ENOENT:
        return ObjectMissingError(f"{place} has no object {name}")
    refusal = _refused(place, name, number)
    if refusal is not None:
        return refusal
    cause = "no errno" if number is None else f"errno {number}, {errno.errorcode.get(number, 'unknown')}"
    return StoreUnavailableError(f"{place} did not answer for {name} ({cause}); try again")


def _refused(place: Place, name: str, number: int | None) -> StoreError | None:
    """The error if this errno says that the cluster got the request and will never carry it out."""
    if number is None or number not in _REFUSALS:
        return None
    kind, meaning = _REFUSALS[number]
    return kind(f"{place} refused {name}: {meaning} (errno {number})")
