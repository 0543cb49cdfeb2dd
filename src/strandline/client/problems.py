"""Turns a problem document into the error that the server raised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from strandline import errors
from strandline.errors import InvalidCursor, StrandlineError

_MEMBERS = frozenset({"type", "title", "status", "detail", "code"})
_SERVER_ERROR = 500
# For responses without a known code: from a proxy or from a newer server.
_BY_STATUS: dict[int, type[StrandlineError]] = {
    400: errors.Malformed,
    401: errors.Forbidden,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    429: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
    507: errors.StorageFull,
}


def to_error(status: int, headers: Mapping[str, str], body: bytes, *, writes: bool) -> StrandlineError:
    """The error of a response. With `writes`, a gateway error means that the outcome is unknown."""
    problem = _document(body)
    kind = errors.families().get(str(problem.get("code"))) or _kind(status, writes=writes)
    detail = problem.get("detail") or problem.get("title") or f"the server answered with status {status}"
    info = {name: value for name, value in problem.items() if name not in _MEMBERS}
    if (seconds := _seconds(headers.get("retry-after"))) is not None:
        info.setdefault("retry_after", seconds)
    if issubclass(kind, InvalidCursor):
        info.setdefault("reason", "UNAVAILABLE")
    return kind(str(detail), **info)


def _document(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return {}


def _kind(status: int, *, writes: bool) -> type[StrandlineError]:
    # A gateway that got no response cannot know whether the server executed the request.
    if writes and status in {502, 504}:
        return errors.OutcomeUnknown
    return _BY_STATUS.get(status) or (errors.Invalid if status < _SERVER_ERROR else StrandlineError)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
