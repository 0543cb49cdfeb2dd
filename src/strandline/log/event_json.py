"""The JSON of events: from what a publisher sent to the text of every event, and from a text to its value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from strandline.engine import json_values
from strandline.errors import Invalid, Malformed, TooLarge

#: One dict, dicts, JSON texts of single events, one JSON array, or rows of a table.
Events: TypeAlias = (
    Mapping[str, Any] | bytes | str | Iterable[Mapping[str, Any] | bytes | str] | pa.Table | pa.RecordBatch
)

# Lone surrogates in a text are accepted here; the check of the single event refuses them.
_AS_IT_IS = ("utf-8", "surrogatepass")
_SPACE = b" \t\r\n"
_CLOSING = {b"[": b"]", b"{": b"}"}
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb'[^"\[\]{}]*+(?:%b[^"\[\]{}]*+)*+' % _STRING
# Objects and arrays without nested ones, the most common events, are one token.
_TOKEN = re.compile(rb'\{%b\}|\[%b\]|%b|["\[\]{},]' % (_FLAT, _FLAT, _STRING), re.DOTALL)

_split = msgspec.json.Decoder(list[msgspec.Raw])

#: The errors of decoders. If a typed decoder raises one, the event may still be valid.
UNDECODED = (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError)
_decode = msgspec.json.Decoder()


def exact_float(text: str) -> float | Decimal:
    """The value of a number that is not written as an integer: a Decimal if it is beyond the range of a double."""
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


# This decoder is only for events that the plain one refused.
_decode_exactly = msgspec.json.Decoder(float_hook=exact_float)


class ArrayItems(list[bytes]):
    """The items of a JSON array. `array` is its text, in which every item is valid JSON."""

    array: bytes


def decode_event(item: bytes) -> Any:
    """The value of a JSON text, with numbers of any size; Invalid if it is not JSON."""
    try:
        return _decode.decode(item)
    except UNDECODED:
        return _decode_again(item)


def _decode_again(item: bytes) -> Any:
    try:
        return _decode_exactly.decode(item)
    except UNDECODED as error:
        raise Invalid(f"the event is not JSON: {error}") from None


def to_items(events: Events, max_items: int) -> list[bytes]:
    """The JSON of every event, byte for byte as it was sent."""
    if isinstance(events, str):
        items = _split_array(events.encode(*_AS_IT_IS))
    elif isinstance(events, bytes | bytearray | memoryview):
        items = _split_array(_checked_utf8(bytes(events)))
    elif isinstance(events, pa.Table | pa.RecordBatch):
        items = [_item(row) for row in events.to_pylist()]
    elif isinstance(events, Mapping):
        items = [_item(events)]
    else:
        items = [event if type(event) is bytes else _item(event) for event in events]
    if len(items) > max_items:
        raise TooLarge(f"{len(items)} events in one publish; at most {max_items} are allowed: split the publish")
    return items


def _checked_utf8(body: bytes) -> bytes:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"the body is not UTF-8: {error}") from None
    return body


def _item(event: Mapping[str, Any] | bytes | str) -> bytes:
    if isinstance(event, bytes | bytearray):
        return bytes(event)
    if isinstance(event, str):
        return event.encode(*_AS_IT_IS)
    try:
        return json_values.encode(event)
    except (TypeError, ValueError, UnicodeError, RecursionError) as error:
        raise Malformed(f"an event cannot be written as JSON: {error}") from None


def _split_array(body: bytes) -> list[bytes]:
    try:
        texts = _split.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        if body.lstrip()[:1] != b"[":
            raise Malformed(f"the body must be a JSON array of events: {error}") from None
        return _split_leniently(body, error)
    if len(texts) == 1:
        return [bytes(texts[0])]
    items = ArrayItems(map(bytes, texts))
    items.array = body
    return items


def _split_leniently(body: bytes, cause: Exception) -> list[bytes]:
    """Find the items of an array in which some items cannot be decoded, so that only those fail.

    Only strings and brackets are matched, so lone surrogates and deep nesting do not matter.
    """
    items: list[bytes] = []
    start = body.index(b"[") + 1
    closing = [b"]"]
    for token in _TOKEN.finditer(body, start):
        mark = token[0]
        if mark in _CLOSING:
            closing.append(_CLOSING[mark])
        elif mark == b"," and len(closing) == 1:
            items.append(body[start : token.start()].strip(_SPACE))
            start = token.end()
        elif mark in {b"]", b"}"}:
            if closing.pop() != mark:
                break
            if not closing:
                items.append(body[start : token.start()].strip(_SPACE))
                start = token.end()
                break
        elif mark == b'"':  # the string is not terminated
            break
    if closing or not all(items) or body[start:].strip(_SPACE):
        raise Malformed(f"the body is not a JSON array of events: {cause}") from None
    return items
