"""The errors of Strandline, in families by what the caller should do next.

StrandlineError
├── Invalid            change the request (422)
│   ├── Malformed      it could not be parsed (400)
│   ├── Incomplete     its body did not arrive in time (408)
│   ├── Unsupported    its content encoding is not supported (415)
│   ├── TooLarge       send less at once (413)
│   ├── InvalidCursor  carries the reason and, for streams, the available range (422, 412 on streams)
│   └── PublishFailed  carries the result of every item
├── NotFound           the name is unknown (404)
├── Conflict           another caller was first, or the state does not allow it (409)
│   └── Sealed         the topic is closed for appends by a timeline switch
├── LeaseLost          the lease expired or belongs to another process; drop the work (409)
├── Forbidden          the token does not allow it (403)
├── Unavailable        retry after `retry_after` seconds (503)
│   └── StorageFull    no space left on the device (507)
└── OutcomeUnknown     it may or may not have happened; read before you retry (504)

Every error has a stable `code`, an HTTP `status`, survives pickling (Spark moves errors between
processes) and keeps the driver's own error in `__cause__`. The default message is the docstring.
"""

from __future__ import annotations

from typing import Any


class StrandlineError(Exception):
    """An internal error occurred in Strandline."""

    code = "internal_error"
    status = 500

    def __init__(self, detail: str | None = None, **info: Any) -> None:
        """`info` holds machine-readable members, which HTTP clients receive with the error."""
        self.detail = detail or (type(self).__doc__ or "").strip()
        self.info = info
        super().__init__(self.detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.detail, self.info))


def _rebuild(kind: type[StrandlineError], detail: str, info: dict[str, Any]) -> StrandlineError:
    return kind(detail, **info)


class Invalid(StrandlineError):
    """The request breaks a rule."""

    code = "invalid"
    status = 422


class Malformed(Invalid):
    """The request could not be parsed."""

    code = "malformed"
    status = 400


class Incomplete(Invalid):
    """The body of the request did not arrive in time."""

    code = "incomplete"
    status = 408


class Unsupported(Invalid):
    """The content encoding of the body is not supported."""

    code = "unsupported_media_type"
    status = 415


class TooLarge(Invalid):
    """The request is larger than the limit."""

    code = "too_large"
    status = 413


class InvalidCursor(Invalid):
    """The cursor cannot be used."""

    code = "invalid_cursor"

    def __init__(self, detail: str | None = None, *, reason: str, **info: Any) -> None:
        super().__init__(detail, reason=reason, **info)

    @property
    def reason(self) -> str:
        return str(self.info["reason"])


class PublishFailed(Invalid):
    """Not every event was published; `items` has the result of each."""

    code = "publish_failed"

    @property
    def items(self) -> list[Any]:
        return list(self.info.get("items", ()))


class NotFound(StrandlineError):
    """There is no resource of that name."""

    code = "not_found"
    status = 404


class Conflict(StrandlineError):
    """The current state does not allow the request."""

    code = "conflict"
    status = 409


class Sealed(Conflict):
    """The topic is sealed by a timeline switch; `token` identifies the switch."""

    code = "sealed"

    @property
    def token(self) -> str:
        return str(self.info["token"])


class LeaseLost(StrandlineError):
    """The lease expired or belongs to another process now."""

    code = "lease_lost"
    status = 409


class Forbidden(StrandlineError):
    """The token does not allow the request."""

    code = "forbidden"
    status = 403


class Unavailable(StrandlineError):
    """The service is not available at the moment; try again later."""

    code = "unavailable"
    status = 503

    @property
    def retry_after(self) -> float:
        """Seconds to wait before the next attempt."""
        return float(self.info.get("retry_after", 1))


class StorageFull(Unavailable):
    """There is no space left on the device; nothing was written."""

    code = "storage_full"
    status = 507


class OutcomeUnknown(StrandlineError):
    """The write may or may not have happened; read before you retry it."""

    code = "outcome_unknown"
    status = 504


def families() -> dict[str, type[StrandlineError]]:
    """Every error class by its code. Clients use it to turn problem documents back into errors."""
    found: dict[str, type[StrandlineError]] = {}
    todo: list[type[StrandlineError]] = [StrandlineError]
    while todo:
        kind = todo.pop()
        found[kind.code] = kind
        todo.extend(kind.__subclasses__())
    return found
