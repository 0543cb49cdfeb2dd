"""Reads journals from Cassandra. It has no snapshots: what is read last may be newer than what is read first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from strandline.engine.cassandra import CassandraSession, Row
from strandline.errors import Unavailable
from strandline.journal.model import MAX_SEQ_NR, StoredEvent
from strandline.journal.storage import cassandra_tables as tables
from strandline.journal.storage.cassandra_tables import CQL, HeadRow, stamp
from strandline.journal.storage.port import StoredJournal
from strandline.log.cursors import Position

# Pages grow up to this size. The first is small, because the size of the events is not known yet.
_PAGE_BYTES = 1 << 20
_FIRST_PAGE = 100
_LARGEST_PAGE = 5_000
# What a row takes besides its payload.
_ROW_BYTES = 100


class JournalKey(NamedTuple):
    topic: UUID
    segment: int
    entity: str


class CassandraReader:
    """Reads heads and rows."""

    def __init__(self, session: CassandraSession) -> None:
        self._session = session

    def pointer(self, topic: UUID, partition: int) -> Position | None:
        found = self._session.fetch(CQL["pointer"], topic, partition)
        return Position(*found[0]) if found else None

    def head(self, journal: JournalKey) -> HeadRow | None:
        found = self._session.fetch(CQL["head"], *journal)
        return tables.head_row(found[0]) if found else None

    def page(
        self, journal: JournalKey, since: Position, segment: int, first: int, last: int, limit: int
    ) -> Callable[[], list[Row]]:
        key = (journal.topic, journal.entity, stamp(since), segment)
        return self._session.fetch_later(CQL["rows"], *key, first, last, limit)

    def next_segment(self, journal: JournalKey, since: Position, segment: int) -> Callable[[], int | None]:
        key = (journal.topic, journal.entity, stamp(since), segment)
        answer = self._session.fetch_later(CQL["next_segment"], *key)

        def following() -> int | None:
            found = answer()
            return found[0][0] if found else None

        return following

    def chain(self, journal: JournalKey, since: Position, first: int, last: int) -> list[int]:
        """The segments from the first one on, until the last is reached or passed, as far as they are linked."""
        found = [first]
        while found[-1] < last:
            following = self.next_segment(journal, since, found[-1])()
            if following is None:
                break
            found.append(following)
        return found

    def open(self, journal: JournalKey, partition: int, first: int | None) -> CassandraJournal:
        """The pointer is read before the head. Without a head it is read again.

        A head is deleted after the pointer has moved past the purge. So if the pointer has not moved while the
        head was read, the journal was absent at the pointer.
        """
        pointer = self.pointer(journal.topic, partition)
        while True:
            row = self.head(journal)
            if row is not None:
                return CassandraJournal(self, journal, pointer, row, first)
            before, pointer = pointer, self.pointer(journal.topic, partition)
            if before == pointer:
                return CassandraJournal(self, journal, pointer, None, None)


class CassandraJournal(StoredJournal):
    def __init__(
        self,
        reader: CassandraReader,
        journal: JournalKey,
        pointer: Position | None,
        row: HeadRow | None,
        first: int | None,
    ) -> None:
        self._reader = reader
        self._journal = journal
        self.pointer = pointer
        self.head = None if row is None or row.purging else row.head
        if row is not None and row.purging:
            # The journal is replicated up to its purge, even if the pointer has not moved there yet.
            self.pointer = row.head.cursor if pointer is None else max(pointer, row.head.cursor)
        self._row = row
        self._scan = None if first is None else self._scan_from(first)

    def rows(self, first: int, last: int) -> Iterator[StoredEvent]:
        scan, self._scan = self._scan, None
        if scan is None or self.head is None:
            return
        if first != scan.asked:
            scan = self._scan_from(first)
        if scan is not None:
            yield from scan.rows(last)

    def _scan_from(self, first: int) -> _Scan | None:
        if self.head is None or self._row is None or self._row.segments.first is None:
            return None
        return _Scan(self._reader, self._journal, self._row, first)


class _Scan:
    """Reads rows in pages. A page is one query of one segment, so it is of one moment.

    Deletes remove rows from the front. So rows can be missing only where the next page, or the end, does not
    follow directly on what was emitted. There the head is read again: see `_check`.
    """

    def __init__(self, reader: CassandraReader, journal: JournalKey, row: HeadRow, first: int) -> None:
        self.asked = first
        self._reader = reader
        self._journal = journal
        self._head = row.head
        self._segments = row.segments
        self._newest = stamp(row.head.cursor)
        # The seqNr that comes next if none is left out.
        self._next = max(first, (row.head.delete_to or 0) + 1)
        self._limit = _FIRST_PAGE
        self._enter(self._start(), MAX_SEQ_NR)

    def rows(self, last: int) -> Iterator[StoredEvent]:
        while self._page is not None and self._next <= last:
            found = self._page()
            if found:
                if found[0][0] != self._next:
                    self._check()
                self._next = found[-1][0] + 1
            self._turn(found, last)
            if found[-1:] and found[-1][0] > last:
                found = [row for row in found if row[0] <= last]
            yield from tables.events(self._known(found))
        if self._next <= min(last, self._head.seq_nr):
            self._check()

    def _start(self) -> int:
        """The segment of the first row, without reading all the links before it if that is possible."""
        first, last, wanted = self._segments.first or 0, self._segments.last or 0, self._segments.of(self._next)
        if wanted <= first:
            return first
        if wanted >= last:
            return last
        if self._reader.next_segment(self._journal, self._head.since, wanted)() is not None:
            return wanted
        return self._reader.chain(self._journal, self._head.since, first, wanted)[-1]

    def _enter(self, segment: int, last: int) -> None:
        self._segment = segment
        self._following = None
        if segment < (self._segments.last or 0):
            self._following = self._reader.next_segment(self._journal, self._head.since, segment)
        self._ask(last)

    def _ask(self, last: int) -> None:
        place = (self._journal, self._head.since, self._segment)
        self._page: Callable[[], list[Row]] | None = self._reader.page(*place, self._next, last, self._limit)

    def _turn(self, found: list[Row], last: int) -> None:
        """Ask for the next page, while the caller works on this one."""
        if self._next > last:
            self._page = None
            return
        if len(found) == self._limit:
            average = sum(len(row[6] or b"") + _ROW_BYTES for row in found) // len(found)
            self._limit = min(_LARGEST_PAGE, 8 * self._limit, max(1, _PAGE_BYTES // average))
            self._ask(last)
            return
        following = None if self._following is None else self._following()
        if following is None:
            self._page = None
        else:
            self._enter(following, last)

    def _known(self, found: list[Row]) -> list[Row]:
        """Leave out rows of actions that the head does not include: the replicator writes rows before the head."""
        newer = [row for row in found if row[1] > self._newest]
        if not newer:
            return found
        if newer[0][0] <= self._head.seq_nr:
            self._refuse()
        return [row for row in found if row[1] <= self._newest]

    def _check(self) -> None:
        """Fail if rows that were not emitted have been deleted since the head was read."""
        row = self._reader.head(self._journal)
        gone = row is None or row.purging or row.head.since != self._head.since
        if gone or (row is not None and (row.head.delete_to or 0) >= self._next):
            self._refuse()

    def _refuse(self) -> None:
        raise Unavailable(
            f"the journal {self._journal.entity!r} was changed while it was read; read it again", retry_after=0
        )
