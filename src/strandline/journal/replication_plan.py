"""Plans the replication of a topic: from the pointers of the store to the end of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.errors import Gap, NotFound
from strandline.journal.replication_task import ReplicationTask
from strandline.journal.storage.port import JournalStore
from strandline.log import cursors
from strandline.log.cursors import Position, Span
from strandline.log.range_source import LogSnapshot, RangeSource
from strandline.log.raw import RawTopic

# The most records of a task, so that progress is shown and a stop does not take long.
_TASK_RECORDS = 200_000


@dataclass(frozen=True)
class TopicPlan:
    """The lag of every partition, and a task for each that is behind, or the reason why there is none."""

    lag: Mapping[int, int]
    tasks: Mapping[int, ReplicationTask | Gap]


class ReplicationPlanner:
    def __init__(self, source: RangeSource, store: JournalStore, url: str) -> None:
        self._source = source
        self._store = store
        self._url = url

    def look(self, topic: RawTopic) -> LogSnapshot:
        """The topic as it is now; NotFound if it was deleted."""
        found = self._source.look(topic.name, 0)
        if found.entry_id != topic.id:
            raise NotFound(f"event type {topic.name!r} was deleted and created again")
        return found

    def plan(self, topic: RawTopic, snapshot: LogSnapshot) -> TopicPlan:
        """Replicate what the log had at the snapshot and the store does not have yet."""
        pointers = self._store.pointers(topic.id)
        lag: dict[int, int] = {}
        tasks: dict[int, ReplicationTask | Gap] = {}
        for partition, spans in enumerate(snapshot.spans):
            pointer = pointers.get(partition)
            start, end = _index(spans, pointer), cursors.end_index(spans)
            lag[partition] = max(0, end - start)
            if start < cursors.begin_index(spans):
                tasks[partition] = _gap(topic, partition, pointer)
            elif start < end:
                between = start, min(start + _TASK_RECORDS, end)
                tasks[partition] = self._task(topic, snapshot, partition, pointer, between)
        return TopicPlan(lag, tasks)

    def _task(
        self,
        topic: RawTopic,
        snapshot: LogSnapshot,
        partition: int,
        pointer: Position | None,
        between: tuple[int, int],
    ) -> ReplicationTask:
        start, end = (cursors.at_index(snapshot.spans[partition], index) for index in between)
        part = self._source.range(topic.name, snapshot, partition, start, end)
        return ReplicationTask(topic.id, topic.adopted, self._url, pointer, end, part)


def _index(spans: Sequence[Span], pointer: Position | None) -> int:
    """The number of records that are replicated, as far as the snapshot knows them."""
    return 0 if pointer is None else cursors.index_after(spans, pointer)


def _gap(topic: RawTopic, partition: int, pointer: Position | None) -> Gap:
    return Gap(
        f"partition {partition} of {topic.name!r} is replicated up to {pointer or 'BEGIN'}, but the log does not "
        "have all records after that any more: restore the topic from a backup"
    )
