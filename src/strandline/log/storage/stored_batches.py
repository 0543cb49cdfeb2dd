"""Batches as rows of a topic's file: how they are encoded, checked and decoded.

A batch has records of one partition with consecutive offsets. A row has its records as an Arrow IPC record batch.
A batch of a few records is first stored in a form that costs much less to encode, and becomes part of an Arrow
batch by compaction. A checksum covers the payload of a row and everything that identifies it, so that a row in the
wrong place is found, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest

from strandline.engine import sql
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Damaged
from strandline.log import records
from strandline.log.records import Headers, NewRecords
from strandline.log.storage import ipc

_SQL = sql.load("strandline.log.storage", "topic_file.sql", "sqlite")

# A batch of fewer records is slow to read, so compaction must move it anyway. A row for each of many appends would
# cost more than an Arrow batch of all.
_SMALL_RECORDS = 16
_SMALL_BYTES = 16 << 10
_SMALL_APPENDS = 4
# Up to this many records `ipc` is faster than Arrow.
_IPC_RECORDS = 128
# Keeps every row far below the limits of Arrow and SQLite.
_ROW_BYTES = 64 << 20

# The layouts of small batches, after those of Arrow: the value of a single record, and several values with their
# keys and headers as MessagePack.
SMALL = _ONE_VALUE = len(records.STORED)
_PACKED = _ONE_VALUE + 1

_packer = msgspec.msgpack.Encoder()
_unpacker = msgspec.msgpack.Decoder(
    tuple[list[bytes | None], list[bytes | None] | None, list[Headers | None] | None]
)

#: What SQLite and the checksum take as bytes, `pa.Buffer` included.
Payload = Any

_identity = struct.Struct("<6qQ").pack
_POSITIVE = (1 << 63) - 1  # SQLite's integers are signed


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A batch that has no place yet."""

    records: int
    min_timestamp: int
    max_timestamp: int
    layout: int
    payload: Payload
    digest: int


#: A row that was read: first offset, number of records, oldest and newest timestamp, layout, payload, checksum.
StoredRow = tuple[int, int, int, int, int, bytes, int | None]


def encode(parts: Sequence[NewRecords]) -> list[Encoded]:
    """The rows for the records of one partition: small ones, or one, or several if one would be too large."""
    small: list[Encoded] = []
    for part in parts:
        if part.values:
            row = _small(part)
            if row is None or len(small) == _SMALL_APPENDS:
                break
            small.append(row)
    else:
        return small
    parts = [part for part in parts if part.values]
    try:
        row = _arrow(parts)
    except OverflowError:
        row = None
    if row is not None and len(row.payload) <= 2 * _ROW_BYTES:
        return [row]
    return [_arrow([piece]) for part in parts for piece in part.split(_ROW_BYTES)]


def _small(part: NewRecords) -> Encoded | None:
    """The records in a form that is cheap to encode; None if they are too many or too large."""
    time, values = part.timestamp_ms, part.values
    number = len(values)
    if number > _SMALL_RECORDS or records.total_bytes(values) > _SMALL_BYTES:
        return None
    first = values[0]
    if number == 1 and first is not None and part.keys is None and part.headers is None:
        layout, payload = _ONE_VALUE, first
    else:
        layout, payload = _PACKED, _packer.encode((values, part.keys, part.headers))
    return Encoded(number, time, time, layout, payload, xxh3_64_intdigest(payload))


def _arrow(parts: Sequence[NewRecords]) -> Encoded:
    columns = _plain_columns(parts)
    if columns is None:
        times = [part.timestamp_ms for part in parts]
        return _serialized(*records.to_arrow(parts), min(times), max(times))
    time, payload = parts[0].timestamp_ms, ipc.message(columns)
    layout = len(columns) - 1  # the second column is the key
    return Encoded(len(columns[0]), time, time, layout, payload, xxh3_64_intdigest(payload))


def _plain_columns(parts: Sequence[NewRecords]) -> list[Sequence[bytes]] | None:
    """The columns of a single append that `ipc` writes faster than Arrow."""
    part = parts[0]
    if len(parts) > 1 or len(part.values) > _IPC_RECORDS or part.headers is not None:
        return None
    columns: list[Sequence[bytes]] = [
        _present(column) for column in (part.values, part.keys) if column is not None
    ]
    return columns if all(len(column) == len(part) for column in columns) else None


def _present(column: Sequence[bytes | None]) -> list[bytes]:
    return [each for each in column if each is not None]


def _serialized(layout: int, batch: pa.RecordBatch, oldest_ms: int, newest_ms: int) -> Encoded:
    payload = batch.serialize()
    return Encoded(batch.num_rows, oldest_ms, newest_ms, layout, payload, xxh3_64_intdigest(payload))


def encode_again(batch: pa.RecordBatch) -> Encoded:
    """One row for records that were read."""
    times = pc.min_max(batch.column("timestamp"))
    return _serialized(*records.to_stored(batch), times["min"].as_py(), times["max"].as_py())


def insert(db: SqliteConnection, placed: Iterable[tuple[int, int, Encoded]]) -> None:
    """Insert batches, each with its partition and first offset."""
    small: list[tuple[Any, ...]] = []
    others: list[tuple[Any, ...]] = []
    for partition, first, batch in placed:
        number, oldest, newest, layout = batch.records, batch.min_timestamp, batch.max_timestamp, batch.layout
        identity = _identity(partition, first, number, oldest, newest, layout, batch.digest)
        checksum = xxh3_64_intdigest(identity) & _POSITIVE
        payload = batch.payload
        if layout >= SMALL:
            small.append((partition, first, number, len(payload), oldest, layout, payload, checksum))
        else:
            others.append((partition, first, number, len(payload), oldest, newest, layout, payload, checksum))
    if small:
        db.execute_many(_SQL["insert_small_batch"], small)
    if others:
        db.execute_many(_SQL["insert_batch"], others)


@contextmanager
def intact(
    db: SqliteConnection, topic: str, statement: str, values: tuple[int, ...], offset: int = 0
) -> Iterator[Iterator[StoredRow]]:
    """The rows of a query that have records from `offset` on. Damaged at the first one that is damaged or missing.

    The first value of the query is the partition.
    """
    try:
        with db.rows(statement, values) as rows:
            yield _checked(topic, values[0], rows, offset)
    except Damaged as error:
        if "topic" in error.info:
            raise
        # SQLite cannot read the file any further.
        raise Damaged(
            f"topic {topic!r}, partition {values[0]}: the records from {offset} on cannot be read: {error.detail}",
            topic=topic, partition=values[0], first_offset=offset,
        ) from error  # fmt: skip


def _checked(topic: str, partition: int, rows: Iterator[StoredRow], offset: int) -> Iterator[StoredRow]:
    expected = None
    for row in rows:
        first, number, oldest, newest, layout, payload, checksum = row
        if first != expected and expected is not None:
            raise _damaged(topic, partition, max(expected, offset), first - 1, "they are missing")
        expected = first + number
        if expected <= offset:
            continue
        try:
            identity = _identity(partition, first, number, oldest, newest, layout, xxh3_64_intdigest(payload))
            is_intact = xxh3_64_intdigest(identity) & _POSITIVE == checksum
        except (struct.error, TypeError):  # the damage has changed the type of a column
            is_intact = False
        if not is_intact and (checksum is not None or not _is_readable(row)):
            following = next(rows, None)  # the number of records may be damaged, too
            end = expected if following is None else following[0]
            raise _damaged(topic, partition, first, max(first, end - 1), "their checksum is wrong")
        yield row


def _is_readable(row: StoredRow) -> bool:
    """For a row from before there were checksums. It must not crash the process, at least."""
    try:
        batch = _from_ipc(row)
        batch.validate(full=True)
    except (pa.ArrowException, EOFError, LookupError, OSError):
        return False
    return bool(batch.num_rows == row[1])


def _from_ipc(row: StoredRow) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(row[5]), records.STORED[row[4]])


def _damaged(topic: str, partition: int, first: int, last: int, why: str) -> Damaged:
    return Damaged(
        f"topic {topic!r}, partition {partition}: the records {first} to {last} are damaged ({why}); "
        f"restore the topic from a backup, or read on after offset {last}",
        topic=topic, partition=partition, first_offset=first, last_offset=last,
    )  # fmt: skip


class Collected:
    """Consecutive rows of one partition that become one batch."""

    def __init__(self) -> None:
        self.first_offset = self.end = -1
        self.rows = self.bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._times: list[int] = []
        # The records of small batches since the last Arrow batch.
        self._small = records.Columns()

    def add(self, row: StoredRow) -> None:
        first, number, time, _, layout, payload, _ = row
        if not self.rows:
            self.first_offset = first
        self.end = first + number
        self.rows += 1
        self.bytes += len(payload)
        if layout == _ONE_VALUE:
            self._small.add(time, payload)
        elif layout == _PACKED:
            self._small.add_all(time, *_unpacker.decode(payload))
        else:
            self._end_small()
            self._batches.append(_from_ipc(row))
            self._times.append(time)

    def _end_small(self) -> None:
        if len(self._small):
            self._batches.append(self._small.to_arrow())
            self._times.append(0)  # it has timestamps of its own
            self._small = records.Columns()

    def to_arrow(self) -> pa.RecordBatch:
        """A `records.READ` batch."""
        self._end_small()
        return records.with_offsets(self.first_offset, self._batches, self._times)
