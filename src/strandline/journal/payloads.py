"""The value of an append: its events and their metadata, in the two encodings of kafka-journal.

JSON if no payload is binary: `{"events": [{"seqNr", "tags", "payloadType"?, "payload"?}], "metadata": {…}}`.
Binary otherwise: byte 1, int32 count; for each event int32 size, int64 seqNr, tags (int32 bytes in total, then
strings with int32 lengths), one byte for the kind of payload (0 none, 1 binary, 2 JSON, 3 text), int32 length and
the payload; the rest is the metadata as JSON. Numbers are big-endian. JSON payloads keep their bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from strandline.errors import Malformed
from strandline.journal import nesting
from strandline.journal.model import (
    MAX_EXPIRY_MS,
    MAX_SEQ_NR,
    Append,
    JournalEvent,
    LoggedAction,
    NewEvent,
    Payload,
    PayloadKind,
    SeqNr,
    StoredEvent,
)

Encoding = Literal["json", "binary"]

_INT = struct.Struct(">i")
_SEQ_NR = struct.Struct(">q")
_KINDS: list[PayloadKind | None] = [None, "binary", "json", "text"]
_CODES: dict[PayloadKind | None, bytes] = {kind: bytes([code]) for code, kind in enumerate(_KINDS)}

# The names of units that Scala's Duration reads, in nanoseconds.
_UNITS = {
    name: nanoseconds
    for names, nanoseconds in {
        "d day days": 86_400_000_000_000,
        "h hr hrs hour hours": 3_600_000_000_000,
        "m min mins minute minutes": 60_000_000_000,
        "s sec secs second seconds": 1_000_000_000,
        "ms milli millis millisecond milliseconds": 1_000_000,
        "µs micro micros microsecond microseconds": 1_000,
        "ns nano nanos nanosecond nanoseconds": 1,
    }.items()
    for name in names.split()
}
_DURATION = re.compile(r"\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([a-zµ]+)\s*")


_ABSENT = msgspec.Raw()


class _EventJson(msgspec.Struct, gc=False, rename={"seq_nr": "seqNr", "payload_type": "payloadType"}):
    seq_nr: SeqNr
    tags: tuple[str, ...]
    payload_type: Literal["json", "text"] | None = None
    payload: msgspec.Raw = _ABSENT


class _Metadata(msgspec.Struct, gc=False, rename={"expire_after": "expireAfter"}):
    expire_after: str | int | None = None
    data: msgspec.Raw = _ABSENT


class _ValueJson(msgspec.Struct, gc=False):
    events: list[_EventJson]
    metadata: _Metadata | None = None


class Events(NamedTuple):
    """A decoded value. `data` is the JSON text of the metadata that the writer gave."""

    events: list[tuple[int, tuple[str, ...], Payload | None]]
    data: bytes | None = None
    expire_after_ms: int | None = None


_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder(_ValueJson).decode
_decode_metadata = msgspec.json.Decoder(_Metadata).decode
_decode_text = msgspec.json.Decoder(str).decode
_check_json = msgspec.json.Decoder(msgspec.Raw).decode


def encode(
    events: Sequence[NewEvent], data: bytes | None = None, expire_after_ms: int | None = None
) -> tuple[Encoding, bytes]:
    """The encoding and the value of an append of events that have their seqNrs."""
    metadata: dict[str, Any] = {}
    if expire_after_ms is not None:
        metadata["expireAfter"] = f"{expire_after_ms} milliseconds"
    if data is not None:
        metadata["data"] = msgspec.Raw(data)
    if any(event.payload is not None and event.payload.kind == "binary" for event in events):
        parts = [b"\x01", _INT.pack(len(events)), *map(_event_bytes, events), _encode_json(metadata)]
        return "binary", b"".join(parts)
    return "json", _encode_json({"events": [_event_json(event) for event in events], "metadata": metadata})


def _event_json(event: NewEvent) -> dict[str, Any]:
    body: dict[str, Any] = {"seqNr": event.seq_nr, "tags": event.tags}
    payload = event.payload
    if payload is not None:
        body["payloadType"] = payload.kind
        body["payload"] = payload.data.decode() if payload.kind == "text" else msgspec.Raw(payload.data)
    return body


def _event_bytes(event: NewEvent) -> bytes:
    tags = b"".join(map(_sized, map(str.encode, event.tags)))
    payload = event.payload
    kind, data = (None, b"") if payload is None else (payload.kind, payload.data)
    return _sized(_SEQ_NR.pack(event.seq_nr) + _sized(tags) + _CODES[kind] + _sized(data))


def _sized(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def decode(encoding: PayloadKind, value: bytes) -> Events:
    """The events of a value. Malformed if kafka-journal could not decode it either."""
    try:
        decoded = _from_binary(value) if encoding == "binary" else _from_json(value)
    except (msgspec.MsgspecError, struct.error, ValueError) as error:
        raise Malformed(f"the value of the append is not {encoding} as kafka-journal writes it: {error}") from None
    if not decoded.events:
        raise Malformed("the value of the append has no events")
    return decoded


def _from_json(value: bytes) -> Events:
    value.decode()  # the decoder does not look into the strings of raw values
    found = nesting.decoded(_decode_json, value)
    events = [(event.seq_nr, event.tags, _payload_of(event)) for event in found.events]
    return Events(events, *_metadata(found.metadata or _Metadata()))


def _payload_of(event: _EventJson) -> Payload | None:
    data = bytes(event.payload)
    # A payload that is JSON null is written with its type; an event without a payload has none.
    if not data or (data == b"null" and event.payload_type != "json"):
        return None
    if event.payload_type == "text":
        return Payload("text", _decode_text(data).encode())
    return Payload("json", data)


def _metadata(metadata: _Metadata) -> tuple[bytes | None, int | None]:
    data = bytes(metadata.data)
    return None if data in {b"", b"null"} else data, _milliseconds(metadata.expire_after)


def _milliseconds(duration: str | int | None) -> int | None:
    """A duration as kafka-journal reads it: milliseconds, or text as in Scala ("1 day")."""
    if duration is None:
        return None
    milliseconds = duration if isinstance(duration, int) else int(_from_text(duration))
    if not -MAX_EXPIRY_MS <= milliseconds <= MAX_EXPIRY_MS:
        raise ValueError(f"expireAfter is out of range: {duration!r:.40}")
    return milliseconds


def _from_text(duration: str) -> Decimal:
    match = _DURATION.fullmatch(duration)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"expireAfter is not a duration: {duration!r:.40}")
    number = Decimal(match[1])
    if not -(2**63) <= number <= 2**63:  # the product could be too large for Decimal
        raise ValueError(f"expireAfter is out of range: {duration!r:.40}")
    return number * _UNITS[match[2]] / 1_000_000


def _from_binary(value: bytes) -> Events:
    (count,) = _INT.unpack_from(value, 1)
    at = 1 + _INT.size
    events = []
    for _ in range(count):
        data, at = _part(value, at)
        events.append(_event_of(data))
    if value[0] != 1:  # version 0 has no metadata
        return Events(events)
    try:
        metadata = value[at:]
        metadata.decode()
        return Events(events, *_metadata(nesting.decoded(_decode_metadata, metadata)))
    except (msgspec.MsgspecError, ValueError):
        return Events(events)  # kafka-journal then reads the events without metadata, too


def _event_of(data: bytes) -> tuple[int, tuple[str, ...], Payload | None]:
    (seq_nr,) = _SEQ_NR.unpack_from(data)
    if not 1 <= seq_nr <= MAX_SEQ_NR:
        raise ValueError(f"the seqNr {seq_nr} is out of range")
    tags, at = _part(data, _SEQ_NR.size)
    if at >= len(data) or data[at] >= len(_KINDS):
        raise ValueError("the kind of the payload is unknown")
    kind = _KINDS[data[at]]
    payload, _ = _part(data, at + 1)
    if kind in {"json", "text"}:
        payload.decode()
    if kind == "json":
        nesting.decoded(_check_json, payload)
    return seq_nr, _tags_of(tags), None if kind is None else Payload(kind, payload)


def _tags_of(data: bytes) -> tuple[str, ...]:
    tags, at = [], 0
    while at < len(data):
        tag, at = _part(data, at)
        tags.append(tag.decode())
    return tuple(tags)


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes after an int32 length, and where they end."""
    (size,) = _INT.unpack_from(data, at)
    start, end = at + _INT.size, at + _INT.size + size
    if size < 0 or end > len(data):
        raise ValueError(f"a part of {size} bytes does not end inside the value")
    return data[start:end], end


def rows(logged: LoggedAction) -> list[StoredEvent]:
    """The events of an append as rows of the store, rising; none in a cache, which keeps no values.

    kafka-journal has two metadata of an event, in the header and in the value; those in the value are used first.
    Malformed if the value cannot be decoded, or does not have the seqNrs that the header says.
    """
    action = logged.action
    if not isinstance(action, Append) or logged.value is None:
        return []
    decoded = decode(action.payload_type, logged.value)
    numbers = [seq_nr for seq_nr, _, _ in decoded.events]
    if numbers[0] != action.first or numbers[-1] != action.last or not _rising(numbers):
        raise Malformed(f"the header says events {action.first} to {action.last}, the value has others")
    metadata = logged.metadata if decoded.data is None else decoded.data
    return [
        StoredEvent(
            JournalEvent(seq_nr, payload, tags, logged.timestamp_ms, metadata),
            logged.cursor,
            action.id,
            logged.origin,
            logged.headers,
        )
        for seq_nr, tags, payload in decoded.events
    ]


def _rising(numbers: Sequence[int]) -> bool:
    return len(numbers) == 1 or all(a < b for a, b in pairwise(numbers))


def expire_after_ms(logged: LoggedAction) -> int | None:
    """The expiry in the value of an append. Our own appends have it in their headers, too."""
    action: Any = logged.action
    if logged.value is None:
        return None
    try:
        return decode(action.payload_type, logged.value).expire_after_ms
    except Malformed:
        return None
