"""What a batch of actions writes to Cassandra: pure functions.

The writes of a batch are waves. Those of one wave run in any order; all are done before the next wave begins:

1. deletes that a killed replicator may have left: those of heads that are newer than the pointer
2. heads of purged journals: mark them as `purging`, also if the journal began within the batch
3. rows of purged journals: delete them
4. rows of appends, links between segments, dead letters, entries in `due`
5. heads
6. rows of deletes: delete them
7. the pointer
8. heads of purged journals: delete them

A reader reads the pointer, then the head. The head of a purged journal is deleted after the pointer has moved,
because without a head every reader folds from the pointer on, which must not be before the purge.

Rows are deleted only after their head says so, in `removing`. Otherwise a replicator that continues after a kill,
with shorter batches, could not know which deletes are left, and they would hide rows that it writes. A head names
all segments that may have rows, also those that only a killed replicator may have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple
from uuid import UUID

import msgspec

from strandline.engine.cassandra import NULL, UNSET, Write, encoded
from strandline.errors import Malformed
from strandline.journal import payloads
from strandline.journal.fold import JournalChange, Verdict, fold, plan_batch
from strandline.journal.model import Append, DeadLetter, Delete, Head, LoggedAction, Purge, StoredEvent
from strandline.journal.storage import cassandra_tables as tables
from strandline.journal.storage.cassandra_tables import (
    CQL,
    HeadRow,
    Removal,
    Segments,
    Sizes,
    integer,
    long,
    stamp,
)
from strandline.log.cursors import Position

HOUR_MS = 3_600_000
# The largest number of the column.
_LAST_HOUR = (1 << 31) - 1
# If an append may have written to more segments than this, its value is decoded to find out to which ones.
_GUESSED_SEGMENTS = 100
# The most ranges of segments in a head. Of further ones a killed replicator may leave rows, which no reader sees.
_MOST_REMOVALS = 10_000

_ADD_ROW, _PUT_HEAD = CQL["add_row"], CQL["put_head"]

#: The segments of a life (id, since) from one on, until one is reached or passed, as far as they are linked.
Chain = Callable[[str, Position, int, int], list[int]]


class Partition(NamedTuple):
    """A partition of the log, of which the actions after one position and up to another are replicated."""

    topic: UUID
    number: int
    after: Position | None
    until: Position
    sizes: Sizes
    adopted: bool


def waves(
    partition: Partition,
    heads: Mapping[str, HeadRow],
    actions: Sequence[LoggedAction],
    dead: Sequence[DeadLetter],
    chain: Chain,
) -> tuple[Iterator[list[Write]], int]:
    """The writes of a batch, and how many records it sets aside."""
    present = {entity: row.head for entity, row in heads.items() if not row.purging}
    ended = {entity: row.head.cursor for entity, row in heads.items() if row.purging}
    left = [one for one in actions if one.entity not in ended or one.cursor > ended[one.entity]]
    batch = _Batch(partition, heads, chain)
    traces = _traces(present, left, adopted=partition.adopted)
    plan = plan_batch(present, left, adopted=partition.adopted)
    for entity, trace in traces.items():
        batch.purge(entity, trace)
    for change in plan.changes:
        batch.change(change, traces.get(change.entity, _NOTHING))
    letters = [*dead, *_malformed(partition.number, plan.malformed)]
    batch.set_aside(letters)
    batch.move()
    return batch.waves(), len(letters)


class _Trace:
    """What a batch does to a journal that it deletes rows of."""

    def __init__(self) -> None:
        #: Lives that ended: their last heads, the cursors of the purges, and the appends of this batch.
        self.ended: list[tuple[Head, Position, list[LoggedAction]]] = []
        #: Appends of this batch to the life that goes on.
        self.appends: list[LoggedAction] = []

    def note(self, head: Head | None, logged: LoggedAction) -> None:
        if isinstance(logged.action, Append):
            self.appends.append(logged)
        elif isinstance(logged.action, Purge) and head is not None:
            self.ended.append((head, logged.cursor, self.appends))
            self.appends = []


_NOTHING = _Trace()


def _traces(heads: Mapping[str, Head], actions: Sequence[LoggedAction], *, adopted: bool) -> dict[str, _Trace]:
    """The trace of each journal that the batch deletes rows of."""
    found = {logged.entity: _Trace() for logged in actions if isinstance(logged.action, Delete | Purge)}
    current: dict[str, Head | None] = {entity: heads.get(entity) for entity in found}
    for logged in actions:
        if logged.entity in found:
            head = current[logged.entity]
            current[logged.entity], verdict = fold(head, logged, adopted=adopted)
            if verdict is Verdict.APPLIED or _is_repeated_append(head, logged):
                found[logged.entity].note(head, logged)
    return found


def _is_repeated_append(head: Head | None, logged: LoggedAction) -> bool:
    """Whether the head may include the append: a killed replicator wrote it, and perhaps did not delete rows."""
    return head is not None and isinstance(logged.action, Append) and head.since <= logged.cursor <= head.cursor


def _malformed(partition: int, found: Iterable[tuple[LoggedAction, str]]) -> Iterator[DeadLetter]:
    for logged, reason in found:
        place = (partition, logged.cursor, logged.timestamp_ms)
        yield DeadLetter(*place, reason, logged.entity.encode(), logged.value, logged.headers)


class _Life(NamedTuple):
    """The first values of a primary key of `journal`."""

    topic: bytes
    id: bytes
    since: bytes

    def remove_segment(self, segment: int, at: Position) -> Write:
        return Write(CQL["remove_segment"], [long(stamp(at)), *self, long(segment)])

    def remove_rows(self, segment: int, last: int, at: Position) -> Write:
        return Write(CQL["remove_rows"], [long(stamp(at)), *self, long(segment), long(last)])

    def link(self, segment: int, following: int, at: Position) -> Write:
        return Write(CQL["link_segment"], [long(stamp(at)), long(following), *self, long(segment)])

    def remove_snapshots(self, at: Position) -> Write:
        return Write(CQL["remove_snapshots"], [long(stamp(at)), *self])


class _Batch:
    def __init__(self, partition: Partition, heads: Mapping[str, HeadRow], chain: Chain) -> None:
        self._partition = partition
        self._heads = heads
        self._chain = chain
        self._topic = partition.topic.bytes
        self._number = encoded(integer(partition.number))
        self._new_life = Segments(partition.sizes.segment_size)
        self._none = NULL if partition.adopted else UNSET
        self._purging: list[Write] = []
        self._purged: list[Write] = []
        self._rows: list[Write] = []
        self._new_heads: list[Write] = []
        self._deleted: list[Write] = []
        self._pointer: list[Write] = []
        self._gone: dict[str, Write] = {}
        self._due_hours: dict[int, Position] = {}
        self._segments: dict[int, list[bytes]] = {}
        self._repeated = [write for entity, row in heads.items() for write in self._repeat(entity, row)]

    def waves(self) -> Iterator[list[Write]]:
        yield self._repeated
        yield self._purging
        yield self._purged
        yield [*self._rows, *self._hours()]
        yield sorted(self._new_heads, key=_segment)  # heads of one segment are cheaper together
        yield self._deleted
        yield self._pointer
        yield list(self._gone.values())

    def _repeat(self, entity: str, row: HeadRow) -> Iterator[Write]:
        """The deletes of a head whose batch may not have been finished."""
        if row.purging:
            yield from self._purges(entity, row)
            if row.head.cursor <= self._partition.until:
                self._remove_later(entity, row.head)
        elif self._partition.after is None or row.head.cursor > self._partition.after:
            yield from self._deletes(entity, row)

    def purge(self, entity: str, trace: _Trace) -> None:
        """End the lives that the batch ends: mark the head, delete the rows, and at the end the head."""
        if not trace.ended:
            return
        removing: list[Removal] = []
        for head, _, appends in trace.ended:
            stored = self._stored(entity, head)
            segments = stored.segments if stored else self._new_life
            found = self._linked(entity, head.since, segments.first, segments.last) | _touched(segments, appends)
            removing += _runs(head.since, found) or [Removal(head.since)]
        head, cursor, _ = trace.ended[-1]
        purging = msgspec.structs.replace(head, cursor=cursor)
        row = HeadRow(purging, self._new_life, tuple(removing), purging=True)
        self._purging.append(self._put_head(entity, row))
        self._purged += self._purges(entity, row)
        self._remove_later(entity, purging)

    def change(self, change: JournalChange, trace: _Trace) -> None:
        head, stored = change.head, self._stored(change.entity, change.head)
        if head is None or (stored is not None and head == stored.head):
            return
        self._gone.pop(change.entity, None)
        segments, removed = stored.segments if stored else self._new_life, set[int]()
        if change.deleted is not None and head.delete_to:
            segments, removed = self._delete(change.entity, head, segments, trace.appends)
        segments = self._append(change, head, segments)
        row = HeadRow(head, segments, tuple(_runs(head.since, removed)))
        self._new_heads.append(self._put_head(change.entity, row))
        if change.deleted is not None:
            self._deleted += self._deletes(change.entity, row)
        if head.expire_on_ms is not None:
            self._add_due(change.entity, head.expire_on_ms, head.cursor)

    def _stored(self, entity: str, head: Head | None) -> HeadRow | None:
        """The row of the head's life, if the store has it."""
        row = self._heads.get(entity)
        return None if row is None or row.purging or head is None or row.head.since != head.since else row

    def _remove_later(self, entity: str, purging: Head) -> None:
        """Delete a head at the end. If the replicator is killed before, an entry in `due` leads to the head."""
        self._add_due(entity, purging.updated_ms, purging.cursor)
        self._gone[entity] = self._remove_head(entity, purging.cursor)

    def _purges(self, entity: str, row: HeadRow) -> Iterator[Write]:
        for since in {removal.since for removal in row.removing}:
            yield self._life(entity, since).remove_snapshots(row.head.cursor)
        yield from self._removals(entity, row)

    def _deletes(self, entity: str, row: HeadRow) -> Iterator[Write]:
        yield from self._removals(entity, row)
        deleted = row.head.delete_to or 0
        kept_from = row.segments.of(deleted + 1)
        if deleted and row.segments.of(deleted) == kept_from:
            yield self._life(entity, row.head.since).remove_rows(kept_from, deleted, row.head.cursor)

    def _removals(self, entity: str, row: HeadRow) -> Iterator[Write]:
        for since, first, last in row.removing:
            life = self._life(entity, since)
            for segment in range(first, last + 1):
                yield life.remove_segment(segment, row.head.cursor)

    def _delete(
        self, entity: str, head: Head, segments: Segments, appends: Sequence[LoggedAction]
    ) -> tuple[Segments, set[int]]:
        """The segments that are left of those in the store, and those whose rows are all deleted."""
        kept_from = segments.of((head.delete_to or 0) + 1)
        linked = self._linked(entity, head.since, segments.first, min(segments.last or 0, kept_from))
        removed = {one for one in linked | _touched(segments, appends) if one < kept_from}
        first = min(linked - removed, default=None)
        return Segments(segments.size, first, None if first is None else segments.last), removed

    def _append(self, change: JournalChange, head: Head, segments: Segments) -> Segments:
        """Write the rows; returns the segments with the new ones."""
        if not change.rows:
            return segments
        life, new = self._life(change.entity, head.since), dict[int, Position]()
        rows = sorted(change.rows, key=_seq_nr)
        none, size = self._none, segments.size
        for segment, found in groupby(rows, key=lambda row: (row.event.seq_nr - 1) // size):
            key = [*life, long(segment)]
            for row in found:
                new.setdefault(segment, row.cursor)
                self._rows.append(Write(_ADD_ROW, key, tables.event_bytes(row, none)))
        self._rows += self._links(life, change.entity, head.since, segments, new)
        known = [one for one in (segments.first, segments.last) if one is not None]
        return segments._replace(first=min([*new, *known]), last=max([*new, *known]))

    def _links(
        self, life: _Life, entity: str, since: Position, segments: Segments, new: Mapping[int, Position]
    ) -> Iterator[Write]:
        """Link new segments to each other and to the existing ones. `new` has the cursors of their first rows."""
        if len(new) == 1 and segments.last in {None, *new}:
            return
        old: set[int] = set() if segments.last is None else {segments.last}
        if old and min(new) < max(old):  # only on an adopted topic
            old = self._linked(entity, since, segments.first, segments.last)
        linked = set(pairwise(sorted(old)))
        for one, following in pairwise(sorted(old | new.keys())):
            if (one, following) not in linked:
                yield life.link(one, following, new[following] if following in new else new[one])

    def _linked(self, entity: str, since: Position, first: int | None, last: int | None) -> set[int]:
        """The segments from the first one on, until the last one is reached or passed."""
        return set() if first is None or last is None else set(self._chain(entity, since, first, last))

    def set_aside(self, letters: Iterable[DeadLetter]) -> None:
        place = [self._topic, integer(self._partition.number)]
        for letter in letters:
            values = [*place, *tables.dead_letter_values(letter), long(stamp(letter.cursor))]
            self._rows.append(Write(CQL["add_dead_letter"], values))

    def move(self) -> None:
        until = self._partition.until
        place = [self._topic, integer(self._partition.number), integer(until.order), long(until.offset)]
        self._pointer.append(Write(CQL["move_pointer"], [*place, long(stamp(until))]))

    # -- single writes

    def _life(self, entity: str, since: Position) -> _Life:
        return _Life(self._topic, entity.encode(), long(stamp(since)))

    def _segment(self, entity: str) -> list[bytes]:
        """The partition of a head, the same object for all heads that it has."""
        number = tables.head_segment(entity, self._partition.sizes.segments)
        return self._segments.setdefault(number, [self._topic, integer(number)])

    def _put_head(self, entity: str, row: HeadRow) -> Write:
        if len(row.removing) > _MOST_REMOVALS:
            row = row._replace(removing=row.removing[:_MOST_REMOVALS])
        key = encoded(entity.encode()) + self._number
        return Write(_PUT_HEAD, self._segment(entity), key + tables.head_bytes(row))

    def _remove_head(self, entity: str, cursor: Position) -> Write:
        return Write(CQL["remove_head"], [long(stamp(cursor)), *self._segment(entity), entity.encode()])

    def _add_due(self, entity: str, due_ms: int, cursor: Position) -> None:
        hour = min(due_ms // HOUR_MS, _LAST_HOUR)
        self._due_hours[hour] = max(cursor, self._due_hours.get(hour, cursor))
        place = [self._topic, integer(hour), integer(self._partition.number), long(due_ms)]
        at = long(stamp(cursor))
        self._rows.append(Write(CQL["add_due"], [*place, entity.encode(), at, at]))

    def _hours(self) -> Iterator[Write]:
        for hour, cursor in self._due_hours.items():
            place = [self._topic, integer(hour), integer(self._partition.number)]
            yield Write(CQL["add_due_hour"], [*place, long(stamp(cursor))])


def _segment(head: Write) -> bytes:
    return head.values[1] or b""


def _seq_nr(row: StoredEvent) -> int:
    return row.event.seq_nr


def _touched(segments: Segments, appends: Iterable[LoggedAction]) -> set[int]:
    """The segments that appends write to."""
    found: set[int] = set()
    for logged in appends:
        assert isinstance(logged.action, Append)  # noqa: S101 - only appends are noted
        first, last = segments.of(logged.action.first), segments.of(logged.action.last)
        if last - first < _GUESSED_SEGMENTS:
            found.update(range(first, last + 1))
            continue
        try:
            found.update(segments.of(row.event.seq_nr) for row in payloads.rows(logged))
        except Malformed:
            continue
    return found


def _runs(since: Position, segments: Iterable[int]) -> list[Removal]:
    """The segments as ranges."""
    runs: list[Removal] = []
    for segment in sorted(segments):
        if runs and runs[-1].last + 1 == segment:
            runs[-1] = runs[-1]._replace(last=segment)
        else:
            runs.append(Removal(since, segment, segment))
    return runs
