"""One topic as one SQLite file.

A group of appends is stored in one transaction, one row per partition. Writers of all processes queue on a lock
file beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engine import sql, sqlite
from strandline.engine.checkpoints import Checkpoints
from strandline.engine.layouts import create_file, migrate_file
from strandline.errors import NotFound, Sealed
from strandline.log import records
from strandline.log.combining import Combiner
from strandline.log.records import NewRecords
from strandline.log.storage.port import FAILED, Bounds, Placed

_SQL = sql.load("strandline.log.storage", "topic_file.sql", "sqlite")
# Keeps every row far below the limits of Arrow and SQLite.
_ROW_BYTES = 64 << 20

# The limits of one transaction, so that the first append of a long queue does not wait for all others.
_GROUP_RECORDS = 20_000
_GROUP_BYTES = 64 << 20
# Deleting a small row costs about as much as deleting a page.
_ROW_OVERHEAD = 4096
# Lets a waiting writer take the lock between two transactions.
_PAUSE_SECONDS = 0.001

Batches = Mapping[int, NewRecords]
_Row = tuple[Any, ...]


class TopicFile:
    def __init__(self, path: Path, executor: Executor, copier: Executor) -> None:
        self._reader = sqlite.SqliteConnection(path)
        self._writer = sqlite.SqliteConnection(path, committed=Checkpoints(path, copier).committed)
        self._lock = _lock_beside(path)
        try:
            migrate_file(self._writer, self._lock, _SQL)
        except BaseException:
            self.close()
            raise
        self._commits = Combiner(self._store, executor, weight=_weight, free=self._lock.free)
        # Next offsets by partition, valid for this data version, which changes with commits of other connections.
        self._next: dict[int, int] = {}
        self._next_version: int | None = None

    @classmethod
    def create(cls, path: Path, partitions: int) -> None:
        """Create the file, or complete a partly created one."""
        # Locked, because SQLite does not wait while another connection turns WAL mode on.
        with (
            closing(_lock_beside(path)) as lock,
            lock,
            closing(sqlite.SqliteConnection(path, create=True)) as connection,
            connection.transaction(),
        ):
            create_file(connection, _SQL)
            connection.execute_many(_SQL["add_partition"], [(p,) for p in range(partitions)])

    @property
    def read_only(self) -> bool:
        """Whether the file was not writable. Then writes fail until it is opened again."""
        return self._writer.read_only

    # -- writing

    def append(self, batches: Batches, *, waits: bool) -> Future[dict[int, Placed]]:
        return self._commits.add(batches, waits=waits)

    def finish(self) -> None:
        """Return when every append has its result."""
        self._commits.finish()

    def _store(self, group: Sequence[Batches]) -> list[dict[int, Placed]]:
        parts: dict[int, list[NewRecords]] = {}
        for batches in group:
            for partition, batch in batches.items():
                parts.setdefault(partition, []).append(batch)
        # Encode without the lock; only the offsets need it.
        rows = {partition: _rows(found) for partition, found in parts.items()}
        try:
            with self._lock, self._writer.transaction() as db:
                offsets = self._next_offsets(db, rows)
                db.execute_many(_SQL["insert_batch"], _placed_rows(rows, offsets))
        except BaseException:
            self._next_version = None
            raise
        results = [_placed(batches, offsets) for batches in group]
        self._next.update((partition, offset) for partition, offset in offsets.items() if offset is not None)
        return results

    def _next_offsets(self, db: sqlite.SqliteConnection, partitions: Iterable[int]) -> dict[int, int | None]:
        """The next offset of each partition; None if it does not exist. Sealed if the topic is sealed."""
        version = db.data_version()
        if version != self._next_version:
            if seal := db.execute(_SQL["sealed_by"]):
                raise Sealed("the topic is sealed by a timeline switch", token=seal[0][0])
            self._next, self._next_version = {}, version
        return {p: self._next[p] if p in self._next else self._next_offset(db, p) for p in partitions}

    @staticmethod
    def _next_offset(db: sqlite.SqliteConnection, partition: int) -> int | None:
        found = db.execute(_SQL["next_offset"], (partition,))
        return int(found[0][0]) if found else None

    def _end(self, partition: int) -> int:
        end = self._next_offset(self._reader, partition)
        if end is None:
            raise _no_partition(partition)
        return end

    # -- reading

    def read(self, partition: int, offset: int, max_records: int, max_bytes: int) -> pa.RecordBatch:
        found: list[pa.RecordBatch] = []
        times: list[int] = []
        start, have, size = -1, 0, 0
        with self._reader.rows(_SQL["read"], (partition, offset)) as rows:
            for first, timestamp_ms, layout, payload in rows:
                batch = pa.ipc.read_record_batch(pa.py_buffer(payload), records.STORED[layout])
                if first + batch.num_rows <= offset:
                    continue
                if first < offset:
                    batch, first = batch.slice(offset - first), offset  # noqa: PLW2901 - the rest of it
                start = first if start < 0 else start
                found.append(batch)
                times.append(timestamp_ms)
                have += batch.num_rows
                size += len(payload)
                if have >= max_records or size >= max_bytes:
                    break
        if not found:
            self._end(partition)
            return records.empty()
        return _within(records.with_offsets(start, found, times), max_records, max_bytes)

    def bounds(self) -> list[Bounds]:
        return [Bounds(first, last) for _, first, last in self._reader.execute(_SQL["bounds"])]

    def find(self, partition: int, timestamp_ms: int) -> int:
        found = self._reader.execute(_SQL["find"], (partition, timestamp_ms))
        if not found:
            return self._end(partition)
        first, common_ms, layout, payload = found[0]
        stored = pa.ipc.read_record_batch(pa.py_buffer(payload), records.STORED[layout])
        batch = records.with_offsets(first, [stored], [common_ms])
        late = pc.greater_equal(batch.column("timestamp"), timestamp_ms)
        return int(first) + int(pc.index(late, value=True).as_py())

    def data_version(self) -> int:
        """Changes after a commit of any process, including this one."""
        return self._reader.data_version()

    # -- upkeep

    @contextmanager
    def _changing(self) -> Iterator[sqlite.SqliteConnection]:
        with self._lock, self._writer.transaction() as db:
            self._next_version = None  # the writer's own commits do not change its data version
            yield db

    def seal(self, token: str) -> None:
        with self._changing() as db:
            db.execute(_SQL["seal"], (token,))
            if (holder := db.execute(_SQL["sealed_by"])[0][0]) != token:
                raise Sealed("the topic is sealed by another timeline switch", token=holder)

    def unseal(self, token: str) -> None:
        with self._changing() as db:
            db.execute(_SQL["unseal"], (token,))

    def purge(self, before_ms: int) -> int:
        removed = 0
        while part := self._purge_part(before_ms):
            removed += part
            time.sleep(_PAUSE_SECONDS)
        return removed

    def _purge_part(self, before_ms: int) -> int:
        """Delete one part, so that appends can run between two parts. Returns 0 when nothing is left."""
        removed, left = 0, _GROUP_BYTES
        with self._changing() as db:
            for partition, first, _ in db.execute(_SQL["bounds"]):
                until, size = _expired(db, partition, before_ms, left)
                if size:
                    db.execute(_SQL["purge"], (partition, until))
                    db.execute(_SQL["set_purged"], (until, partition))
                    removed += until - first
                    left -= size
        return removed

    def grow(self, partitions: int) -> None:
        with self._changing() as db:
            db.execute_many(_SQL["add_partition"], [(p,) for p in range(partitions)])

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._lock.close()


def _lock_beside(path: Path) -> sqlite.FileLock:
    return sqlite.FileLock(path.with_name(path.name + ".lock"))


def _no_partition(partition: int) -> NotFound:
    return NotFound(f"the topic has no partition {partition}")


def _expired(db: sqlite.SqliteConnection, partition: int, before_ms: int, most: int) -> tuple[int, int]:
    """The offset after the oldest expired batches, and their size; the last of them may exceed `most` bytes.

    A batch is deleted only together with all older ones, so that the rest has no gap.
    """
    until = size = 0
    with db.rows(_SQL["oldest"], (partition,)) as rows:
        for end, newest_ms, payload_bytes in rows:
            if newest_ms >= before_ms or size >= most:
                break
            until, size = end, size + payload_bytes + _ROW_OVERHEAD
    return until, size


def _weight(batches: Batches) -> float:
    count = sum(map(len, batches.values()))
    size = sum(batch.size for batch in batches.values())
    return max(count / _GROUP_RECORDS, size / _GROUP_BYTES)


def _rows(parts: Sequence[NewRecords]) -> list[_Row]:
    """One row for all parts, or several if it would be too large; no row without records."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return []
    with suppress(OverflowError):
        row = _row(parts)
        if row[1] <= 2 * _ROW_BYTES:
            return [row]
    return [_row([piece]) for part in parts for piece in part.split(_ROW_BYTES)]


def _row(parts: Sequence[NewRecords]) -> _Row:
    """Number of records, bytes, min and max timestamp, layout, payload."""
    layout, batch = records.to_arrow(parts)
    payload = batch.serialize()
    times = [part.timestamp_ms for part in parts]
    return batch.num_rows, payload.size, min(times), max(times), layout, payload


def _placed_rows(rows: Mapping[int, Sequence[_Row]], offsets: Mapping[int, int | None]) -> Iterator[_Row]:
    for partition, offset in offsets.items():
        if offset is not None:
            for row in rows[partition]:
                yield (partition, offset, *row)
                offset += row[0]  # noqa: PLW2901 - the next row follows this one


def _placed(batches: Batches, offsets: dict[int, int | None]) -> dict[int, Placed]:
    """The offsets of an append's records; advances `offsets` by their number."""
    placed = {}
    for partition, batch in batches.items():
        offset = offsets[partition]
        if offset is None:
            placed[partition] = Placed([FAILED] * len(batch), _no_partition(partition))
        else:
            placed[partition] = Placed(range(offset, offset + len(batch)))
            offsets[partition] = offset + len(batch)
    return placed


def _within(batch: pa.RecordBatch, max_records: int, max_bytes: int) -> pa.RecordBatch:
    """The longest prefix of the batch within both limits, but at least one record."""
    batch = batch.slice(0, max_records)
    if batch.nbytes <= max_bytes:
        return batch
    sizes = pc.cumulative_sum(pc.cast(pc.binary_length(batch.column("value")), pa.int64()))
    fitting = pc.sum(pc.less_equal(sizes, max_bytes)).as_py() or 0
    return batch.slice(0, max(1, fitting))
