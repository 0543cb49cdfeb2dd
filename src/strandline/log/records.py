"""Batches of records: plain lists before they are stored, Arrow afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_T = TypeVar("_T")

Headers = Sequence[tuple[str, bytes]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

#: The schema of a batch that was read, in partition order. `timestamp` is in milliseconds.
READ = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)

# A batch has these columns only if it needs them, because most records have no key, headers or own timestamp.
_OPTIONAL = ("key", "headers", "timestamp")
#: The schemas of stored batches by layout number. Each optional column is one bit of the number.
STORED = [
    pa.schema([READ.field(name) for name in ("value", *(n for i, n in enumerate(_OPTIONAL) if number >> i & 1))])
    for number in range(1 << len(_OPTIONAL))
]
_HAS_TIMESTAMPS = 1 << _OPTIONAL.index("timestamp")


class NewRecords(msgspec.Struct, frozen=True, dict=True):
    """Records for one partition that carry the same timestamp. Lists, because events arrive one by one as JSON.

    Only a record of a journal may be without a value, which is not the same as an empty one.
    """

    timestamp_ms: int
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def size(self) -> int:
        """Bytes of all values."""
        return total_bytes(self.values)

    def pick(self, numbers: Sequence[int]) -> NewRecords:
        """Only the records with these numbers."""
        if len(numbers) == len(self):
            return self
        return NewRecords(
            self.timestamp_ms,
            _picked(self.values, numbers),
            None if self.keys is None else _picked(self.keys, numbers),
            None if self.headers is None else _picked(self.headers, numbers),
        )

    def split(self, max_bytes: int) -> Iterator[NewRecords]:
        """The same records in order, in parts of at most `max_bytes` or of a single record."""
        start = size = 0
        for at, value in enumerate(self.values):
            own = len(value or b"")
            if at > start and size + own > max_bytes:
                yield self.pick(range(start, at))
                start, size = at, 0
            size += own
        yield self.pick(range(start, len(self)))


def total_bytes(values: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, values)))


def _picked(column: Sequence[_T], numbers: Sequence[int]) -> Sequence[_T]:
    if isinstance(numbers, range):
        return column[numbers.start : numbers.stop : numbers.step]
    return [column[n] for n in numbers]


def to_arrow(parts: Sequence[NewRecords]) -> tuple[int, pa.RecordBatch]:
    """The layout number, and one batch of all parts in order; OverflowError above 2 GB."""
    values = parts[0].values if len(parts) == 1 else [value for part in parts for value in part.values]
    arrays = [_array(values, pa.binary())]
    number = 0
    if any(part.keys is not None for part in parts):
        number += 1
        arrays.append(_array([key for p in parts for key in p.keys or [None] * len(p)], pa.binary()))
    if any(part.headers is not None for part in parts):
        number += 2
        arrays.append(_array([own for p in parts for own in p.headers or [None] * len(p)], HEADERS))
    if any(part.timestamp_ms != parts[0].timestamp_ms for part in parts):
        number += _HAS_TIMESTAMPS
        arrays.append(_times([part.timestamp_ms for part in parts], [len(part) for part in parts]))
    return number, pa.RecordBatch.from_arrays(arrays, schema=STORED[number])


def _times(times: Sequence[int], counts: Sequence[int]) -> pa.Array:
    return pa.array(np.repeat(np.array(times, np.int64), counts))


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    array = pa.array(values, kind)
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError
    return array


class Columns:
    """Records that are collected one by one and become a stored batch with timestamps."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._values: list[bytes | None] = []
        # The keys and headers of the first records may be missing, because most records have none.
        self._keys: list[bytes | None] = []
        self._headers: list[Headers | None] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, time: int, value: bytes) -> None:
        self._times.append(time)
        self._values.append(value)

    def add_all(
        self,
        time: int,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
    ) -> None:
        if keys is not None:
            self._keys += [None] * (len(self) - len(self._keys))
            self._keys += keys
        if headers is not None:
            self._headers += [None] * (len(self) - len(self._headers))
            self._headers += headers
        self._times.extend([time] * len(values))
        self._values.extend(values)

    def to_arrow(self) -> pa.RecordBatch:
        number, arrays = _HAS_TIMESTAMPS, [pa.array(self._values, pa.binary())]
        for bit, column, kind in ((1, self._keys, pa.binary()), (2, self._headers, HEADERS)):
            if column:
                number += bit
                arrays.append(pa.array([*column, *[None] * (len(self) - len(column))], kind))
        arrays.append(pa.array(np.array(self._times, np.int64)))
        return pa.RecordBatch.from_arrays(arrays, schema=STORED[number])


def with_offsets(first: int, batches: Sequence[pa.RecordBatch], times: Sequence[int]) -> pa.RecordBatch:
    """Consecutive stored batches as one `READ` batch, whose first record has the offset `first`.

    `times` has one timestamp for every batch, which is used if the batch has no timestamp column.
    """
    counts = [batch.num_rows for batch in batches]
    names = [batch.schema.names for batch in batches]

    def column(field: pa.Field) -> pa.Array:
        if not any(field.name in own for own in names):
            return missing(field, times, counts)
        each = zip(batches, names, times, counts, strict=True)
        return pa.concat_arrays(
            batch.column(own.index(field.name)) if field.name in own else missing(field, [time], [count])
            for batch, own, time, count in each
        )

    def missing(field: pa.Field, times: Sequence[int], counts: Sequence[int]) -> pa.Array:
        return _times(times, counts) if field.name == "timestamp" else pa.nulls(sum(counts), field.type)

    offsets = pa.array(np.arange(first, first + sum(counts)))
    return pa.RecordBatch.from_arrays([offsets, *(column(field) for field in [*READ][1:])], schema=READ)


def to_stored(batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """The layout number of a `READ` batch, and its records without the columns that they do not need."""
    needed = {name: batch.column(name).null_count < batch.num_rows for name in ("key", "headers")}
    needed["timestamp"] = pc.count_distinct(batch.column("timestamp")).as_py() > 1
    number = sum(1 << bit for bit, name in enumerate(_OPTIONAL) if needed[name])
    return number, batch.select(STORED[number].names)


_EMPTY = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in READ], schema=READ)


def empty() -> pa.RecordBatch:
    return _EMPTY
