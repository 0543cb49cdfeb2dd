"""The archive's Parquet files: their columns, and the writer of staged files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.archive.files import Files
from strandline.archive.model import StagedFile
from strandline.log.records import HEADERS

_TIME = pa.timestamp("ms", "UTC")
_NUMBERS = [("partition", pa.int32()), ("timeline", pa.int32()), ("offset", pa.int64())]
_FRONT = [("event_type", pa.string()), *_NUMBERS, ("timestamp", _TIME)]
_KEY, _HEADERS = ("key", pa.binary()), ("headers", HEADERS)

#: The columns of data files; `value` is the event's JSON.
ARCHIVED = pa.schema([*_FRONT, ("event_time", _TIME), _KEY, ("value", pa.string()), _HEADERS])
#: The columns of quarantine files: records as they were read, with the reason.
QUARANTINED = pa.schema([*_FRONT, _KEY, ("value", pa.binary()), _HEADERS, ("reason", pa.string())])

_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 32 << 20
# Columns with few distinct values; for other columns a dictionary would not pay.
_DICTIONARY = ["event_type", "partition", "timeline", "reason"]
_COUNTING = ["offset", "timestamp", "event_time"]


class StagedFileWriter:
    """Writes one staged file: rows of one partition, timeline and hour (−1: the quarantine), by offset."""

    def __init__(self, files: Files, path: str, hour_ms: int) -> None:
        self._schema, kind = (QUARANTINED, "quarantine") if hour_ms < 0 else (ARCHIVED, "data")
        self._about: dict[str, Any] = {"path": path, "kind": kind, "hour_ms": hour_ms, "rows": 0}
        self._file = files.create(path)
        self._pending: list[pa.RecordBatch] = []
        #: Rows and bytes that are not written yet.
        self.pending_rows = self.pending_bytes = 0
        try:
            self._parquet = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in _DICTIONARY if name in self._schema.names],
                column_encoding={name: "DELTA_BINARY_PACKED" for name in _COUNTING if name in self._schema.names},
                write_statistics=[*_COUNTING, "partition", "timeline"],
                sorting_columns=[pq.SortingColumn(self._schema.get_field_index("offset"))],
            )
        except BaseException:
            self._file.discard()
            raise

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows, which must have the schema of the file's kind."""
        self._pending.append(rows)
        self.pending_rows += rows.num_rows
        self.pending_bytes += rows.nbytes
        self._observe(rows)
        if self.pending_rows >= _ROW_GROUP_ROWS or self.pending_bytes >= _ROW_GROUP_BYTES:
            self.flush()

    def _observe(self, rows: pa.RecordBatch) -> None:
        about = self._about
        about["rows"] += rows.num_rows
        about |= {name: rows[name][0].as_py() for name in ("partition", "timeline")}
        about.setdefault("first", rows["offset"][0].as_py())
        about["last"] = rows["offset"][-1].as_py()
        if "event_time" in self._schema.names:
            times = pa.compute.min_max(rows["event_time"].cast(pa.int64()))
            low, high = times["min"].as_py(), times["max"].as_py()
            about["min_time_ms"] = min(low, about.get("min_time_ms", low))
            about["max_time_ms"] = max(high, about.get("max_time_ms", high))

    def flush(self) -> None:
        """Write the pending rows as one row group."""
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._parquet.write_table(table, row_group_size=max(table.num_rows, 1))
            self._pending, self.pending_rows, self.pending_bytes = [], 0, 0

    @property
    def bytes(self) -> int:
        return self._file.tell()

    def close(self) -> StagedFile:
        self.flush()
        self._parquet.close()
        self._file.close()
        digest = self._file.digest
        return StagedFile(**self._about, bytes=digest.size, sha256=digest.sha256)

    def discard(self) -> None:
        """Delete the file; does nothing after `close`."""
        self._parquet.is_open = False  # else the garbage collector would write its footer
        self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def read(files: Files, path: str) -> Iterable[pa.RecordBatch]:
    """The rows of a staged or published file, in order."""
    with files.open(path) as file, pq.ParquetFile(file) as parquet:
        yield from parquet.iter_batches(batch_size=_ROW_GROUP_ROWS)
