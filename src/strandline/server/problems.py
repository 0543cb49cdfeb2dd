"""Errors as problem documents (RFC 9457): every error response has the same form."""

from __future__ import annotations

import http
import math
from typing import Any

import msgspec
from starlette.responses import Response

from strandline.errors import StrandlineError, Unavailable

MEDIA_TYPE = "application/problem+json"

# The codes of responses that are not made from a StrandlineError.
_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    421: "misdirected",
    426: "upgrade_required",
    431: "header_too_large",
}


class Problem(msgspec.Struct, frozen=True):
    """The members of every error response. Some errors add further members."""

    type: str
    title: str
    status: int
    detail: str
    code: str


def problem(
    status: int, detail: str, *, code: str | None = None, headers: dict[str, str] | None = None, **more: Any
) -> Response:
    document = {
        "type": "about:blank",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code or _CODES.get(status, "error"),
        **more,
    }
    return Response(msgspec.json.encode(document), status, headers=headers, media_type=MEDIA_TYPE)


def from_error(error: StrandlineError, status: int | None = None) -> Response:
    """The response for an error. `status` overrides the status of the error."""
    headers = {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    more = {k: v for k, v in error.info.items() if k not in {"type", "title", "status", "detail", "code"}}
    return problem(status or error.status, error.detail, code=error.code, headers=headers, **more)
