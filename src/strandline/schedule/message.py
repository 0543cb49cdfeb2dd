"""What a producer writes: messages, moments and bodies as plain Python values."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

import msgspec

from strandline.clock import system_clock
from strandline.engine import json_values
from strandline.errors import Invalid
from strandline.log import event_json
from strandline.schedule.model import NOW, Body, Moment, NewMessage
from strandline.schedule.rules import new_id

# Made once: it reads the environment, and every message without an id needs it.
_clock = cache(system_clock)


def Message(  # noqa: N802 - users read it as a class: it makes the value that `create` takes
    body: Any,
    *,
    at: datetime | int | None = None,
    in_ms: int | None = None,
    group: str = "default",
    id: str | None = None,  # noqa: A002 - the name of the field everywhere
) -> NewMessage:
    """A new message, due at a moment: a datetime with a time zone or UTC milliseconds; default: now.

    `in_ms` is counted from the time of the database, so that it does not depend on the clock of this machine. The
    body is bytes, or a value that JSON can express. Only the group that creates a message can move or delete it.
    Without an `id` the message gets a unique one here, so that the same message can be created again after a lost
    answer and is stored once.
    """
    if id == "":  # the room would make one, and a repeated create would not be noticed
        raise Invalid("the id of the message is empty; leave it out to get a new one")
    moment = NOW if at is None and in_ms is None else moment_of(at=at, in_ms=in_ms)
    return NewMessage(new_id(_clock().now_ms()) if id is None else id, group, body_of(body), moment)


def moment_of(*, at: datetime | int | None = None, in_ms: int | None = None) -> Moment:
    """A moment given in one of two ways. Invalid if both or none are given, or if a datetime has no time zone."""
    if (at is None) == (in_ms is None):
        raise Invalid("a moment is either `at` or `in_ms`; give one of them")
    if in_ms is not None:
        return Moment(in_ms, relative=True)
    if not isinstance(at, datetime):
        return Moment(at or 0)
    if at.tzinfo is None:
        raise Invalid(f"{at.isoformat()} has no time zone; add one, such as tzinfo=UTC")
    return Moment(round(at.timestamp() * 1000))


def body_of(value: Any) -> Body:
    """Bytes as they are, other values as JSON. Invalid if JSON cannot express the value."""
    if isinstance(value, bytes | bytearray | memoryview):
        return Body(bytes(value))
    try:
        return Body(json_values.encode(value), is_json=True)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise Invalid(f"the body of a message must be bytes or a JSON value: {error}") from error


def value_of(body: Body) -> Any:
    """The inverse of `body_of`. A number that no float can express, such as 1e400, is a Decimal."""
    return event_json.decode_event(body.content) if body.is_json else body.content
