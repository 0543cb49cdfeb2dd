"""The headers of records in Arrow, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.journal.actions import HEADER

_Headers = tuple[tuple[str, bytes], ...]


def action_headers(records: pa.RecordBatch) -> Iterator[tuple[bytes | None, _Headers]]:
    """The header of the action and the other headers of each record."""
    column = records["headers"]
    lengths = pc.list_value_length(column)
    names, values = column.flatten().flatten() if column.null_count < len(column) else ([], [])
    if pc.all(pc.equal(pc.fill_null(lengths, 0), 1)).as_py() and pc.all(pc.equal(names, HEADER)).as_py():
        return ((value, ()) for value in values.to_pylist())  # the records that we write
    return map(_split, column.to_pylist())


def _split(headers: Sequence[Mapping[str, Any]] | None) -> tuple[bytes | None, _Headers]:
    each = [(header["key"], header["value"] or b"") for header in headers or ()]
    found = next((value for name, value in each if name == HEADER), None)
    return found, tuple((name, value) for name, value in each if name != HEADER)
