"""What a relay decides: ids, due times, and the form of an event in the target. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.clock import parse_rfc3339
from strandline.errors import Invalid, InvalidCursor
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.log.event_json import UNDECODED
from strandline.log.model import EventType
from strandline.log.records import Headers
from strandline.schedule.relay.values import RelayLetter, RelayMessage
from strandline.schedule.rules import MAX_MS

#: The header of an event in the target that says where it came from: source/id/partition/cursor.
ORIGIN = "strandline-relayed-from"

# What the platform has added to the metadata in the source, and adds again in the target.
_ADDED = frozenset({"received_at", "version", "published_by", "event_type", "partition"})


class _AnyObject(msgspec.Struct, gc=False):
    """Any JSON object; all of its fields are skipped."""


_is_place = re.compile(r"[^/]+/([0-9]{1,9})/([^/]+)", re.ASCII).fullmatch
# Of a message that is no event of the source.
_NO_PLACE = 0, Position(1, -1)
_finer_than_ms = re.compile(r"\.\d{3}0*[1-9]", re.ASCII).search
_check_object = msgspec.json.Decoder(_AnyObject).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value = msgspec.json.Decoder(Any).decode
_encode = msgspec.json.Encoder().encode


def message_id(source_id: str, partition: int, position: Position) -> str:
    return f"{source_id}/{partition}/{position}"


def place_of(message: str) -> tuple[int, Position] | None:
    """Partition and position in the source of a message's event; None if the relay did not create the message."""
    found = _is_place(message)
    try:
        position = cursors.parse(found[2]) if found else None
    except InvalidCursor:
        return None
    return (int(found[1]), position) if found and position else None


def letter(message: RelayMessage, reason: str) -> RelayLetter:
    place = place_of(message.id)
    if place is None:
        place, reason = _NO_PLACE, f"another producer has created the message: {reason}"
    return RelayLetter(message.id, *place, reason, message.value)


@dataclass(frozen=True)
class DueRule:
    """When an event is due: `delay_ms` after it was published, or at the time in a field of the event."""

    delay_ms: int = 0
    field: str = ""

    def due_ms(self, published_ms: int, value: bytes | None) -> int:
        """Invalid, with the reason, if the event cannot be relayed."""
        if value is None:
            raise Invalid("the record has no value")
        try:
            if not self.field:
                _check_object(value)
                return published_ms + self.delay_ms
            found = _found(value, self.field)
        except UNDECODED as error:
            raise Invalid(f"the event is not a JSON object: {error}") from None
        return _moment(found, self.field)


def _found(value: bytes, path: str) -> Any:
    """The value of a field; Invalid if it is missing."""
    raw: Any = value
    for name in path.split("."):
        try:
            raw = _fields(raw).get(name)
        except msgspec.ValidationError:  # a part of the path is not an object
            raw = None
        if raw is None:
            _check_object(value)
            raise Invalid(f"the field {path!r} is missing")
    return _value(raw)


def _moment(found: Any, path: str) -> int:
    if isinstance(found, str):
        try:
            # A part of a millisecond counts as a whole one, so that no event is early.
            return parse_rfc3339(found) + (_finer_than_ms(found) is not None)
        except ValueError as error:
            raise Invalid(f"the field {path!r}: {error}") from None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MAX_MS:
        raise Invalid(f"the field {path!r} must be a time in RFC 3339 or in milliseconds, not {found!r:.60}")
    return found


def in_order(messages: Iterable[RelayMessage]) -> list[RelayMessage]:
    """The order in which messages that are due together are published."""
    return sorted(messages, key=lambda one: (one.due_ms, one.id))


def for_target(value: bytes, target: EventType) -> bytes:
    """The event as it is published: without the metadata that the platform has added in the source.

    An event that is no object or has no metadata is unchanged; publishing refuses it if the target needs metadata.
    """
    if target.category == "undefined":
        return value
    try:
        event = _fields(value)
        metadata = _fields(event.get("metadata", b"{}"))
    except UNDECODED:
        return value
    added = _ADDED - {"partition"} if target.partition_strategy == "user_defined" else _ADDED
    if not metadata.keys() & added:
        return value
    kept = {name: raw for name, raw in metadata.items() if name not in added}
    return _encode({**event, "metadata": msgspec.Raw(_encode(kept))})


def origin(source: str, message: RelayMessage) -> Headers:
    return [(ORIGIN, f"{source}/{message.id}".encode())]


def origins(headers: pa.Array) -> set[str]:
    """The ids of the messages that these records of the target came from."""
    if headers.null_count == len(headers):
        return set()
    every = pc.list_flatten(headers)
    own = every.filter(pc.equal(every.field("key"), ORIGIN))
    return {value.decode().partition("/")[2] for value in own.field("value").to_pylist()}


def missing(messages: Sequence[RelayMessage], found: set[str]) -> list[RelayMessage]:
    """The messages that are not in the target yet, in their order."""
    return [message for message in messages if message.id not in found]
