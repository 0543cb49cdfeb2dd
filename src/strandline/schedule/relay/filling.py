"""Fills the events of the source into the schedule: plans ranges, and tasks that another process can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline import failpoints
from strandline.clock import system_clock
from strandline.engine.connect import Databases
from strandline.engine.task_runner import TaskStores
from strandline.errors import Gap, Invalid, InvalidCursor
from strandline.log import cursors
from strandline.log.cursors import Position, Span
from strandline.log.range_source import LogSnapshot, RangeSource
from strandline.log.ranges import PartitionRange, read_chunks
from strandline.log.reading import Batch
from strandline.schedule.relay.rules import DueRule, message_id
from strandline.schedule.relay.values import FilledRange, RelayLetter, RelayMessage, RelayRoute
from strandline.schedule.storage.connect import connect
from strandline.schedule.storage.port import RelayBook, ScheduleStore

# The most records of a task, so that progress is shown and a stop does not take long.
_TASK_RECORDS = 50_000
# How many messages one transaction creates. More of them would keep other writers waiting.
_CHUNK_RECORDS = 2_000
_CHUNK_BYTES = 8 << 20


def _connect(url: str, databases: Databases) -> ScheduleStore:
    return connect(url, databases, system_clock())


#: The stores of the tasks, by address.
STORES = TaskStores(_connect)


@dataclass(frozen=True)
class FillTask:
    """Fill the records after one position up to and including another.

    `url` is the address of the schedules. Every chunk is stored with the position of the chunk before, so the
    store refuses a task that runs twice, or too late.
    """

    route: RelayRoute
    rule: DueRule
    url: str
    after: Position | None
    until: Position
    part: PartitionRange

    def run(self) -> FilledRange:
        """Conflict if the relay is not at `after`; Gap if records are missing."""
        book = STORES.get(self.url, self.part.data).relays
        after, records, dead = self.after, 0, 0
        for chunk in self._chunks():
            until = Position(chunk.timeline, chunk.records["offset"][-1].as_py())
            messages, letters = decode(chunk, self.route.source_id, self.rule)
            dead += book.fill(self.route, self.part.partition, after, until, messages, letters)
            failpoints.hit("relay.filled")
            after, records = until, records + len(chunk)
        if after != self.until:  # the last offsets of the range have no records
            book.fill(self.route, self.part.partition, after, self.until, [], [])
        return FilledRange(records, dead)

    def _chunks(self) -> Iterator[Batch]:
        try:
            yield from read_chunks(self.part, _CHUNK_RECORDS, _CHUNK_BYTES)
        except InvalidCursor as error:
            raise Gap(f"{error.detail}; these events of the source are lost for the relay") from error


def decode(batch: Batch, source_id: str, rule: DueRule) -> tuple[list[RelayMessage], list[RelayLetter]]:
    """The messages for the records of the source, and the records that cannot be relayed."""
    messages: list[RelayMessage] = []
    dead: list[RelayLetter] = []
    partition = int(batch.partition)
    columns = (batch.records[name].to_pylist() for name in ("offset", "timestamp", "value"))
    for offset, published_ms, value in zip(*columns, strict=True):
        cursor = Position(batch.timeline, offset)
        name = message_id(source_id, partition, cursor)
        try:
            messages.append(RelayMessage(name, rule.due_ms(published_ms, value), value))
        except Invalid as error:
            dead.append(RelayLetter(name, partition, cursor, error.detail, value))
    return messages, dead


@dataclass(frozen=True)
class FillPlan:
    """The lag of every partition, and a task for each that is behind or new."""

    lag: Mapping[int, int]
    tasks: Mapping[int, FillTask]


class FillPlanner:
    def __init__(self, source: RangeSource, book: RelayBook, route: RelayRoute, rule: DueRule, url: str) -> None:
        self._source = source
        self._book = book
        self._route = route
        self._rule = rule
        self._url = url

    def look(self) -> LogSnapshot:
        """The source as it is now. Gap if it was deleted and created again."""
        found = self._source.look(self._route.source, 0)
        if found.entry_id != self._route.source_id:
            raise Gap(f"event type {self._route.source!r} was deleted and created again; use another schedule")
        return found

    def plan(self, snapshot: LogSnapshot) -> FillPlan:
        """Fill what the source had at the snapshot and the schedule does not have yet."""
        positions = self._book.positions(self._route.schedule)
        lag: dict[int, int] = {}
        tasks: dict[int, FillTask] = {}
        for partition, spans in enumerate(snapshot.spans):
            position = positions.get(partition)
            start, end = self._start(partition, spans, position), cursors.end_index(spans)
            lag[partition] = max(0, end - start)
            # A partition without events gets a position, too: then it is noticed if its first ones expire unread.
            if start < end or position is None:
                between = start, min(start + _TASK_RECORDS, end)
                tasks[partition] = self._task(snapshot, partition, position, between)
        return FillPlan(lag, tasks)

    def _start(self, partition: int, spans: Sequence[Span], position: Position | None) -> int:
        """The index of the first record to fill. A new relay starts with the oldest event."""
        begin = cursors.begin_index(spans)
        if position is None:
            return begin
        start = cursors.index_after(spans, position)
        if start < begin:
            raise Gap(
                f"partition {partition} of {self._route.source!r} is filled up to {position}, but events after "
                "that have expired: the relay has lost them; use another schedule to go on with the oldest event"
            )
        return start

    def _task(
        self, snapshot: LogSnapshot, partition: int, position: Position | None, between: tuple[int, int]
    ) -> FillTask:
        start, end = (cursors.at_index(snapshot.spans[partition], index) for index in between)
        part = self._source.range(self._route.source, snapshot, partition, start, end)
        return FillTask(self._route, self._rule, self._url, position, end, part)
