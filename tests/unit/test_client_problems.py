"""Problem documents become the errors they came from."""

from __future__ import annotations

import json

import pytest

from strandline import errors
from strandline.client.problems import to_error


def document(**members) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize("code", sorted(errors.families()))
def test_every_code_becomes_its_class(code: str):
    """Code and further members survive the way over HTTP."""
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
    """A proxy's page or a newer server's code still lands in the right family."""
    error = to_error(status, {}, body, writes=False)
    assert type(error) is kind
    assert str(status) in error.detail


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_without_an_answer_leaves_a_write_in_doubt(status: int):
    """The gateway does not know whether the server got the write."""
    assert type(to_error(status, {}, b"", writes=True)) is errors.OutcomeUnknown


def test_retry_after_is_in_the_error():
    """The header is there for proxies, too; the document's own member wins; a date is not understood."""
    error = to_error(503, {"retry-after": "7"}, b"", writes=False)
    assert isinstance(error, errors.Unavailable)
    assert error.retry_after == 7
    own = to_error(503, {"retry-after": "7"}, document(code="unavailable", retry_after=2.5), writes=False)
    assert isinstance(own, errors.Unavailable)
    assert own.retry_after == 2.5
    assert to_error(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"", writes=False).info == {}


def test_a_cursor_error_without_a_reason_is_still_one():
    """Nothing that a server leaves out makes the client fail in another way."""
    error = to_error(412, {}, document(code="invalid_cursor", detail="d"), writes=False)
    assert isinstance(error, errors.InvalidCursor)
    assert error.reason == "UNAVAILABLE"
