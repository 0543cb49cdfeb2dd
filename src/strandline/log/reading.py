"""Reading an event type from a position on, through all its timelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from strandline.errors import Invalid, InvalidCursor
from strandline.log import cursors, partitioning
from strandline.log.cursors import Position, Span
from strandline.log.model import CatalogEntry, CursorText, Timeline
from strandline.log.storage import Bounds, Storage

_decode = msgspec.json.Decoder()


@dataclass(frozen=True)
class Batch:
    """Records of one partition that follow each other, and the cursor to go on from after them."""

    event_type: str
    partition: str
    timeline: int
    records: pa.RecordBatch = field(repr=False)

    @property
    def offset(self) -> str:
        return str(Position(self.timeline, self.records["offset"][-1].as_py()))

    @property
    def cursor(self) -> CursorText:
        return CursorText(self.partition, self.offset)

    @property
    def events(self) -> Iterator[Any]:
        """Every event, decoded when it is its turn."""
        return map(_decode.decode, self.values)

    @property
    def values(self) -> list[bytes]:
        """The JSON of every event, byte for byte as it was stored."""
        values: list[bytes] = self.records["value"].to_pylist()
        return values

    def to_arrow(self) -> pa.RecordBatch:
        return self.records

    def __len__(self) -> int:
        return int(self.records.num_rows)


class View:
    """An event type's timelines with their storages, as one moment of the catalog has them."""

    def __init__(self, entry: CatalogEntry, storage: Callable[[str], Storage]) -> None:
        self.entry = entry
        self._storage = storage

    def spans(self) -> list[list[Span]]:
        """For every partition the timelines as that partition sees them, ends read now."""
        count = self.entry.event_type.partition_count
        per_timeline = [self._bounds(timeline, count) for timeline in self.entry.timelines]
        return [
            [
                Span(timeline.order, bounds[partition].first, bounds[partition].last, _closed(timeline))
                for timeline, bounds in zip(self.entry.timelines, per_timeline, strict=True)
            ]
            for partition in range(count)
        ]

    def _bounds(self, timeline: Timeline, count: int) -> list[Bounds]:
        found: list[Bounds] = []
        if timeline.cleaned_up_at is None:
            found = self._storage(timeline.storage_id).bounds(timeline.topic)
        if timeline.latest_position is not None:
            ends = timeline.latest_position
            found = [_limited(found, p, ends.get(str(p), -1)) for p in range(count)]
        return found + [Bounds(0, -1)] * (count - len(found))

    def read(self, partition: int, span: Span, offset: int, max_records: int, max_bytes: int) -> pa.RecordBatch:
        """Records of one timeline from an offset on, never past what the span says is there."""
        timeline = next(t for t in self.entry.timelines if t.order == span.order)
        storage = self._storage(timeline.storage_id)
        found = storage.read(timeline.topic, partition, offset, max_records=max_records, max_bytes=max_bytes)
        if found.num_rows and found["offset"][-1].as_py() > span.last:
            visible = sum(1 for value in found["offset"].to_pylist() if value <= span.last)
            found = found.slice(0, visible)
        return found

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        active = self.entry.active
        return self._storage(active.storage_id).watch(active.topic, callback)

    # -- cursors as clients write them

    def partition(self, text: str | None) -> int:
        if text is None:
            raise InvalidCursor("a cursor needs a partition", reason="NULL_PARTITION")
        try:
            return partitioning.partition_number(text, self.entry.event_type.partition_count)
        except Invalid as error:
            raise InvalidCursor(error.detail, reason="PARTITION_NOT_FOUND") from None

    def position(self, cursor: CursorText) -> tuple[int, Position | None]:
        """Partition and position of a cursor; None is BEGIN."""
        partition = self.partition(cursor.partition)
        if cursor.offset is None:
            raise InvalidCursor("a cursor needs an offset", reason="NULL_OFFSET")
        return partition, cursors.parse(cursor.offset)

    def positions(self, given: Sequence[CursorText]) -> dict[int, Position | None]:
        """The position of every partition that has a cursor; Invalid when one has two."""
        found: dict[int, Position | None] = {}
        for cursor in given:
            partition, position = self.position(cursor)
            if partition in found:
                raise Invalid(f'there are two cursors for partition "{partition}"; give one')
            found[partition] = position
        return found


def _closed(timeline: Timeline) -> bool:
    return timeline.latest_position is not None


def _limited(found: Sequence[Bounds], partition: int, last: int) -> Bounds:
    """A closed timeline ends where its switch recorded it, whatever landed later; a removed one is all gone."""
    first = found[partition].first if partition < len(found) else last + 1
    return Bounds(min(first, last + 1), last)


class Reader:
    """Reads partitions of one event type from given positions; remembers where it is.

    `poll` never waits. `view` is asked for again on every poll, so that a switch is noticed.
    """

    def __init__(self, view: Callable[[], View], start: Mapping[int, Position]) -> None:
        self._view = view
        self.positions = dict(start)
        self._turn = 0

    def poll(self, max_records: int, max_bytes: int) -> list[Batch]:
        """At most one batch per partition and timeline, within the limits over all; partitions take turns."""
        view = self._view()
        spans = view.spans()
        found: list[Batch] = []
        partitions = sorted(self.positions)
        self._turn += 1
        for step in range(len(partitions)):
            partition = partitions[(self._turn + step) % len(partitions)]
            if max_records <= 0 or max_bytes <= 0:
                break
            batch = self._next(view, spans[partition], partition, max_records, max_bytes)
            if batch is not None:
                found.append(batch)
                max_records -= len(batch)
                max_bytes -= batch.records.nbytes
        return found

    def _next(
        self, view: View, spans: Sequence[Span], partition: int, max_records: int, max_bytes: int
    ) -> Batch | None:
        # Records that expired before they were read must not be skipped in silence.
        place = cursors.read_next(spans, cursors.available(spans, self.positions[partition]))
        if place is None:
            return None
        span, offset = place
        records = view.read(partition, span, offset, max_records, max_bytes)
        if not records.num_rows:
            return None
        self.positions[partition] = Position(span.order, records["offset"][-1].as_py())
        return Batch(view.entry.event_type.name, str(partition), span.order, records)

    def reached(self, ends: Mapping[int, Position]) -> bool:
        """Whether every partition has come at least as far as the given canonical positions."""
        return all(position >= ends[partition] for partition, position in self.positions.items())

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._view().watch(callback)
