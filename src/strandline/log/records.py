"""Records as batches: plain lists on their way in, Arrow from the storage onwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

Headers = Sequence[tuple[str, bytes]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

#: What is read, in partition order. `timestamp` is in milliseconds.
READ = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)

# Most records have no key and no headers, and a column of nothing costs time and room in every batch.
_LAYOUTS: list[tuple[str, ...]] = [(), ("key",), ("headers",), ("key", "headers")]
#: What is stored: the schema of a batch by the number of its layout.
STORED = [pa.schema([READ.field(name) for name in ("timestamp", "value", *names)]) for names in _LAYOUTS]
_COMPLETE = pa.schema([field for field in READ if field.name != "offset"])


@dataclass(frozen=True)
class NewRecords:
    """Records for one partition that carry the same timestamp. Lists, because JSON came in one by one."""

    timestamp_ms: int
    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def size(self) -> int:
        """Bytes of all values."""
        return sum(map(len, self.values))

    def pick(self, numbers: Sequence[int]) -> NewRecords:
        """Only the records with these numbers."""
        if len(numbers) == len(self):
            return self
        return NewRecords(
            self.timestamp_ms,
            [self.values[n] for n in numbers],
            None if self.keys is None else [self.keys[n] for n in numbers],
            None if self.headers is None else [self.headers[n] for n in numbers],
        )

    def split(self, max_bytes: int) -> Iterator[NewRecords]:
        """The same records in order, in parts of at most that many bytes, or of one record."""
        start = size = 0
        for at, value in enumerate(self.values):
            if at > start and size + len(value) > max_bytes:
                yield self._part(start, at)
                start, size = at, 0
            size += len(value)
        yield self._part(start, len(self))

    def _part(self, start: int, end: int) -> NewRecords:
        keys, headers = self.keys, self.headers
        return NewRecords(
            self.timestamp_ms,
            self.values[start:end],
            None if keys is None else keys[start:end],
            None if headers is None else headers[start:end],
        )


def to_arrow(parts: Sequence[NewRecords]) -> pa.RecordBatch:
    """One batch of all parts, in order, in one of the `STORED` layouts; OverflowError past 2 GB."""
    values = parts[0].values if len(parts) == 1 else [value for part in parts for value in part.values]
    arrays = [_timestamps(parts), _array(values, pa.binary())]
    number = 0
    if any(part.keys is not None for part in parts):
        number += 1
        arrays.append(_column(parts, [part.keys for part in parts], pa.binary()))
    if any(part.headers is not None for part in parts):
        number += 2
        arrays.append(_column(parts, [part.headers for part in parts], HEADERS))
    return pa.RecordBatch.from_arrays(arrays, schema=STORED[number])


def layout(batch: pa.RecordBatch) -> int:
    """The number of a batch's layout."""
    return _LAYOUTS.index(tuple(batch.schema.names[2:]))


def _timestamps(parts: Sequence[NewRecords]) -> pa.Array:
    if len(parts) == 1:
        return pa.array(np.full(len(parts[0]), parts[0].timestamp_ms))
    return pa.array(np.repeat([part.timestamp_ms for part in parts], [len(part) for part in parts]))


def _column(parts: Sequence[NewRecords], lists: Sequence[Sequence[object] | None], kind: pa.DataType) -> pa.Array:
    filled = (
        values if values is not None else [None] * len(part) for part, values in zip(parts, lists, strict=True)
    )
    return _array([value for values in filled for value in values], kind)


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    array = pa.array(values, kind)
    if isinstance(array, pa.ChunkedArray):
        raise OverflowError
    return array


def with_offsets(first: int, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Stored batches that follow each other, from the given offset on, as one `READ` batch."""
    schema = batches[0].schema
    if any(batch.schema != schema for batch in batches):
        batches = [_completed(batch) for batch in batches]
    whole = _completed(batches[0] if len(batches) == 1 else pa.concat_batches(batches))
    offsets = pa.array(np.arange(first, first + whole.num_rows))
    return pa.RecordBatch.from_arrays([offsets, *whole.columns], schema=READ)


def _completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A stored batch of any layout with all columns."""
    there = batch.schema.names
    arrays = [
        batch.column(name) if name in there else pa.nulls(batch.num_rows, READ.field(name).type)
        for name in _COMPLETE.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_COMPLETE)


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in READ], schema=READ)
