"""The client turns problem documents into errors."""

from __future__ import annotations

import json

import pytest

from strandline import errors
from strandline.client.problems import to_error


def document(**members) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize("code", sorted(errors.families()))
def test_every_code_becomes_its_class(code: str):
    """The class, the detail and additional members are the same as on the server."""
    body = document(type="about:blank", title="t", status=1, detail="why; how", code=code, reason="R", extra=[1])
    error = to_error(500, {}, body, writes=False)
    assert type(error) is errors.families()[code]
    assert error.detail == "why; how"
    assert error.info == {"reason": "R", "extra": [1]}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.Malformed),
        (401, errors.Forbidden),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (412, errors.Invalid),
        (413, errors.TooLarge),
        (418, errors.Invalid),
        (422, errors.Invalid),
        (429, errors.Unavailable),
        (500, errors.StrandlineError),
        (502, errors.Unavailable),
        (503, errors.Unavailable),
        (504, errors.Unavailable),
        (507, errors.StorageFull),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"\xff", document(code="from_the_future")])
def test_an_unknown_answer_is_read_by_its_status(status: int, kind: type, body: bytes):
    """The status decides the class for a proxy's page and for the code of a newer server."""
    error = to_error(status, {}, body, writes=False)
    assert type(error) is kind
    assert str(status) in error.detail


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_without_an_answer_leaves_a_write_in_doubt(status: int):
    """The gateway does not know whether the server received the write."""
    assert type(to_error(status, {}, b"", writes=True)) is errors.OutcomeUnknown


def test_retry_after_is_in_the_error():
    """`retry_after` of the document wins over the header. A date in the header is ignored."""
    error = to_error(503, {"retry-after": "7"}, b"", writes=False)
    assert isinstance(error, errors.Unavailable)
    assert error.retry_after == 7
    own = to_error(503, {"retry-after": "7"}, document(code="unavailable", retry_after=2.5), writes=False)
    assert isinstance(own, errors.Unavailable)
    assert own.retry_after == 2.5
    assert to_error(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"", writes=False).info == {}


def test_a_cursor_error_without_a_reason_is_still_one():
    """A missing member does not make the client fail with another error."""
    error = to_error(412, {}, document(code="invalid_cursor", detail="d"), writes=False)
    assert isinstance(error, errors.InvalidCursor)
    assert error.reason == "UNAVAILABLE"
