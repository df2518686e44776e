"""The errno table."""

from __future__ import annotations

import errno

import pytest

from omap.errnos import read_error, write_answer
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

PLACE = Place("east", "rbd", "ns1")

REFUSALS = [
    (errno.EOPNOTSUPP, OmapUnsupportedError),
    (errno.ESHUTDOWN, FencedError),
    (errno.ENOSPC, StoreFullError),
    (errno.EDQUOT, StoreFullError),
    (errno.EPERM, AccessDeniedError),
    (errno.EACCES, AccessDeniedError),
    (errno.EINVAL, StoreError),
    (errno.ENAMETOOLONG, StoreError),
    (errno.E2BIG, StoreError),
    (errno.EMSGSIZE, StoreError),
]


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (0, Answer.APPLIED),
        (errno.ECANCELED, Answer.CONDITION_FAILED),
        (errno.ENOENT, Answer.MISSING),
        (errno.EEXIST, Answer.EXISTS),
        (errno.ETIMEDOUT, Answer.UNKNOWN),
        (errno.EIO, Answer.UNKNOWN),
        (errno.ENOTCONN, Answer.UNKNOWN),
        (9999, Answer.UNKNOWN),
        (None, Answer.UNKNOWN),
    ],
)
def test_answers_to_a_write(number: int | None, answer: Answer) -> None:
    assert write_answer(PLACE, "a", number) is answer


@pytest.mark.parametrize(("number", "kind"), REFUSALS)
def test_refusals(number: int, kind: type[StoreError]) -> None:
    with pytest.raises(kind) as raised:
        write_answer(PLACE, "an-object", number)
    read = read_error(PLACE, "an-object", number)

    assert type(raised.value) is type(read) is kind
    for text in (str(raised.value), str(read)):
        assert "cluster east pool rbd/ns1" in text
        assert "an-object" in text
        assert f"errno {number}" in text


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOENT, ObjectMissingError, "no object an-object"),
        (errno.ETIMEDOUT, StoreUnavailableError, "ETIMEDOUT"),
        (errno.EIO, StoreUnavailableError, "EIO"),
        (9999, StoreUnavailableError, "unknown"),
        (None, StoreUnavailableError, "no errno"),
    ],
)
def test_errors_of_a_read(number: int | None, kind: type[StoreError], text: str) -> None:
    error = read_error(PLACE, "an-object", number)

    assert type(error) is kind
    assert text in str(error)
