"""Compaction: the small batches of a topic become Arrow batches, soon after they were stored.

A run of consecutive batches is read and encoded without the lock of the file. Then one transaction replaces the
run by one batch with the same records and offsets, unless another process has changed it meanwhile. So a process
that is killed leaves the old batches or the new one, and readers see either. Any process may compact a topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from strandline import failpoints
from strandline.engine import sql
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Damaged, StrandlineError
from strandline.log.storage import stored_batches
from strandline.log.storage.stored_batches import SMALL, Collected, Encoded, StoredRow

log = logging.getLogger(__name__)

_SQL = sql.load("strandline.log.storage", "topic_file.sql", "sqlite")

# A batch of this size is not merged any more: a larger one is hardly faster to read.
_FULL_RECORDS = 500
_FULL_BYTES = 128 << 10
# The limits of a merged batch. Purging deletes whole batches, so a record may stay this much longer.
_RUN_RECORDS = 1000
_RUN_BYTES = 1 << 20
_RUN_MS = 60_000
# The limit of one transaction, so that appends do not wait long for it.
_TURN_RECORDS = 4000
# Lets a waiting writer take the lock between two transactions.
_PAUSE_SECONDS = 0.001
# A topic is idle if nothing was appended to it for this long.
_IDLE_SECONDS = 2.0


class Run(NamedTuple):
    """Consecutive rows of one partition, and the batch that replaces them."""

    partition: int
    first_offset: int
    end: int
    rows: int
    merged: Encoded


class Compaction:
    """Compacts one topic. `changing` is a transaction of the topic's writer."""

    def __init__(
        self,
        topic: str,
        reader: SqliteConnection,
        changing: Callable[[], AbstractContextManager[SqliteConnection]],
    ) -> None:
        self._topic = topic
        self._reader = reader
        self._changing = changing

    def compact(self, partitions: Iterable[int]) -> Iterator[None]:
        """Compact the small batches of these partitions, except damaged ones, one transaction per item."""
        waiting: list[Run] = []
        for run in (run for partition in partitions for run in self._runs(partition)):
            waiting.append(run)
            if sum(run.merged.records for run in waiting) >= _TURN_RECORDS:
                self._replace(waiting)
                waiting = []
                yield
        if waiting:
            self._replace(waiting)

    def _runs(self, partition: int) -> Iterator[Run]:
        offset: int | None = 0
        while offset is not None:
            found, offset = self._next_run(partition, offset)
            if found is not None:
                merged = stored_batches.encode_again(found.to_arrow())
                yield Run(partition, found.first_offset, found.end, found.rows, merged)

    def _next_run(self, partition: int, offset: int) -> tuple[_Rows | None, int | None]:
        """The first run from an offset on, and the offset to continue from; None after the last row."""
        run, rest = _Rows(), None
        try:
            query = _SQL["small_from"], (partition, offset, _FULL_RECORDS, _FULL_BYTES)
            with stored_batches.intact(self._reader, self._topic, *query) as rows:
                for row in rows:
                    if run.rows and not run.fits(row):
                        if run.small:
                            rest = run.end
                            break
                        run = _Rows()  # without the batch before the small one
                    run.add(row)
        except Damaged as error:
            last = error.info.get("last_offset")
            rest = None if last is None else last + 1
        return (run if run.small else None), rest

    def _replace(self, runs: Sequence[Run]) -> None:
        failpoints.hit("compaction.encoded")
        with self._changing() as db:
            for run in runs:
                span = (run.partition, run.first_offset, run.end)
                if db.execute(_SQL["count"], span) != [(run.rows, run.end - run.first_offset)]:
                    continue  # another process has compacted or purged it
                db.execute(_SQL["delete_batches"], span)
                db.execute(_SQL["delete_small_batches"], span)
                failpoints.hit("compaction.deleted")
                stored_batches.insert(db, [(run.partition, run.first_offset, run.merged)])
            failpoints.hit("compaction.replaced")
        failpoints.hit("compaction.committed")


class _Rows(Collected):
    """The rows of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.small = False
        self._oldest_ms = self._newest_ms = 0

    def add(self, row: StoredRow) -> None:
        self._oldest_ms, self._newest_ms = self._times_with(row)
        self.small = self.small or row[4] >= SMALL
        super().add(row)

    def fits(self, row: StoredRow) -> bool:
        oldest_ms, newest_ms = self._times_with(row)
        return (
            row[1] < _FULL_RECORDS
            and len(row[5]) < _FULL_BYTES
            and row[0] + row[1] - self.first_offset <= _RUN_RECORDS
            and self.bytes + len(row[5]) <= _RUN_BYTES
            and newest_ms - oldest_ms <= _RUN_MS
        )

    def _times_with(self, row: StoredRow) -> tuple[int, int]:
        if not self.rows:
            return row[2], row[3]
        return min(self._oldest_ms, row[2]), max(self._newest_ms, row[3])


class Compactor:
    """Compacts topics in one thread: at once if that is due, and all that is left when a topic is idle.

    `compact(topic, everything)` compacts a part of a topic for each item that is asked for.
    """

    def __init__(self, compact: Callable[[str, bool], Iterator[None]]) -> None:
        self._compact = compact
        self._condition = threading.Condition()
        self._appended_at: dict[str, float] = {}  # topics with small batches
        self._due: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def appended(self, topic: str, *, due: bool) -> None:
        """A topic has small batches; `due` if there are many. Publishers call this for every append."""
        known = topic in self._appended_at
        self._appended_at[topic] = time.monotonic()
        if due or not known:
            with self._condition:
                if due:
                    self._due.add(topic)
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name="strandline-compactor", daemon=True)
                    self._thread.start()
                self._condition.notify()

    def _run(self) -> None:
        while not self._closed:
            with self._condition:
                if not self._due and not self._closed:
                    self._condition.wait(_IDLE_SECONDS if self._appended_at else None)
                due, self._due = self._due, set()
            for topic in due:
                self._compact_topic(topic, everything=False)
            idle_since = time.monotonic() - _IDLE_SECONDS
            for topic in [topic for topic, at in [*self._appended_at.items()] if at <= idle_since]:
                del self._appended_at[topic]
                self._compact_topic(topic, everything=True)

    def _compact_topic(self, topic: str, *, everything: bool) -> None:
        try:
            for _ in self._compact(topic, everything):
                if self._closed:
                    return
                time.sleep(_PAUSE_SECONDS)
        except StrandlineError as error:
            log.warning("compacting topic %s failed; later appends cause another attempt: %s", topic, error.detail)
        except Exception:
            log.exception("compacting topic %s failed; later appends cause another attempt", topic)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
