"""The one table from errors to codes."""

from __future__ import annotations

import inspect

import grpc
import pytest

from csi import errors as mapping
from csi.handles import HandleError
from executor import errors
from omap.store import FencedError, StoreUnavailableError

CODE = grpc.StatusCode
METHOD = "/csi.v1.Controller/CreateVolume"

EXPECTED = {
    "OperationError": CODE.UNAVAILABLE,
    "PermanentError": CODE.FAILED_PRECONDITION,
    "InvalidError": CODE.INVALID_ARGUMENT,
    "OutOfRangeError": CODE.OUT_OF_RANGE,
    "NotFoundError": CODE.NOT_FOUND,
    "MismatchError": CODE.ALREADY_EXISTS,
    "InUseError": CODE.FAILED_PRECONDITION,
    "PreconditionError": CODE.FAILED_PRECONDITION,
    "ExhaustedError": CODE.RESOURCE_EXHAUSTED,
    "DeniedError": CODE.PERMISSION_DENIED,
    "UnauthenticatedError": CODE.UNAUTHENTICATED,
    "TransientError": CODE.UNAVAILABLE,
    "PendingError": CODE.ABORTED,
    "OverloadedError": CODE.UNAVAILABLE,
    "UnavailableError": CODE.UNAVAILABLE,
}
CLASSES: dict[str, type[errors.OperationError]] = dict(inspect.getmembers(errors, inspect.isclass))
NOT_FINAL = {CODE.ABORTED, CODE.UNAVAILABLE, CODE.DEADLINE_EXCEEDED}


def test_every_error_of_operations_is_expected_here() -> None:
    assert sorted(CLASSES) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_error_has_its_code_and_keeps_its_text(name: str) -> None:
    refusal = mapping.refusal(CLASSES[name]("what happened"), METHOD, "7")

    assert refusal == mapping.Refusal(EXPECTED[name], "what happened")


@pytest.mark.parametrize("name", EXPECTED)
def test_no_transient_error_has_a_final_code_and_every_permanent_one_has(name: str) -> None:
    refusal = mapping.refusal(CLASSES[name]("x"), METHOD, "7")

    assert (refusal.code in NOT_FINAL) == (not issubclass(CLASSES[name], errors.PermanentError))


def test_a_class_that_is_not_in_the_table_has_its_nearest_ancestors_code() -> None:
    class LostError(errors.PendingError):
        pass

    assert mapping.refusal(LostError("x"), METHOD, "7").code == CODE.ABORTED
    assert mapping.refusal(HandleError("x"), METHOD, "7").code == CODE.NOT_FOUND


@pytest.mark.parametrize(
    "error", [StoreUnavailableError("cluster a is away"), FencedError("cluster a: fenced")]
)
def test_a_store_error_that_escapes_is_not_final(error: Exception) -> None:
    refusal = mapping.refusal(error, METHOD, "7")

    assert (refusal.code, refusal.text, refusal.is_fault) == (CODE.UNAVAILABLE, str(error), False)


def test_a_fault_is_not_final_and_says_nothing_but_where_to_look() -> None:
    refusal = mapping.refusal(ValueError("userKey=AQAB"), METHOD, "request-7")

    assert refusal.code in NOT_FINAL
    assert refusal.is_fault
    assert "AQAB" not in refusal.text
    assert METHOD in refusal.text
    assert "request-7" in refusal.text


def test_what_is_not_offered_is_unimplemented() -> None:
    refusal = mapping.refusal(NotImplementedError(), METHOD, "7")

    assert (refusal.code, refusal.is_fault) == (CODE.UNIMPLEMENTED, False)


def test_a_text_is_one_line_of_a_length_that_events_hold() -> None:
    refusal = mapping.refusal(errors.InvalidError("a\nb\t" + "c" * 5000), METHOD, "7")

    assert refusal.text.startswith("a b ccc")
    assert len(refusal.text) == mapping.MAX_TEXT_CHARACTERS
