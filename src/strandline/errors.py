"""The errors of Strandline, in families by what the caller should do next.

StrandlineError
├── Invalid            change the request (422)
│   ├── Malformed      it could not be parsed (400)
│   ├── Incomplete     its body did not arrive in time (408)
│   ├── Unsupported    its media type or content encoding is not supported (415)
│   ├── TooLarge       send less at once (413)
│   ├── BadTimestamp   a moment or a lease time is out of range (422)
│   ├── InvalidCursor  carries the reason and, for streams, the available range (422, 412 on streams)
│   └── PublishFailed  carries the result of every item
├── NotFound           the name is unknown (404)
│   └── Miss           the feed was never set, was dropped or has expired; build it and set it
├── Conflict           another caller was first, or the state does not allow it (409)
│   ├── Sealed         the topic is closed for appends by a timeline switch
│   └── Fenced         another process holds the fence of the append now
├── LeaseLost          the lease expired or belongs to another process; drop the work (409)
├── Forbidden          the permissions do not allow it (403)
├── Unavailable        retry after `retry_after` seconds (503)
│   └── StorageFull    no space left on the device (507)
├── OutcomeUnknown     it may or may not have happened; read before you retry (504)
├── Gap                records were removed before they were read (500)
└── Damaged            what is stored is damaged; carries the topic, the partition and the offsets (500)

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

    def __init_subclass__(cls, *, code: str, status: int | None = None) -> None:
        """Every subclass has its own code; without a status it has the one of its base."""
        cls.code = code
        cls.status = cls.status if status is None else status
        _BY_CODE[code] = cls


_BY_CODE: dict[str, type[StrandlineError]] = {StrandlineError.code: StrandlineError}


def _rebuild(kind: type[StrandlineError], detail: str, info: dict[str, Any]) -> StrandlineError:
    return kind(detail, **info)


class Invalid(StrandlineError, code="invalid", status=422):
    """The request breaks a rule."""


class Malformed(Invalid, code="malformed", status=400):
    """The request could not be parsed."""


class Incomplete(Invalid, code="incomplete", status=408):
    """The body of the request did not arrive in time."""


class Unsupported(Invalid, code="unsupported_media_type", status=415):
    """The media type or the content encoding of the body is not supported."""


class TooLarge(Invalid, code="too_large", status=413):
    """The request is larger than the limit."""


class BadTimestamp(Invalid, code="bad_timestamp"):
    """The moment or the lease time is out of range."""


class InvalidCursor(Invalid, code="invalid_cursor"):
    """The cursor cannot be used."""

    def __init__(self, detail: str | None = None, *, reason: str, **info: Any) -> None:
        super().__init__(detail, reason=reason, **info)

    @property
    def reason(self) -> str:
        return str(self.info["reason"])


class PublishFailed(Invalid, code="publish_failed"):
    """Not every event was published; `items` has the result of each."""

    @property
    def items(self) -> list[Any]:
        return list(self.info.get("items", ()))


class NotFound(StrandlineError, code="not_found", status=404):
    """There is no resource of that name."""


class Miss(NotFound, code="miss"):
    """The feed does not exist: it was never set, was dropped, or expired unread."""


class Conflict(StrandlineError, code="conflict", status=409):
    """The current state does not allow the request."""


class Sealed(Conflict, code="sealed"):
    """The topic is sealed by a timeline switch; `token` identifies the switch."""

    @property
    def token(self) -> str:
        return str(self.info["token"])


class Fenced(Conflict, code="fenced"):
    """The fence of the append is not held by this process, or not any more; nothing was stored."""


class LeaseLost(StrandlineError, code="lease_lost", status=409):
    """The lease expired or belongs to another process now."""


class Forbidden(StrandlineError, code="forbidden", status=403):
    """The permissions do not allow the request."""


class Unavailable(StrandlineError, code="unavailable", status=503):
    """The service is not available at the moment; try again later."""

    @property
    def retry_after(self) -> float:
        """Seconds to wait before the next attempt."""
        return float(self.info.get("retry_after", 1))


class StorageFull(Unavailable, code="storage_full", status=507):
    """There is no space left on the device; nothing was written."""


class OutcomeUnknown(StrandlineError, code="outcome_unknown", status=504):
    """The write may or may not have happened; read before you retry it."""


class Gap(StrandlineError, code="gap", status=500):
    """Records were removed before they were read."""


class Damaged(StrandlineError, code="damaged", status=500):
    """Stored data are damaged; restore them from a backup."""


def families() -> dict[str, type[StrandlineError]]:
    """Every error class by its code. Clients use it to turn problem documents back into errors."""
    return dict(_BY_CODE)
