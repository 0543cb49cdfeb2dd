"""What rooms read from the log in bulk: the ends of partitions at one moment, and ranges for tasks to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.log import cursors
from strandline.log.cursors import Position, Span
from strandline.log.event_types import EventTypes
from strandline.log.model import Timeline
from strandline.log.ranges import PartitionRange, pieces, read_range
from strandline.log.settings import LogSettings


@dataclass(frozen=True)
class LogSnapshot:
    """An event type as it was at `read_ms` or a moment later."""

    entry_id: str
    timelines: Sequence[Timeline]
    spans: Sequence[Sequence[Span]]
    read_ms: int

    @property
    def ends(self) -> dict[int, Position]:
        return {number: cursors.at_index(one, cursors.end_index(one)) for number, one in enumerate(self.spans)}

    def pending(self, partition: int, position: Position | None) -> int:
        """How many records come after a position; None is the beginning."""
        spans = self.spans[partition]
        start = cursors.begin_index(spans) if position is None else cursors.index_of(spans, position)
        return cursors.end_index(spans) - start

    def ahead(self, partition: int, position: Position, records: int) -> Position:
        """The position that many records further."""
        spans = self.spans[partition]
        return cursors.at_index(spans, cursors.index_of(spans, position) + records)


class RangeSource:
    def __init__(self, event_types: EventTypes, data: Path, settings: LogSettings) -> None:
        self._event_types = event_types
        self._data = data
        self._settings = settings

    def look(self, event_type: str, read_ms: int) -> LogSnapshot:
        """The event type as it is now, at or after `read_ms`. NotFound if it does not exist."""
        view = self._event_types.view(event_type)
        spans = view.spans()
        entry = view.entry
        return LogSnapshot(entry.id, entry.timelines, spans, read_ms)

    def range(
        self, event_type: str, snapshot: LogSnapshot, partition: int, start: Position, end: Position
    ) -> PartitionRange:
        """The records between two positions, as a value with which another process can read them."""
        spans = snapshot.spans[partition]
        between = cursors.index_of(spans, start), cursors.index_of(spans, end)
        found = pieces(snapshot.timelines, self._event_types.storages(), spans, *between)
        return PartitionRange(event_type, partition, found, str(self._data.resolve()), self._settings)

    def next_time(self, event_type: str, snapshot: LogSnapshot, partition: int, position: Position) -> int | None:
        """The timestamp of the record after a position; None if there is none, or if it has none."""
        if not snapshot.pending(partition, position):
            return None
        end = snapshot.ahead(partition, position, 1)
        for batch in read_range(self.range(event_type, snapshot, partition, position, end)):
            found: int = batch.records["timestamp"][0].as_py()
            return found if found > 0 else None
        return None

    def newest_time(self, event_type: str, snapshot: LogSnapshot) -> int:
        """The newest timestamp of the last records of all partitions; −1 if there is none."""
        found = [-1]
        for partition, spans in enumerate(snapshot.spans):
            last = cursors.end_index(spans) - 1
            if last >= cursors.begin_index(spans):
                time_ms = self.next_time(event_type, snapshot, partition, cursors.at_index(spans, last))
                found.append(-1 if time_ms is None else time_ms)
        return max(found)
