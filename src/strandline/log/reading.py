"""Reads an event type from given positions, across all its timelines."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from strandline import clock
from strandline.engine.watcher import Watcher
from strandline.errors import Damaged, Invalid, InvalidCursor, NotFound, Unavailable
from strandline.log import cursors, partitioning
from strandline.log.cursors import Position, Span
from strandline.log.model import CatalogEntry, CursorText, Timeline
from strandline.log.storage import Bounds, Storage
from strandline.log.switching import State, visible_end

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder()
_is_time = re.compile(r"\d{4}-\d\d-\d\d[Tt ]").match
_DECISION_SECONDS = 0.01
_DECISION_POLLS = 1000


@dataclass(frozen=True, repr=False)
class Batch:
    """Consecutive records of one partition, and the cursor to continue from after them."""

    event_type: str
    partition: str
    timeline: int
    records: pa.RecordBatch

    @property
    def offset(self) -> str:
        return str(Position(self.timeline, self.records["offset"][-1].as_py()))

    @property
    def cursor(self) -> CursorText:
        return CursorText(self.partition, self.offset)

    def __iter__(self) -> Iterator[Any]:
        """The events, as `events` has them."""
        return self.events

    def __repr__(self) -> str:
        place = f"{self.event_type!r}, partition {self.partition!r}, up to {self.offset if len(self) else None!r}"
        return f"<{type(self).__name__} of {place}: {len(self)} events>"

    @property
    def events(self) -> Iterator[Any]:
        """Every event, decoded one at a time."""
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


class VisibleEnds:
    """The last offsets of every open timeline that readers of this process have seen.

    While a switch closes the timeline, readers get no records after these offsets.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[int]] = {}

    def limit(self, entry: CatalogEntry, found: Sequence[Bounds]) -> list[Bounds] | None:
        """The visible bounds of the active timeline; None if they are unknown until the switch is decided."""
        active, switch = entry.active, entry.switch
        state = switch.state if switch is not None and switch.kind == "switch" else None
        known = self._known.get(active.topic)
        if state is State.CLOSING and known is None:
            return None
        known = known or []
        known = known + [-1] * (len(found) - len(known))
        ends = [visible_end(b.last, state, None, k) for b, k in zip(found, known, strict=True)]
        self._known[active.topic] = [max(end, k) for end, k in zip(ends, known, strict=True)]
        return [Bounds(min(b.first, end + 1), end) for b, end in zip(found, ends, strict=True)]


class View:
    """An event type's timelines with their storages, as the catalog had them at one point in time."""

    def __init__(
        self, entry: Callable[[], CatalogEntry], storage: Callable[[str], Storage], ends: VisibleEnds
    ) -> None:
        self._fresh = entry
        self.entry = entry()
        self._storage = storage
        self._ends = ends

    def spans(self, asked: Iterable[tuple[int, Position | None]] = ()) -> list[list[Span]]:
        """For every partition the spans of its timelines, with their current ends.

        The end of an open timeline is read from the storage before the state of the switch, which then limits it.
        So readers never see a record that was too late for a switch. If an asked position is past that limit,
        because another process has seen more, this call waits until the switch is decided.
        """
        asked = [*asked]
        for _ in range(_DECISION_POLLS):
            missing: NotFound | None = None
            per_timeline: list[list[Bounds]] = []
            try:
                per_timeline = self._bounds()
            except NotFound as error:
                missing = error  # the timeline may have been removed since
            before, self.entry = self.entry, self._fresh()
            if self.entry.id != before.id:
                raise NotFound(f"event type {before.event_type.name!r} was deleted and created again")
            if self.entry.timelines == before.timelines and self.entry.event_type == before.event_type:
                if missing is not None:
                    raise missing
                visible = self._ends.limit(self.entry, per_timeline[-1])
                if visible is not None:
                    found = self._laid_out([*per_timeline[:-1], visible])
                    if not any(cursors.ahead(found[partition], position) for partition, position in asked):
                        return found
                time.sleep(_DECISION_SECONDS)
        raise Unavailable("a timeline switch is not decided yet", retry_after=1)

    def _laid_out(self, per_timeline: Sequence[Sequence[Bounds]]) -> list[list[Span]]:
        switch = self.entry.switch
        closing = switch is not None and switch.kind == "switch" and switch.state is State.CLOSING
        return [
            [
                Span(
                    timeline.order,
                    bounds[partition].first,
                    bounds[partition].last,
                    closed=timeline.latest_position is not None,
                    closing=closing and timeline is self.entry.active,
                )
                for timeline, bounds in zip(self.entry.timelines, per_timeline, strict=True)
            ]
            for partition in range(self.entry.event_type.partition_count)
        ]

    def _bounds(self) -> list[list[Bounds]]:
        """The bounds of every timeline, with one request to each storage."""
        topics: dict[str, list[str]] = {}
        for timeline in self.entry.timelines:
            if timeline.cleaned_up_at is None:
                topics.setdefault(timeline.storage_id, []).append(timeline.topic)
        found: dict[str, list[Bounds]] = {}
        for storage_id, own in topics.items():
            found.update(zip(own, self._storage(storage_id).bounds_of(own), strict=True))
        count = self.entry.event_type.partition_count
        return [_of_all(timeline, found.get(timeline.topic, []), count) for timeline in self.entry.timelines]

    def read(self, partition: int, span: Span, offset: int, max_records: int, max_bytes: int) -> pa.RecordBatch:
        """Records of one timeline, starting at an offset, never past the end of the span."""
        timeline = next(t for t in self.entry.timelines if t.order == span.order)
        storage = self._storage(timeline.storage_id)
        found = storage.read(timeline.topic, partition, offset, max_records=max_records, max_bytes=max_bytes)
        if found.num_rows and found["offset"][-1].as_py() > span.last:
            visible = sum(1 for value in found["offset"].to_pylist() if value <= span.last)
            found = found.slice(0, visible)
        return found

    def newest(self, partition: int, order: int) -> int:
        """The newest offset of a timeline's topic, as the storage has it now."""
        timeline = next(t for t in self.entry.timelines if t.order == order)
        return self._storage(timeline.storage_id).end(timeline.topic, partition) - 1

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
        """Partition and position of a cursor; None is BEGIN. An error names the available offsets."""
        partition = self.partition(cursor.partition)
        try:
            return partition, cursors.parse(cursor.offset)
        except InvalidCursor as error:
            raise cursors.with_range(self.spans()[partition], error) from None

    def positions(self, given: Sequence[CursorText]) -> dict[int, Position | None]:
        """The position of every partition that has a cursor; Invalid if a partition has two."""
        found: dict[int, Position | None] = {}
        for cursor in given:
            partition, position = self.position(cursor)
            if partition in found:
                raise Invalid(f'there are two cursors for partition "{partition}"; give one')
            found[partition] = position
        return found

    def locate(self, partition: int, spans: Sequence[Span], text: str) -> Position:
        """The position that a text names: an available offset, BEGIN, END, or a time, to read from that time."""
        if text.upper() == "END":
            return cursors.at_index(spans, cursors.end_index(spans))
        if _is_time(text):
            return self._before(partition, spans, _time(text))
        position = cursors.parse(text)
        if cursors.ahead(spans, position):
            spans = self.spans([(partition, position)])[partition]
        return cursors.available(spans, position)

    def _before(self, partition: int, spans: Sequence[Span], time_ms: int) -> Position:
        """The position just before the first record of that time or later."""
        timelines = {timeline.order: timeline for timeline in self.entry.timelines}
        for span in spans:
            if span.first > span.last:
                continue
            place = timelines[span.order]
            offset = self._storage(place.storage_id).find(place.topic, partition, time_ms)
            if offset <= span.last:
                return Position(span.order, max(offset, span.first) - 1)
        return cursors.at_index(spans, cursors.end_index(spans))


def _time(text: str) -> int:
    try:
        return clock.parse_rfc3339(text)
    except ValueError as error:
        raise InvalidCursor(str(error), reason="INVALID_FORMAT") from None


def _of_all(timeline: Timeline, found: list[Bounds], count: int) -> list[Bounds]:
    """The bounds of every partition of the event type; the timeline may have had fewer."""
    if timeline.latest_position is not None:
        ends = timeline.latest_position
        found = [_limited(found, p, ends.get(str(p), -1)) for p in range(count)]
    return (found + [Bounds(0, -1)] * (count - len(found)))[:count]


def _limited(found: Sequence[Bounds], partition: int, last: int) -> Bounds:
    """A closed timeline ends at the recorded offset, even if records came later; a removed one is empty."""
    first = found[partition].first if partition < len(found) else last + 1
    return Bounds(min(first, last + 1), last)


class Reader:
    """Reads partitions of one event type and keeps its position in each.

    `poll` does not wait for records. It gets a new `view` every time, so that it notices a switch.
    """

    def __init__(
        self, view: Callable[[], View], start: Mapping[int, Position], changes: Watcher, *, whole: bool
    ) -> None:
        """`whole`: partitions that the event type gets later are read as well, from their start."""
        self._view = view
        self._changes = changes
        self._whole = whole
        self._watched: tuple[str, Callable[[], None]] | None = None
        self._callback: Callable[[], None] | None = None
        self.positions = dict(start)
        self._turn = 0
        # Where a partition cannot be read any further, until its position changes.
        self._damage: dict[int, tuple[Position, Damaged]] = {}

    def poll(self, max_records: int, max_bytes: int) -> list[Batch]:
        """At most one batch per partition, within the limits in total. Each poll starts with another partition.

        A partition that is damaged at its position is left out, so that it does not stop the others: see `damage`.
        """
        view = self._view()
        spans = view.spans()
        self._follow(view)
        if self._whole:
            for partition in range(len(self.positions), len(spans)):
                self.positions[partition] = cursors.at_index(spans[partition], 0)
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

    @property
    def damage(self) -> Damaged | None:
        """The damage at a position of the reader, if `poll` has found one."""
        return next((error for p, (at, error) in self._damage.items() if self.positions.get(p) == at), None)

    @property
    def stuck(self) -> bool:
        """Whether all partitions are damaged at their positions."""
        return all(p in self._damage and self._damage[p][0] == at for p, at in self.positions.items())

    def _next(
        self, view: View, spans: Sequence[Span], partition: int, max_records: int, max_bytes: int
    ) -> Batch | None:
        position = self.positions[partition]
        if cursors.ahead(spans, position):
            return None
        # Raises InvalidCursor: records that expired before they were read must not be skipped silently.
        place = cursors.read_next(spans, cursors.available(spans, position))
        if place is None or self._damage.get(partition, (None,))[0] == position:
            return None
        span, offset = place
        try:
            records = view.read(partition, span, offset, max_records, max_bytes)
        except NotFound:
            self._refuse_expired(partition)
            raise
        except Damaged as error:
            self._leave_out(partition, error)
            return None
        if not records.num_rows or records["offset"][0].as_py() > offset:
            self._refuse_expired(partition)
        if not records.num_rows:
            passed = self._pass_gap(view, partition, span)
            return self._next(view, spans, partition, max_records, max_bytes) if passed else None
        self.positions[partition] = Position(span.order, records["offset"][-1].as_py())
        return Batch(view.entry.event_type.name, str(partition), span.order, records)

    def _leave_out(self, partition: int, error: Damaged) -> None:
        self._damage[partition] = (self.positions[partition], error)
        if self._callback is not None:  # a stream, which cannot raise the error while it has other partitions
            log.error("a stream leaves out a partition: %s", error.detail)

    def _pass_gap(self, view: View, partition: int, span: Span) -> bool:
        """Go to the end of a timeline whose last offsets have no records, as after a transaction of Kafka.

        Returns False if that is not certain, because the server that answered is not up to date.
        """
        if view.newest(partition, span.order) < span.last:
            return False
        self.positions[partition] = Position(span.order, span.last)
        return True

    def _refuse_expired(self, partition: int) -> None:
        """Raise InvalidCursor if the next record expired after its bounds were read."""
        cursors.available(self._view().spans()[partition], self.positions[partition])

    def reached(self, ends: Mapping[int, Position]) -> bool:
        """Whether every partition has reached the given canonical positions."""
        return all(
            self.positions[partition] >= end for partition, end in ends.items() if partition in self.positions
        )

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there may be more to read: records, or another timeline. Returns a function to stop."""
        self._callback = callback
        self._follow(self._view())
        unwatch_changes = self._changes.watch("", callback)

        def stop() -> None:
            unwatch_changes()
            self._callback = None
            self._unfollow()

        return stop

    def _follow(self, view: View) -> None:
        """Watch the active topic, which a switch replaces."""
        topic = view.entry.active.topic
        if self._callback is not None and (self._watched is None or self._watched[0] != topic):
            self._unfollow()
            self._watched = (topic, view.watch(self._callback))

    def _unfollow(self) -> None:
        if self._watched is not None:
            self._watched[1]()
            self._watched = None
