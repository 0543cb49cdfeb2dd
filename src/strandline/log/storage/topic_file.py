"""One topic as one SQLite file, with group commit.

Appends of any number of threads queue up; whoever drains the queue stores all of them in one transaction,
one row per partition, and only then answers. Writers of other processes queue on a lock file beside it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engine import sql, sqlite
from strandline.errors import Conflict, NotFound, Sealed, StrandlineError, Unavailable
from strandline.log import records
from strandline.log.records import NewRecords
from strandline.log.storage.port import FAILED, Bounds, Placed

_SQL = sql.load("strandline.log.storage", "sqlite.sql")
# One transaction takes no more than this, so that the first of a long queue is not kept waiting.
_GROUP_RECORDS = 20_000

# Nor much more than this, which also keeps every row far below what Arrow and SQLite can hold.
_GROUP_BYTES = 64 << 20

_Pending = tuple[Mapping[int, NewRecords], "Future[dict[int, Placed]]"]


class TopicFile:
    def __init__(self, path: Path, executor: Executor) -> None:
        self._executor = executor
        self._reader = sqlite.Database(path)
        self._writer = sqlite.Database(path)
        self._lock = sqlite.FileLock(path.with_name(path.name + ".lock"))
        self._queue: deque[_Pending] = deque()
        self._queue_lock = threading.Lock()
        self._draining = False

    @classmethod
    def create(cls, path: Path, partitions: int) -> None:
        """Make the file; a half-made one is completed."""
        database = sqlite.Database(path, create=True)
        try:
            with database.transaction():
                database.execute(_SQL["create"])
                database.execute_many(_SQL["add_partition"], [(p,) for p in range(partitions)])
        finally:
            database.close()

    # -- writing

    def append(self, batches: Mapping[int, NewRecords]) -> Future[dict[int, Placed]]:
        future: Future[dict[int, Placed]] = Future()
        future.set_running_or_notify_cancel()  # what is queued will be stored: it cannot be cancelled
        with self._queue_lock:
            self._queue.append((batches, future))
            if self._draining:
                return future
            self._draining = True
        self._executor.submit(self._drain)
        return future

    def _drain(self) -> None:
        while group := self._next_group():
            try:
                results = self._store(group)
            except StrandlineError as error:
                for _, future in group:
                    future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - whoever waits must be told
                failure = Unavailable(f"storing failed: {error}")
                failure.__cause__ = error
                for _, future in group:
                    future.set_exception(failure)
            else:
                for (_, future), placed in zip(group, results, strict=True):
                    future.set_result(placed)

    def _next_group(self) -> list[_Pending]:
        with self._queue_lock:
            group: list[_Pending] = []
            count = size = 0
            while self._queue and count < _GROUP_RECORDS and size < _GROUP_BYTES:
                group.append(self._queue.popleft())
                for batch in group[-1][0].values():
                    count += len(batch)
                    size += batch.size
            if not group:
                self._draining = False
            return group

    def _store(self, group: Sequence[_Pending]) -> list[dict[int, Placed]]:
        members: dict[int, list[tuple[int, NewRecords]]] = {}
        for number, (batches, _) in enumerate(group):
            for partition, batch in batches.items():
                members.setdefault(partition, []).append((number, batch))
        # Encoding needs no lock; only offsets do.
        rows = {p: _rows([batch for _, batch in parts]) for p, parts in members.items()}
        results: list[dict[int, Placed]] = [{} for _ in group]
        with self._lock, self._writer.transaction() as db:
            self._refuse_sealed(db)
            starts = {partition: self._next_offset(db, partition) for partition in rows}
            for partition, start in starts.items():
                if start is not None:
                    db.execute_many(_SQL["insert_batch"], _placed_rows(partition, start, rows[partition]))
        for partition, parts in members.items():
            start = starts[partition]
            for number, batch in parts:
                if start is None:
                    results[number][partition] = Placed([FAILED] * len(batch), _no_partition(partition))
                else:
                    results[number][partition] = Placed(range(start, start + len(batch)))
                    start += len(batch)
        return results

    @staticmethod
    def _refuse_sealed(db: sqlite.Database) -> None:
        if seal := db.execute(_SQL["sealed_by"]):
            raise Sealed("the topic is sealed by a timeline switch", token=seal[0][0])

    @staticmethod
    def _next_offset(db: sqlite.Database, partition: int) -> int | None:
        """None if there is no such partition."""
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
        start, have, size = -1, 0, 0
        with self._reader.rows(_SQL["read"], (partition, offset)) as rows:
            for first, payload in rows:
                batch = pa.ipc.read_record_batch(pa.py_buffer(payload), records.STORED)
                if first + batch.num_rows <= offset:
                    continue
                if first < offset:
                    batch, first = batch.slice(offset - first), offset  # noqa: PLW2901 - the rest of it
                start = first if start < 0 else start
                found.append(batch)
                have += batch.num_rows
                size += batch.nbytes
                if have >= max_records or size >= max_bytes:
                    break
        if not found:
            self._end(partition)
            return records.empty()
        return _within(records.with_offsets(start, found), max_records, max_bytes)

    def bounds(self) -> list[Bounds]:
        return [Bounds(first, last) for _, first, last in self._reader.execute(_SQL["bounds"])]

    def find(self, partition: int, timestamp_ms: int) -> int:
        found = self._reader.execute(_SQL["find"], (partition, timestamp_ms))
        if not found:
            return self._end(partition)
        first, payload = found[0]
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), records.STORED)
        late = pc.greater_equal(batch.column("timestamp"), timestamp_ms)
        return int(first) + int(pc.index(late, value=True).as_py())

    def data_version(self) -> int:
        """Changes after a commit of any other connection, our own writer's included."""
        return self._reader.data_version()

    # -- upkeep

    def seal(self, token: str) -> None:
        with self._lock, self._writer.transaction() as db:
            db.execute(_SQL["seal"], (token,))
            if (holder := db.execute(_SQL["sealed_by"])[0][0]) != token:
                raise Conflict(f"the topic is sealed by another switch ({holder})")

    def unseal(self, token: str) -> None:
        with self._lock, self._writer.transaction() as db:
            db.execute(_SQL["unseal"], (token,))

    def purge(self, before_ms: int) -> int:
        removed = 0
        with self._lock, self._writer.transaction() as db:
            for partition, bounds in enumerate(self._bounds_in(db)):
                until = db.execute(_SQL["last_expired"], (partition, before_ms))[0][0]
                if until is not None:
                    db.execute(_SQL["purge"], (partition, until))
                    db.execute(_SQL["set_purged"], (until, partition))
                    removed += until - bounds.first
        return removed

    @staticmethod
    def _bounds_in(db: sqlite.Database) -> list[Bounds]:
        return [Bounds(first, last) for _, first, last in db.execute(_SQL["bounds"])]

    def grow(self, partitions: int) -> None:
        with self._lock, self._writer.transaction() as db:
            db.execute_many(_SQL["add_partition"], [(p,) for p in range(partitions)])

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        self._lock.close()


def _no_partition(partition: int) -> NotFound:
    return NotFound(f"the topic has no partition {partition}")


def _rows(parts: Sequence[NewRecords]) -> list[tuple[Any, ...]]:
    """One row for all of it, unless a single append is larger than a row should be; none for no records."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return []
    if sum(part.size for part in parts) <= 2 * _GROUP_BYTES:
        return [_row(parts)]
    return [_row([piece]) for part in parts for piece in part.split(_GROUP_BYTES)]


def _placed_rows(partition: int, start: int, rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        yield (partition, start, *row)
        start += row[0]


def _row(parts: Sequence[NewRecords]) -> tuple[Any, ...]:
    """records, bytes, min and max timestamp, payload."""
    batch = records.to_arrow(parts)
    payload = batch.serialize()
    times = [part.timestamp_ms for part in parts]
    return batch.num_rows, payload.size, min(times), max(times), payload


def _within(batch: pa.RecordBatch, max_records: int, max_bytes: int) -> pa.RecordBatch:
    """The longest start of the batch that keeps both limits, but at least one record."""
    batch = batch.slice(0, max_records)
    if batch.nbytes <= max_bytes:
        return batch
    sizes = pc.cumulative_sum(pc.cast(pc.binary_length(batch.column("value")), pa.int64()))
    fitting = pc.sum(pc.less_equal(sizes, max_bytes)).as_py() or 0
    return batch.slice(0, max(1, fitting))
