"""The tables of journals in Cassandra: their statements, and values from and to rows.

A cursor is stored as order * 2^47 + offset. The same number is the timestamp of what its action writes.
"""

from __future__ import annotations

import struct
import uuid
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

import msgspec

from strandline.engine import sql
from strandline.engine.cassandra import CassandraSession, Row, encoded
from strandline.errors import Invalid, Unavailable
from strandline.journal.model import DeadLetter, Head, JournalEvent, Payload, PayloadKind, StoredEvent
from strandline.log.cursors import Position

CQL = sql.load("strandline.journal.storage", "journal.cql", "cassandra")

#: The layout of the tables.
LAYOUT = 1
_SHIFT = 47
_MAX_ORDER = (1 << 16) - 1
_TABLE = "table_"
# The same table has the same id wherever it is created, so nodes that start together create one table.
_TABLE_IDS = uuid.UUID("6a0bb3e5-4d55-4b0c-9c0c-7b1d5f3f1a55")

# Numbers with their lengths.
_head_numbers = struct.Struct(">" + 8 * "iq").pack
_segment_numbers = struct.Struct(">iiiqiq").pack
_event_numbers = struct.Struct(">iqiqiq").pack
_stamp = struct.Struct(">iq").pack
_EMPTY, _FALSE, _TRUE = encoded(b""), encoded(b"\x00"), encoded(b"\x01")
_KINDS: dict[PayloadKind, bytes] = {kind: encoded(kind.encode()) for kind in ("json", "text", "binary")}

_decode_headers = msgspec.json.Decoder(tuple[tuple[str, bytes], ...]).decode
long = struct.Struct(">q").pack
integer = struct.Struct(">i").pack


class Sizes(NamedTuple):
    """Fixed when the tables are created. `segments` is how many partitions the heads of a topic have."""

    segments: int
    segment_size: int


def prepare_tables(session: CassandraSession, wanted: Sizes) -> Sizes:
    """Create the tables that are missing; returns the sizes with which they were created first."""
    names = {name.removeprefix(_TABLE): text for name, text in CQL.items() if name.startswith(_TABLE)}
    missing = names.keys() - session.tables()
    for name in sorted(missing):
        session.define(names[name].replace("{id}", str(uuid.uuid5(_TABLE_IDS, f"{session.keyspace}.{name}"))))
    settings: dict[str, int] = dict(session.fetch(CQL["settings"]))
    for name, value in {
        "segments": wanted.segments,
        "segment_size": wanted.segment_size,
        "layout": LAYOUT,
    }.items():
        if name not in settings:
            session.fetch(CQL["add_setting"], name, value)
    settings = dict(session.fetch(CQL["settings"]))
    if settings["layout"] > LAYOUT:
        raise Unavailable(
            f"the journals in the keyspace {session.keyspace} were written by a newer Strandline (layout "
            f"{settings['layout']}, this release knows {LAYOUT}); upgrade Strandline to open them"
        )
    return Sizes(settings["segments"], settings["segment_size"])


def stamp(position: Position) -> int:
    """A cursor as a number. Offset −1 of a timeline, which only a pointer has, is just before its first record."""
    if position.order > _MAX_ORDER:
        raise Invalid(f"a journal in Cassandra cannot have more than {_MAX_ORDER} timelines")
    return (position.order << _SHIFT) + position.offset


def cursor(number: int) -> Position:
    return Position(number >> _SHIFT, number & ((1 << _SHIFT) - 1))


def topic_key(topic: str) -> uuid.UUID:
    try:
        return uuid.UUID(topic)
    except ValueError:
        raise Invalid(f"{topic!r} is not the id of an event type") from None


@lru_cache(1 << 16)
def head_segment(entity: str, segments: int) -> int:
    """The segment of a journal's head: Java's hash of the id in lower case, as kafka-journal calculates it.

    Only ASCII letters are made lower case, because other letters depend on the release of Python.
    """
    units = array("H", entity.translate(_LOWER).encode("utf-16-le", "surrogatepass"))
    number = 0
    for unit in units:
        number = (31 * number + unit) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >> 31 else number
    return abs(signed) % segments


_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


# -- heads


class Segments(NamedTuple):
    """Where the rows of a life are."""

    size: int
    first: int | None = None
    last: int | None = None

    def of(self, seq_nr: int) -> int:
        return (seq_nr - 1) // self.size


class Removal(NamedTuple):
    """Segments of a life, from one to another, whose rows are deleted; none if `last` is before `first`."""

    since: Position
    first: int = 0
    last: int = -1


class HeadRow(NamedTuple):
    """`removing` is what the batch of the head deletes. `purging`: the journal is absent since `head.cursor`."""

    head: Head
    segments: Segments
    removing: tuple[Removal, ...] = ()
    purging: bool = False


def head_row(row: Row) -> HeadRow:
    since, last, seq_nr, delete_to, created, updated, expire_after, expire_on, origin, size, *rest = row
    first_segment, last_segment, removing, purging = rest
    head = Head(
        cursor(since),
        cursor(last),
        seq_nr,
        _some(delete_to),
        created,
        updated,
        _some(expire_after),
        _some(expire_on),
        origin or None,
    )
    return HeadRow(head, Segments(size, _some(first_segment), _some(last_segment)), _removals(removing), purging)


def _removals(numbers: Sequence[int]) -> tuple[Removal, ...]:
    triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return tuple(Removal(cursor(since), first, last) for since, first, last in triples)


def head_bytes(row: HeadRow) -> bytes:
    """The encoded values of `put_head` after the id and the number of the partition."""
    head, (size, first, last) = row.head, row.segments
    at = stamp(head.cursor)
    numbers = (
        *(8, stamp(head.since), 8, at, 8, head.seq_nr, 8, _number(head.delete_to), 8, head.created_ms),
        *(8, head.updated_ms, 8, _number(head.expire_after_ms), 8, _number(head.expire_on_ms)),
    )
    return b"".join(
        (
            _head_numbers(*numbers),
            encoded(head.origin.encode()) if head.origin else _EMPTY,
            _segment_numbers(4, size, 8, _number(first), 8, _number(last)),
            encoded(_removals_list(row.removing)) if row.removing else _EMPTY_LIST,
            _TRUE if row.purging else _FALSE,
            _stamp(8, at),
        )
    )


def _removals_list(removing: Iterable[Removal]) -> bytes:
    return _list(map(long, chain.from_iterable((stamp(one.since), one.first, one.last) for one in removing)))


def _some(number: int) -> int | None:
    return None if number < 0 else number


def _number(value: int | None) -> int:
    return -1 if value is None else value


# -- events


def events(rows: Iterable[Row]) -> list[StoredEvent]:
    """Written for speed: a journal may have millions of events."""
    return [
        StoredEvent(
            JournalEvent(
                seq_nr,
                None if kind is None else Payload(cast("PayloadKind", kind), payload or b""),
                tuple(tags) if tags else (),
                timestamp_ms,
                metadata,
            ),
            Position(number >> _SHIFT, number & 0x7FFFFFFFFFFF),
            append_id,
            origin,
            _decode_headers(headers) if headers else (),
        )
        for seq_nr, number, timestamp_ms, tags, metadata, kind, payload, append_id, origin, headers in rows
    ]


def event_bytes(stored: StoredEvent, none: bytes) -> bytes:
    """The encoded values of `add_row` after the key. `none` is that of a column without a value.

    NULL overwrites an older row; UNSET leaves the column out.
    """
    event, payload, at = stored.event, stored.event.payload, stamp(stored.cursor)
    return b"".join(
        (
            _event_numbers(8, event.seq_nr, 8, at, 8, event.timestamp_ms),
            encoded(_list([tag.encode() for tag in event.tags])) if event.tags else none,
            none if event.metadata is None else encoded(event.metadata),
            none + none if payload is None else _KINDS[payload.kind] + encoded(payload.data),
            none if stored.append_id is None else encoded(stored.append_id.encode()),
            none if stored.origin is None else encoded(stored.origin.encode()),
            encoded(msgspec.json.encode(stored.headers)) if stored.headers else none,
            _stamp(8, at),
        )
    )


def _list(values: Iterable[bytes]) -> bytes:
    items = [encoded(value) for value in values]
    return b"".join([integer(len(items)), *items])


_EMPTY_LIST = encoded(_list([]))


# -- dead letters and snapshots


def dead_letter(partition: int, row: Row) -> DeadLetter:
    number, timestamp_ms, reason, *content = row
    key, value, headers = content or (None, None, b"[]")
    return DeadLetter(partition, cursor(number), timestamp_ms, reason, key, value, _decode_headers(headers))


def dead_letter_values(letter: DeadLetter) -> list[Any]:
    return [
        long(stamp(letter.cursor)),
        long(letter.timestamp_ms),
        letter.reason.replace("\0", "\ufffd").encode(),
        letter.key,
        letter.value,
        msgspec.json.encode(letter.headers),
    ]


def body_bytes(payload: Payload | None) -> bytes:
    """A snapshot's payload in one column: two concurrent saves cannot mix."""
    return msgspec.msgpack.encode(payload)


def payload_of(body: bytes) -> Payload | None:
    return msgspec.msgpack.decode(body, type=Payload | None)
