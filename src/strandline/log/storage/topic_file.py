"""One topic as one SQLite file.

A group of appends is stored in one transaction. Writers of all processes queue on a lock file beside the topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from strandline import failpoints
from strandline.engine import sql, sqlite
from strandline.engine.checkpoints import Checkpoints
from strandline.engine.layouts import create_file, migrate_file
from strandline.errors import Damaged, Fenced, NotFound, Sealed
from strandline.log import records
from strandline.log.combining import Combiner
from strandline.log.records import NewRecords
from strandline.log.storage.compaction import Compaction
from strandline.log.storage.port import FAILED, Bounds, Fence, Placed
from strandline.log.storage.stored_batches import SMALL, Collected, Encoded, StoredRow, encode, insert, intact

_SQL = sql.load("strandline.log.storage", "topic_file.sql", "sqlite")
# The limits of one transaction, so that the first append of a long queue does not wait for all others.
_GROUP_RECORDS = 20_000
_GROUP_BYTES = 64 << 20
# Deleting a small row costs about as much as deleting a page.
_ROW_OVERHEAD = 4096
# Lets a waiting writer take the lock between two transactions.
_PAUSE_SECONDS = 0.001
# The number of small batches of a partition that causes a compaction; it includes partitions that have fewer. So
# many that single records become a full batch at once: a smaller one would be written again with the next.
_MANY_SMALL = 512
_FEW_SMALL = 256
_EVERYTHING = 2**63 - 1  # the last offset of a purge without a limit

Batches = Mapping[int, NewRecords]


class TopicFile:
    """`stored` is called after every commit of appends, before they are answered.

    Its arguments are whether small batches were stored, whether a partition has reached many of them, and how
    many seconds the transaction took.
    """

    def __init__(
        self, path: Path, executor: Executor, copier: Executor, stored: Callable[[bool, bool, float], None]
    ) -> None:
        self._reader = sqlite.SqliteConnection(path)
        self._writer = sqlite.SqliteConnection(path, committed=Checkpoints(path, copier).committed)
        self._lock = _lock_beside(path)
        try:
            migrate_file(self._writer, self._lock, _SQL)
        except BaseException:
            self.close()
            raise
        self._appending = self._writer.transaction()
        self._topic = path.stem
        self._stored = stored
        self._commits = Combiner(self._store, executor, weight=_weight, attempt=partial(self._store, wait=False))
        self._compaction = Compaction(self._topic, self._reader, self._changing)
        # By partition the next offset, None if it does not exist, and the number of small batches; valid for one
        # version of the file.
        self._next: dict[int, int | None] = {}
        self._small: dict[int, int] = {}
        self._next_version: int | None = None
        self._stored_small = self._reached_many = False

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

    def try_append(self, batches: Batches) -> dict[int, Placed] | None:
        return self._commits.try_do(batches)

    def append_fenced(self, batches: Batches, fence: Fence) -> dict[int, Placed]:
        """Append in this thread. Fenced, with nothing stored, if the topic's fence has another epoch."""
        failpoints.hit("fenced.append")
        results = self._store([batches], fence=fence)
        assert results is not None  # noqa: S101 - only without `wait`
        return results[0]

    @property
    def busy(self) -> bool:
        """Whether an append has no result yet."""
        return self._commits.busy

    def finish(self) -> None:
        """Return when every append has its result."""
        self._commits.finish()

    def _store(
        self, group: Sequence[Batches], *, wait: bool = True, fence: Fence | None = None
    ) -> list[dict[int, Placed]] | None:
        """Store a group of appends. Without `wait`, None if another thread or process holds the lock."""
        rows = _encoded(group)  # without the lock; only the offsets need it
        if not self._lock.acquire(wait=wait):
            return None
        started = time.perf_counter()
        try:
            results = self._insert_all(group, rows, fence)
            seconds = time.perf_counter() - started
            small, many = self._stored_small, self._reached_many
        except BaseException:
            self._next_version = None
            raise
        finally:
            self._lock.release()
        self._stored(small, many, seconds)
        return results

    def _insert_all(
        self, group: Sequence[Batches], rows: Mapping[int, Sequence[Encoded]], fence: Fence | None
    ) -> list[dict[int, Placed]]:
        offsets: dict[int, int | None] = {}
        with self._appending as db:
            if db.file_version() != self._next_version:
                self._reload(db)
            if fence is not None:
                _check_fence(db, fence)
            for partition in rows:
                if partition not in self._next:
                    self._load(db, partition)
                offsets[partition] = self._next[partition]
            insert(db, self._located(rows))
        results = _placed(group, offsets)
        self._next.update(offsets)
        self._next_version = self._writer.file_version()  # last, in case the caller is interrupted
        return results

    def _located(self, rows: Mapping[int, Sequence[Encoded]]) -> list[tuple[int, int, Encoded]]:
        """The rows with their partitions and first offsets."""
        located = []
        self._stored_small = self._reached_many = False
        for partition, batches in rows.items():
            offset = self._next[partition]
            if offset is None:
                continue
            for batch in batches:
                located.append((partition, offset, batch))
                offset += batch.records
                if batch.layout >= SMALL:
                    self._stored_small = True
                    number = self._small[partition] = self._small[partition] + 1
                    if number % _MANY_SMALL == 0:
                        self._reached_many = True
        return located

    def _reload(self, db: sqlite.SqliteConnection) -> None:
        """Forget the old version of the file. Sealed if the topic is sealed."""
        if seal := db.execute(_SQL["sealed_by"]):
            raise Sealed("the topic is sealed by a timeline switch", token=seal[0][0])
        self._next, self._small = {}, {}

    def _load(self, db: sqlite.SqliteConnection, partition: int) -> None:
        found = db.execute(_SQL["next_offset"], (partition,))
        self._next[partition] = found[0][0] if found else None
        self._small[partition] = _small_batches(db, partition)

    def end(self, partition: int) -> int:
        found = self._reader.execute(_SQL["next_offset"], (partition,))
        if not found:
            raise _no_partition(partition)
        return int(found[0][0])

    # -- reading

    def read(self, partition: int, offset: int, max_records: int, max_bytes: int) -> pa.RecordBatch:
        found = Collected()
        try:
            with self._intact("read", partition, offset, offset) as rows:
                for row in rows:
                    found.add(row)
                    if found.end - max(offset, found.first_offset) >= max_records or found.bytes >= max_bytes:
                        break
        except Damaged:
            if not found.rows:  # otherwise the next read finds the damage
                raise
        if not found.rows:
            self.end(partition)
            return records.empty()
        batch = found.to_arrow().slice(max(offset - found.first_offset, 0))
        return _within(batch, max_records, max_bytes)

    def _intact(
        self, statement: str, partition: int, argument: int, offset: int = 0
    ) -> AbstractContextManager[Iterator[StoredRow]]:
        return intact(self._reader, self._topic, _SQL[statement], (partition, argument), offset)

    def bounds(self) -> list[Bounds]:
        return [Bounds(first, last) for _, first, last in self._reader.execute(_SQL["bounds"])]

    def find(self, partition: int, timestamp_ms: int) -> int:
        found = Collected()
        with self._intact("find", partition, timestamp_ms) as rows:
            for row in rows:
                found.add(row)
        if not found.rows:
            return self.end(partition)
        late = pc.greater_equal(found.to_arrow().column("timestamp"), timestamp_ms)
        return found.first_offset + int(pc.index(late, value=True).as_py())

    def find_damage(self) -> Iterator[Damaged]:
        """Read everything. Returns an error for each range of records that is damaged."""
        for partition, first, _ in self._reader.execute(_SQL["bounds"]):
            offset = first
            while (error := self._first_damage(partition, offset)) is not None:
                yield error
                if "last_offset" not in error.info:
                    break
                offset = error.info["last_offset"] + 1

    def _first_damage(self, partition: int, offset: int) -> Damaged | None:
        until = offset
        try:
            with self._intact("read", partition, offset, offset) as rows:
                for row in rows:
                    until = row[0] + row[1]
        except Damaged as error:
            if "last_offset" in error.info or until == offset:
                return error
            return self._first_damage(partition, until)  # this error names the offset
        return None

    def data_version(self) -> int:
        """Changes after a commit of any process, including this one."""
        return self._reader.data_version()

    # -- upkeep

    @contextmanager
    def _changing(self) -> Iterator[sqlite.SqliteConnection]:
        with self._lock, self._writer.transaction() as db:
            self._next_version = None
            yield db

    def seal(self, token: str) -> None:
        with self._changing() as db:
            db.execute(_SQL["seal"], (token,))
            if (holder := db.execute(_SQL["sealed_by"])[0][0]) != token:
                raise Sealed("the topic is sealed by another timeline switch", token=holder)

    def unseal(self, token: str) -> None:
        with self._changing() as db:
            db.execute(_SQL["unseal"], (token,))

    def raise_fence(self, fence: Fence) -> None:
        with self._changing() as db:
            if not db.execute(_SQL["raise_fence"], (fence.name, fence.epoch)):
                raise Fenced(f"the fence {fence.name} has a newer holder than {fence.epoch}")

    def purge(self, before_ms: int, until: Mapping[int, int] | None = None) -> int:
        """`until` has the last offset to delete of every partition to purge; without it all are purged."""
        removed = 0
        while part := self._purge_part(before_ms, until):
            removed += part
            time.sleep(_PAUSE_SECONDS)
        return removed

    def _purge_part(self, before_ms: int, last_offsets: Mapping[int, int] | None) -> int:
        """Delete one part, so that appends can run between two parts. Returns 0 when nothing is left."""
        removed, left = 0, _GROUP_BYTES
        with self._changing() as db:
            for partition, first, _ in db.execute(_SQL["bounds"]):
                last_offset = _EVERYTHING if last_offsets is None else last_offsets.get(partition, -1)
                until, size = _expired(db, partition, before_ms, last_offset, left)
                if size:
                    db.execute(_SQL["delete_batches"], (partition, first, until))
                    db.execute(_SQL["delete_small_batches"], (partition, first, until))
                    db.execute(_SQL["set_purged"], (until, partition))
                    removed += until - first
                    left -= size
        return removed

    @property
    def has_small_batches(self) -> bool:
        return bool(self._with_small_batches())

    def compact(self, *, everything: bool) -> Iterator[None]:
        """Turn small batches into Arrow batches: all, or those of partitions that have more than a few.

        Goes on after each transaction when the caller asks for the next item.
        """
        if everything:
            return self._compaction.compact(self._with_small_batches())
        partitions = [partition for partition, number in [*self._small.items()] if number >= _FEW_SMALL]
        # The numbers may be older than the last compaction.
        return self._compaction.compact(p for p in partitions if _small_batches(self._reader, p) >= _FEW_SMALL)

    def _with_small_batches(self) -> list[int]:
        return [partition for (partition,) in self._reader.execute(_SQL["with_small_batches"])]

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


def _check_fence(db: sqlite.SqliteConnection, fence: Fence) -> None:
    found = db.execute(_SQL["fence"], (fence.name,))
    if found != [(fence.epoch,)]:
        raise Fenced(f"the fence {fence.name} of the topic is not held by {fence.epoch}")


def _small_batches(db: sqlite.SqliteConnection, partition: int) -> int:
    return int(db.execute(_SQL["count_small_batches"], (partition,))[0][0])


def _expired(
    db: sqlite.SqliteConnection, partition: int, before_ms: int, last_offset: int, most: int
) -> tuple[int, int]:
    """The offset after the oldest expired batches, and their size; the last of them may exceed `most` bytes.

    A batch is deleted only together with all older ones, so that the rest has no gap.
    """
    until = size = 0
    with db.rows(_SQL["oldest"], (partition,)) as rows:
        for first, number, newest_ms, payload_bytes in rows:
            if newest_ms >= before_ms or first + number - 1 > last_offset or size >= most:
                return (first if size else 0), size  # not the end of the batch before, which may be damaged
            until, size = first + number, size + payload_bytes + _ROW_OVERHEAD
    return until, size


def _weight(batches: Batches) -> float:
    count = sum(map(len, batches.values()))
    size = sum(batch.size for batch in batches.values())
    return max(count / _GROUP_RECORDS, size / _GROUP_BYTES)


def _encoded(group: Sequence[Batches]) -> dict[int, list[Encoded]]:
    parts: dict[int, list[NewRecords]] = {}
    for batches in group:
        for partition, batch in batches.items():
            parts.setdefault(partition, []).append(batch)
    return dict(zip(parts, map(encode, parts.values()), strict=True))


def _placed(group: Sequence[Batches], offsets: dict[int, int | None]) -> list[dict[int, Placed]]:
    """The offsets of every append's records; advances `offsets` by their number."""
    results = []
    for batches in group:
        placed = {}
        for partition, batch in batches.items():
            offset, number = offsets[partition], len(batch.values)
            if offset is None:
                placed[partition] = Placed([FAILED] * number, _no_partition(partition))
            else:
                placed[partition] = Placed(range(offset, offset + number))
                offsets[partition] = offset + number
        results.append(placed)
    return results


def _within(batch: pa.RecordBatch, max_records: int, max_bytes: int) -> pa.RecordBatch:
    """The longest prefix of the batch within both limits, but at least one record."""
    batch = batch.slice(0, max_records)
    if batch.nbytes <= max_bytes:
        return batch
    sizes = pc.cumulative_sum(pc.cast(pc.fill_null(pc.binary_length(batch.column("value")), 0), pa.int64()))
    fitting = pc.sum(pc.less_equal(sizes, max_bytes)).as_py() or 0
    return batch.slice(0, max(1, fitting))
