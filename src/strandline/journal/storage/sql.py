"""The store of journals in a SQL database: a file, or a server for several machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from strandline.engine.database import Database, Rows, Tables, Transaction
from strandline.errors import Conflict, Unavailable
from strandline.journal.model import MAX_SEQ_NR, DeadLetter, Head, LoggedAction, Snapshot, StoredEvent
from strandline.journal.storage import rows
from strandline.journal.storage.partition_writer import PartitionWriter
from strandline.journal.storage.port import JournalStore, StoredJournal
from strandline.log.cursors import Position

# A journal with fewer rows is read with one query.
_SHORT = 100
_PAGE = 5_000
_PAGE_BYTES = 4 << 20
# A statement may take a few seconds at most, however many rows there are.
_FORGET = 20_000


class SqlStoredJournal(StoredJournal):
    """`rest` reads what the first query did not return, in the same snapshot; None if there is nothing more."""

    def __init__(self, found: Rows, rest: RestOfJournal | None) -> None:
        self.pointer = rows.cursor(*found[0][:2]) if found else None
        self.head: Head | None = rows.head(found[0][2:13]) if found else None
        self._first_rows = rows.events(row[13:] for row in found if row[13] is not None)
        self._rest = rest

    def rows(self, first: int, last: int) -> Iterator[StoredEvent]:
        for stored in self._first_rows:
            if first <= stored.event.seq_nr <= last:
                yield stored
        if self._rest is not None and self.head is not None:
            after = max(first - 1, self._first_rows[-1].event.seq_nr)
            yield from self._rest.rows(self.head.since, after, last)


class RestOfJournal:
    """Pages of rows, which start small: how large the events are is not known."""

    def __init__(self, snapshot: Transaction, topic: str, partition: int) -> None:
        self._snapshot = snapshot
        self._place = {"topic": topic, "partition": partition}

    def rows(self, since: Position, after: int, last: int) -> Iterator[StoredEvent]:
        life = {**self._place, "since_order": since.order, "since_offset": since.offset}
        size = _SHORT
        while after < last:
            page = rows.events(self._snapshot.run("rows", **life, after=after, last=last, limit=size))
            yield from page
            if len(page) < size:
                return
            after = page[-1].event.seq_nr
            size = _next_size(page)


def _next_size(page: Sequence[StoredEvent]) -> int:
    """Four times as many rows, unless rows of this size would take too much memory."""
    fitting = _PAGE_BYTES * len(page) // max(1, rows.bytes_of(page))
    return max(1, min(4 * len(page), _PAGE, fitting))


class SqlJournalStore(JournalStore):
    def __init__(self, database: Database) -> None:
        self._opened: Tables | None = Tables(database, "journal", "strandline.journal.storage", "journal.sql")

    @property
    def _tables(self) -> Tables:
        if self._opened is None:
            raise Unavailable("the store of the journals is closed")
        return self._opened

    @contextmanager
    def open(self, topic: str, partition: int, entity: str, first: int | None = 1) -> Iterator[StoredJournal]:
        limit = 0 if first is None else _SHORT
        place = {"topic": topic, "partition": partition, "id": rows.stored_text(entity), "first": first or 0}
        found = self._tables.fetch("open", **place, limit=limit)
        if first is None or len(found) < limit:
            yield SqlStoredJournal(found, None)
            return
        with self._tables.snapshot() as snapshot:
            found = snapshot.run("open", **place, limit=limit)
            more = len(found) == limit
            yield SqlStoredJournal(found, RestOfJournal(snapshot, topic, partition) if more else None)

    def pointers(self, topic: str) -> dict[int, Position]:
        found = self._tables.fetch("pointers", topic=topic)
        return {partition: Position(order, offset) for partition, order, offset in found}

    def event(self, topic: str, entity: str, seq_nr: int) -> StoredEvent | None:
        found = self._tables.fetch("event", topic=topic, id=rows.stored_text(entity), seq_nr=seq_nr)
        return rows.events(found)[0] if found else None

    def apply(
        self,
        topic: str,
        partition: int,
        after: Position | None,
        until: Position,
        actions: Sequence[LoggedAction],
        dead: Sequence[DeadLetter] = (),
        *,
        adopted: bool = False,
    ) -> int:
        def work(tx: Transaction) -> int:
            number = self._number(tx, topic)
            pointer = rows.cursor(*tx.run("lock", number=number, partition=partition)[0])
            if pointer != after:
                raise Conflict(
                    f"partition {partition} of topic {topic} is replicated up to {pointer or 'BEGIN'}, but the "
                    f"batch starts after {after or 'BEGIN'}; read the pointers again and start from there"
                )
            writer = PartitionWriter(tx, number, partition)
            set_aside = writer.write(actions, dead, adopted=adopted)
            writer.move(until)
            return set_aside

        return self._tables.transaction(work)

    def _number(self, tx: Transaction, topic: str) -> int:
        found = tx.run("topic", topic=topic)
        if not found:
            tx.run("add_topic", topic=topic)
            found = tx.run("topic", topic=topic)
        return int(found[0][0])

    def save_snapshot(self, topic: str, entity: str, since: Position, snapshot: Snapshot) -> None:
        def work(tx: Transaction) -> None:
            values = {**_life(entity, since), **rows.payload_values(snapshot.payload)}
            tx.run("save_snapshot", number=self._number(tx, topic), seq_nr=snapshot.seq_nr, **values)

        self._tables.transaction(work)

    def snapshot(self, topic: str, entity: str, since: Position, at_most: int) -> Snapshot | None:
        most = min(at_most, MAX_SEQ_NR)
        found = self._tables.fetch("snapshot", topic=topic, **_life(entity, since), at_most=most)
        return rows.snapshot(found[0]) if found else None

    def delete_snapshot(self, topic: str, entity: str, since: Position, seq_nr: int) -> None:
        self._tables.store("delete_snapshot", topic=topic, **_life(entity, since), seq_nr=seq_nr)

    def expired(self, topic: str, now_ms: int, limit: int) -> list[tuple[str, Position]]:
        found = self._tables.fetch("expired", topic=topic, now_ms=now_ms, limit=limit)
        return [(rows.own_text(entity) or "", Position(order, offset)) for entity, order, offset in found]

    def dead_letters(
        self, topic: str, limit: int, after: tuple[int, Position] | None = None, *, brief: bool = False
    ) -> list[DeadLetter]:
        partition, cursor = after or (-1, Position(0, -1))
        place = {"partition": partition, "cursor_order": cursor.order, "cursor_offset": cursor.offset}
        found = self._tables.fetch("dead_letters", topic=topic, limit=limit, whole=not brief, **place)
        return [rows.dead_letter(row) for row in found]

    def topics(self) -> list[str]:
        return [topic for (topic,) in self._tables.fetch("topics")]

    def forget(self, topic: str) -> None:
        self._tables.store("forget_pointers", topic=topic)
        for name in ("forget_rows", "forget_heads", "forget_snapshots", "forget_dead_letters"):
            while len(self._tables.store(name, topic=topic, limit=_FORGET)) == _FORGET:
                pass
        self._tables.store("forget_topic", topic=topic)

    def close(self) -> None:
        # The database is shared with other rooms; its owner closes it.
        self._opened = None


def _life(entity: str, since: Position) -> dict[str, object]:
    return {"id": rows.stored_text(entity), "since_order": since.order, "since_offset": since.offset}
