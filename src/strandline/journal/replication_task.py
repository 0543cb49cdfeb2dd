"""Replicates a range of a journal topic, as a task that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from strandline.engine.task_runner import TaskStores
from strandline.errors import Gap, InvalidCursor, Malformed
from strandline.journal import actions
from strandline.journal.model import DeadLetter, LoggedAction
from strandline.journal.record_headers import action_headers
from strandline.journal.storage.connect import connect
from strandline.log.cursors import Position
from strandline.log.ranges import PartitionRange, read_chunks
from strandline.log.reading import Batch

# How many records are folded and written together: more need memory, fewer need more commits.
_CHUNK_RECORDS = 40_000
_CHUNK_BYTES = 16 << 20

#: The stores of the tasks, by address.
STORES = TaskStores(connect)


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
        store = STORES.get(self.url, self.part.data)
        after, done = self.after, NOTHING
        for chunk in self._chunks():
            until = Position(chunk.timeline, chunk.records["offset"][-1].as_py())
            decoded, letters = decode(chunk)
            place = (self.topic, self.part.partition)
            dead = store.apply(*place, after, until, decoded, letters, adopted=self.adopted)
            skipped = len(chunk) - len(decoded) - len(letters)
            after, done = until, done + Replicated(len(chunk), dead, skipped)
        if after != self.until:  # the last offsets of the range have no records
            store.apply(self.topic, self.part.partition, after, self.until, [], adopted=self.adopted)
        return done

    def _chunks(self) -> Iterator[Batch]:
        try:
            yield from read_chunks(self.part, _CHUNK_RECORDS, _CHUNK_BYTES)
        except InvalidCursor as error:
            raise Gap(
                f"{error.detail}; they are not in the store either: restore the topic from a backup"
            ) from error


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
