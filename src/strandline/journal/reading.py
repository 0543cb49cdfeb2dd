"""Reads journals: what is in the store, and then what is only in the log.

A read sees everything that was acknowledged before it began. It asks for a mark, the position where the log ends,
and opens the journal in the store, whose pointer says up to where actions are replicated. The actions between the
pointer and the mark are folded onto the stored head. Nothing is returned before the resulting head is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

from strandline.errors import Malformed
from strandline.journal import actions, payloads
from strandline.journal.action_log import ActionLog
from strandline.journal.marks import Marks
from strandline.journal.model import Head, LoggedAction, StoredEvent
from strandline.journal.storage.port import JournalStore, StoredJournal
from strandline.journal.tail import START
from strandline.journal.unreplicated import Unreplicated
from strandline.log.cursors import Position
from strandline.log.raw import RawTopic

# Two records of a journal at most this far apart are read from the log together with the records between them.
_NEAR = 256
_TOGETHER = 10_000
# Records that are Python objects at the same time: a batch of them takes several times its bytes.
_CONVERTED = 500


class Place(NamedTuple):
    """A journal and its partition."""

    topic: RawTopic
    partition: int
    entity: str


class JournalReader:
    def __init__(self, store: Callable[[], JournalStore], action_log: ActionLog, marks: Marks) -> None:
        self._store = store
        self._log = action_log
        self._marks = marks

    def place(self, topic: RawTopic, entity: str) -> Place:
        """Invalid if the id cannot be one."""
        return Place(topic, self._log.partition(topic, entity), entity)

    def head(self, place: Place, until: Position | None = None) -> Head | None:
        """The head; with `until`, after all actions up to that one at least."""
        with self._open(place, None, until) as (_, found):
            return found.head

    def rows(self, place: Place, first: int, last: int, until: Position | None = None) -> Generator[StoredEvent]:
        """The events with these seqNrs, rising."""
        with self._open(place, first, until) as (stored, found):
            head = found.head
            if head is None:
                return
            first = max(first, (head.delete_to or 0) + 1)
            if found.forked:
                yield from self._merged(place, stored, found, first, last)
                return
            yield from _stored(place, stored, found, first, last)
        yield from self._logged(place, found, first, last)

    @contextmanager
    def _open(
        self, place: Place, first: int | None, until: Position | None
    ) -> Iterator[tuple[StoredJournal, Unreplicated]]:
        topic, partition, entity = place
        mark = self._marks.begin(topic, partition, entity) if until is None else None
        with self._store().open(topic.id, partition, entity, first) as stored:
            found = Unreplicated(stored.head, adopted=topic.adopted)
            end = until or START if mark is None else mark()
            replicated = max(stored.pointer or START, START if stored.head is None else stored.head.cursor)
            if replicated < end:
                self._log.tail(topic, partition).gather(entity, stored.pointer, end, found)
            yield stored, found

    # -- events that are only in the log

    def _logged(self, place: Place, found: Unreplicated, first: int, last: int) -> Iterator[StoredEvent]:
        for logged in self._appends(place, found.appends(first, last)):
            try:
                events = payloads.rows(logged)
            except Malformed:
                continue  # the replicator sets it aside
            for row in events:
                if first <= row.event.seq_nr <= last:
                    yield row

    def _appends(
        self, place: Place, wanted: Iterator[tuple[Position, LoggedAction | None]]
    ) -> Iterator[LoggedAction]:
        """The appends with their values, which are read from the log unless they were kept."""
        missing: list[Position] = []
        for cursor, kept in wanted:
            logged = kept or self._log.recent.get(place.topic.id, place.partition, cursor)
            if missing and (logged is not None or not _is_near(missing, cursor)):
                yield from self._fetch(place, missing)
                missing = []
            if logged is not None:
                yield logged
            else:
                missing.append(cursor)
        if missing:
            yield from self._fetch(place, missing)

    def _fetch(self, place: Place, cursors: list[Position]) -> Iterator[LoggedAction]:
        before = Position(cursors[0].order, cursors[0].offset - 1)
        wanted = {cursor.offset for cursor in cursors}
        for batch in self._log.raw.read(place.topic.name, place.partition, before, cursors[-1]):
            offsets = batch.records["offset"].to_pylist()
            chosen = [at for at, offset in enumerate(offsets) if offset in wanted]
            parts = (chosen[start : start + _CONVERTED] for start in range(0, len(chosen), _CONVERTED))
            for record in chain.from_iterable(batch.records.take(part).to_pylist() for part in parts):
                cursor = Position(batch.timeline, record.pop("offset"))
                logged = actions.from_record(cursor, record.pop("timestamp"), **record)
                if logged is not None:
                    self._log.recent.put(place.topic.id, place.partition, logged)
                    yield logged

    def _merged(
        self, place: Place, stored: StoredJournal, found: Unreplicated, first: int, last: int
    ) -> Iterator[StoredEvent]:
        """Two writers used the same seqNrs on an adopted topic: the events of the later append are returned.

        This is the only case in which all events that are in the log are held in memory.
        """
        newer = {row.event.seq_nr: row for row in self._logged(place, found, first, last)}
        older = (row for row in _stored(place, stored, found, first, last) if row.event.seq_nr not in newer)
        return heapq.merge(older, [newer[seq_nr] for seq_nr in sorted(newer)], key=_seq_nr)


def _seq_nr(row: StoredEvent) -> int:
    return row.event.seq_nr


def _stored(
    place: Place, stored: StoredJournal, found: Unreplicated, first: int, last: int
) -> Iterator[StoredEvent]:
    """The rows of the store that belong to the journal as it is now."""
    base = found.base
    if base is None or not found.continues:
        return iter(())
    if not place.topic.adopted:
        return stored.rows(first, min(last, base.seq_nr))
    # On an adopted topic rows can have seqNrs above the pointer. Rows that came after the head are in the log too.
    newest = base.cursor
    return (row for row in stored.rows(first, last) if row.cursor <= newest)


def _is_near(cursors: list[Position], cursor: Position) -> bool:
    newest = cursors[-1]
    return len(cursors) < _TOGETHER and cursor.order == newest.order and cursor.offset - newest.offset <= _NEAR
