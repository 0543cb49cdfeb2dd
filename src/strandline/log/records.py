"""Records as batches: plain lists on their way in, Arrow from the storage onwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

Headers = Sequence[tuple[str, bytes]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

#: What is stored, in partition order. `timestamp` is in milliseconds.
STORED = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])

#: What is read: the same with each record's offset.
READ = pa.schema([pa.field("offset", pa.int64()), *STORED])


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
    """One `STORED` batch of all parts, in order."""
    count = sum(len(part) for part in parts)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.repeat([p.timestamp_ms for p in parts], [len(p) for p in parts]), pa.int64()),
            _column(parts, [p.keys for p in parts], pa.binary(), count),
            pa.array([value for part in parts for value in part.values], pa.binary()),
            _column(parts, [p.headers for p in parts], HEADERS, count),
        ],
        schema=STORED,
    )


def _column(
    parts: Sequence[NewRecords], lists: Sequence[Sequence[object] | None], kind: pa.DataType, count: int
) -> pa.Array:
    if all(values is None for values in lists):
        return pa.nulls(count, kind)
    filled = (
        values if values is not None else [None] * len(part) for part, values in zip(parts, lists, strict=True)
    )
    return pa.array([value for values in filled for value in values], kind)


def with_offsets(first: int, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Stored batches that follow each other, from the given offset on, as one `READ` batch."""
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    offsets = pa.array(np.arange(first, first + whole.num_rows))
    return pa.RecordBatch.from_arrays([offsets, *whole.columns], schema=READ)


def empty() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in READ], schema=READ)
