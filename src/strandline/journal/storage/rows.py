"""The rows of the SQL tables, from and to values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from strandline.journal.model import (
    DeadLetter,
    Head,
    JournalEvent,
    Payload,
    PayloadKind,
    Snapshot,
    StoredEvent,
)
from strandline.log.cursors import Position

Row = tuple[Any, ...]

#: The columns of `head_row`, as the statements name them.
HEAD = (
    *("ids", "since_orders", "since_offsets", "cursor_orders", "cursor_offsets", "seq_nrs", "delete_tos"),
    *("created_ms", "updated_ms", "expire_after_ms", "expire_on_ms", "origins"),
)

_KINDS: tuple[PayloadKind | None, ...] = (None, "json", "text", "binary")
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
# PostgreSQL stores no NUL in a text.
_ESCAPED = re.compile("[\0\1]")
_ESCAPE = re.compile("\1.", re.DOTALL)
_tags = msgspec.json.Decoder(tuple[str, ...]).decode
_headers = msgspec.json.Decoder(tuple[tuple[str, bytes], ...]).decode


def stored_text(text: str | None) -> str | None:
    """A text that every engine can store; `own_text` returns the original."""
    if text is None or ("\0" not in text and "\1" not in text):
        return text
    return _ESCAPED.sub(lambda found: "\x010" if found[0] == "\0" else "\x011", text)


def own_text(text: str | None) -> str | None:
    if text is None or "\1" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\0" if found[0] == "\x010" else "\1", text)


def cursor(order: int | None, offset: int | None) -> Position | None:
    return None if order is None or offset is None else Position(order, offset)


def head(row: Row) -> Head | None:
    if row[0] is None:
        return None
    since, last = Position(row[0], row[1]), Position(row[2], row[3])
    seq_nr, delete_to, created_ms, updated_ms, expire_after_ms, expire_on_ms, origin = row[4:]
    times = (created_ms, updated_ms, expire_after_ms, expire_on_ms)
    return Head(since, last, seq_nr, delete_to, *times, own_text(origin))


def head_row(entity: str, value: Head) -> Row:
    since, last, *numbers, origin = msgspec.structs.astuple(value)
    return (stored_text(entity), *since, *last, *numbers, stored_text(origin))


def events(rows: Iterable[Row]) -> list[StoredEvent]:
    """Written for speed: a journal may have millions of events."""
    return [
        StoredEvent(
            JournalEvent(
                seq_nr,
                Payload(_KINDS[kind], payload) if kind else None,  # type: ignore[arg-type]  # 0 is no payload
                _tags(tags) if tags else (),
                timestamp_ms,
                metadata,
            ),
            Position(order, offset),
            append_id if append_id is None or "\1" not in append_id else own_text(append_id),
            own_text(origin),
            _headers(headers) if headers else (),
        )
        for seq_nr, kind, payload, tags, timestamp_ms, metadata, order, offset, append_id, origin, headers in rows
    ]


def event_row(number: int, partition: int, since: Position, stored: StoredEvent) -> Row:
    event, payload = stored.event, stored.event.payload
    return (
        number,
        partition,
        *since,
        event.seq_nr,
        *stored.cursor,
        event.timestamp_ms,
        0 if payload is None else _NUMBERS[payload.kind],
        None if payload is None else payload.data,
        msgspec.json.encode(event.tags).decode() if event.tags else None,
        event.metadata,
        stored_text(stored.append_id),
        stored_text(stored.origin),
        msgspec.json.encode(stored.headers).decode() if stored.headers else None,
    )


def payload_values(payload: Payload | None) -> dict[str, Any]:
    kind = None if payload is None else payload.kind
    return {"payload_kind": _NUMBERS[kind], "payload": None if payload is None else payload.data}


def snapshot(row: Row) -> Snapshot:
    seq_nr, number, data = row
    kind = _KINDS[number]
    return Snapshot(seq_nr, None if kind is None else Payload(kind, data))


def dead_letter(row: Row) -> DeadLetter:
    partition, order, offset, timestamp_ms, reason, key, value, headers = row
    return DeadLetter(partition, Position(order, offset), timestamp_ms, reason, key, value, _headers(headers))


def dead_letter_values(letter: DeadLetter) -> dict[str, Any]:
    return {
        "cursor_order": letter.cursor.order,
        "cursor_offset": letter.cursor.offset,
        "timestamp_ms": letter.timestamp_ms,
        "reason": letter.reason.replace("\0", "\ufffd"),
        "key": letter.key,
        "value": letter.value,
        "headers": msgspec.json.encode(letter.headers).decode(),
    }


def bytes_of(stored: Sequence[StoredEvent]) -> int:
    """About how much memory the events take."""
    return sum(len(one.event.payload.data) for one in stored if one.event.payload is not None)
