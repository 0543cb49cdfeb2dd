"""What a team would write itself: a SQLite table with one row per record, with the same durability."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import apsw
import pyarrow as pa

_CREATE = """
CREATE TABLE records (partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, timestamp INTEGER NOT NULL,
                      key BLOB, value BLOB NOT NULL, headers BLOB, PRIMARY KEY (partition, "offset"))
"""
_INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)"
_READ = 'SELECT "offset", timestamp, key, value FROM records WHERE partition = ? AND "offset" >= ? LIMIT ?'
_SCHEMA = pa.schema(
    [("offset", pa.int64()), ("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())]
)


class PlainTable:
    """WAL and `synchronous=FULL`; page size and checkpoints are SQLite's defaults."""

    def __init__(self, path: Path, partitions: int) -> None:
        self._db = apsw.Connection(str(path))
        self._db.set_busy_timeout(60_000)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(_CREATE)
        self._next = [itertools.count() for _ in range(partitions)]

    def append(self, timestamp_ms: int, batches: Mapping[int, Sequence[bytes]]) -> None:
        """All records in one commit."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(
            _INSERT,
            [
                (partition, next(self._next[partition]), timestamp_ms, None, value, None)
                for partition, values in batches.items()
                for value in values
            ],
        )
        self._db.execute("COMMIT")

    def insert(self, partition: int, timestamp_ms: int, value: bytes) -> None:
        """One record in one commit: a single statement commits by itself, which is the fastest form."""
        self._db.execute(_INSERT, (partition, next(self._next[partition]), timestamp_ms, None, value, None))

    def read(self, partition: int, offset: int, limit: int) -> pa.RecordBatch:
        rows = self._db.execute(_READ, (partition, offset, limit)).fetchall()
        columns = zip(*rows, strict=True) if rows else [[], [], [], []]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
