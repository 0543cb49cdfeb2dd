"""Records as batches: plain lists on their way in, Arrow from the storage onwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
