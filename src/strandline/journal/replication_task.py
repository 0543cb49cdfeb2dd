"""Replicates a range of a journal topic, as a task that can be sent to another process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.engine.connect import Databases
from strandline.errors import Gap, InvalidCursor, Malformed, StrandlineError
from strandline.journal import actions
from strandline.journal.model import DeadLetter, LoggedAction
from strandline.journal.record_headers import action_headers
from strandline.journal.storage.connect import connect
from strandline.journal.storage.port import JournalStore
from strandline.log.cursors import Position
from strandline.log.ranges import PartitionRange, read_range
from strandline.log.reading import Batch

# So many records are folded and written together. More of them cost memory, fewer cost commits.
_CHUNK_RECORDS = 40_000
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True)
class Replicated:
    """What a task has done: the number of records, of those set aside, and of those that are no actions."""

    records: int
    dead: int
    skipped: int

    def __add__(self, other: Replicated) -> Replicated:
        return Replicated(self.records + other.records, self.dead + other.dead, self.skipped + other.skipped)


NOTHING = Replicated(0, 0, 0)


@dataclass(frozen=True)
class ReplicationTask:
    """Replicate the records after one position up to and including another.

    `topic` is the id of the event type, `url` the address of the store. Every chunk of the range is applied with
    the position of the chunk before, so the store refuses a task that runs twice, or too late.
    """

    topic: str
    adopted: bool
    url: str
    after: Position | None
    until: Position
    part: PartitionRange

    def run(self) -> Replicated:
        """Conflict if the store is not at `after`; Gap if records are missing."""
        store = _store(self.url, self.part.data)
        after, done = self.after, NOTHING
        for chunk in self._chunks():
            until = Position(chunk.timeline, chunk.records["offset"][-1].as_py())
            decoded, letters = decode(chunk)
            store.apply(self.topic, self.part.partition, after, until, decoded, letters, adopted=self.adopted)
            skipped = len(chunk) - len(decoded) - len(letters)
            after, done = until, done + Replicated(len(chunk), len(letters), skipped)
        if after != self.until:  # the last offsets of the range have no records
            store.apply(self.topic, self.part.partition, after, self.until, [], adopted=self.adopted)
        return done

    def _chunks(self) -> Iterator[Batch]:
        try:
            for batch in read_range(self.part):
                yield from _cut(batch)
        except InvalidCursor as error:
            raise Gap(
                f"{error.detail}; they are not in the store either: restore the topic from a backup"
            ) from error


def _cut(batch: Batch) -> Iterator[Batch]:
    """The batch in parts that are written together."""
    size = max(1, int(batch.records.nbytes) // max(1, len(batch)))
    count = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES // size))
    for start in range(0, len(batch), count):
        yield Batch(batch.event_type, batch.partition, batch.timeline, batch.records.slice(start, count))


def decode(batch: Batch) -> tuple[list[LoggedAction], list[DeadLetter]]:
    """The actions of the records, and the records that could not be decoded. Others are skipped."""
    found: list[LoggedAction] = []
    dead: list[DeadLetter] = []
    records = batch.records
    columns = (records[name].to_pylist() for name in ("offset", "timestamp", "key", "value"))
    for offset, timestamp_ms, key, value, (header, others) in zip(*columns, action_headers(records), strict=True):
        cursor = Position(batch.timeline, offset)
        try:
            action = actions.from_header(cursor, timestamp_ms, key, value, header, others)
        except Malformed as error:
            kept = ((actions.HEADER, header or b""), *others)
            dead.append(DeadLetter(int(batch.partition), cursor, timestamp_ms, error.detail, key, value, kept))
        else:
            if action is not None:
                found.append(action)
    return found, dead


class ReplicationRunner(ABC):
    """Runs tasks. A task may run twice."""

    @abstractmethod
    def run(self, tasks: Sequence[ReplicationTask]) -> list[Replicated | StrandlineError]:
        """The result of every task, or its error."""


class InThisProcess(ReplicationRunner):
    """Runs tasks one after the other."""

    def run(self, tasks: Sequence[ReplicationTask]) -> list[Replicated | StrandlineError]:
        return [attempt(task) for task in tasks]


def attempt(task: ReplicationTask) -> Replicated | StrandlineError:
    """Run a task; our errors are values, because Spark passes on only the text of a raised error."""
    try:
        return task.run()
    except StrandlineError as error:
        return error


_lock = threading.Lock()
_open: dict[tuple[str, str], tuple[JournalStore, Databases]] = {}


def _store(url: str, data: str) -> JournalStore:
    """The store, opened once per process: a worker process runs many tasks."""
    with _lock:
        if (url, data) not in _open:
            databases = Databases(Path(data))
            _open[url, data] = (connect(url, databases), databases)
        return _open[url, data][0]


def close_stores() -> None:
    """Close the stores that this process has opened for tasks."""
    with _lock:
        for store, databases in _open.values():
            store.close()
            databases.close()
        _open.clear()
