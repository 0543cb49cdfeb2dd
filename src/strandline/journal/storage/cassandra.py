"""The store of journals in Cassandra: no transactions, no lightweight transactions, no clocks.

Every write of the replicator has the timestamp of its action, so that repeating it, late and in any order, changes
nothing. `cassandra_writes` says in which order a batch is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from strandline import failpoints
from strandline.engine.cassandra import CassandraSession, Write
from strandline.errors import Conflict
from strandline.journal.model import MAX_SEQ_NR, DeadLetter, LoggedAction, Mark, Snapshot, StoredEvent
from strandline.journal.storage import cassandra_tables as tables
from strandline.journal.storage.cassandra_reads import CassandraReader, JournalKey
from strandline.journal.storage.cassandra_tables import CQL, HeadRow, Sizes, integer, long, stamp, topic_key
from strandline.journal.storage.cassandra_writes import HOUR_MS, Chain, Partition, waves
from strandline.journal.storage.port import JournalStore, StoredJournal
from strandline.log.cursors import Position

# Few enough that the heads of a batch take few queries, and enough for a hundred million journals of a topic.
_SIZES = Sizes(segments=256, segment_size=10_000)
# How many heads one query reads.
_HEADS = 50
_SNAPSHOTS = 10
# The timestamp of deletes of whole topics: later than every action, so no late write brings a row back.
_FOREVER = long(MAX_SEQ_NR)


class CassandraJournalStore(JournalStore):
    """`sizes` are used if the tables do not exist yet."""

    def __init__(self, session: CassandraSession, sizes: Sizes = _SIZES) -> None:
        self._session = session
        self._sizes = tables.prepare_tables(session, sizes)
        self._reader = CassandraReader(session)

    @contextmanager
    def open(self, topic: str, partition: int, entity: str, first: int | None = 1) -> Iterator[StoredJournal]:
        yield self._reader.open(self._journal(topic, entity), partition, first)

    def _journal(self, topic: str, entity: str) -> JournalKey:
        return JournalKey(topic_key(topic), tables.head_segment(entity, self._sizes.segments), entity)

    def pointers(self, topic: str) -> dict[int, Position]:
        found = self._session.fetch(CQL["pointers"], topic_key(topic))
        return {number: Position(order, offset) for number, order, offset in found if number is not None}

    def event(self, topic: str, entity: str, seq_nr: int) -> StoredEvent | None:
        journal = self._journal(topic, entity)
        row = self._reader.head(journal)
        if row is None or row.purging or seq_nr <= (row.head.delete_to or 0):
            return None
        segment = row.segments.of(seq_nr)
        found = self._reader.page(journal, row.head.since, segment, seq_nr, seq_nr, 1)()
        return next((one for one in tables.events(found) if one.cursor <= row.head.cursor), None)

    def topics(self) -> list[str]:
        return [str(topic) for page in self._session.pages(CQL["topics"]) for (topic,) in page]

    # -- replication

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
        key = topic_key(topic)
        pointer = self._reader.pointer(key, partition)
        if pointer != after:
            raise Conflict(
                f"partition {partition} of topic {topic} is replicated up to {pointer or 'BEGIN'}, but the "
                f"batch starts after {after or 'BEGIN'}; read the pointers again and start from there"
            )
        changes = [logged for logged in actions if not isinstance(logged.action, Mark)]
        heads = self._heads(key, {logged.entity for logged in changes})
        if after is None:
            self._session.write([_add_topic(key)])
        place = Partition(key, partition, after, until, self._sizes, adopted)
        found, set_aside = waves(place, heads, changes, dead, self._chain_of(key))
        for wave in found:
            self._session.write(wave)
            failpoints.hit("journal.apply")
        return set_aside

    def _chain_of(self, topic: UUID) -> Chain:
        def chain(entity: str, since: Position, first: int, last: int) -> list[int]:
            return self._reader.chain(JournalKey(topic, 0, entity), since, first, last)

        return chain

    def _heads(self, topic: UUID, entities: Iterable[str]) -> dict[str, HeadRow]:
        by_segment = defaultdict(list)
        for entity in entities:
            by_segment[tables.head_segment(entity, self._sizes.segments)].append(entity)
        queries = [
            (topic, segment, ids[start : start + _HEADS])
            for segment, ids in by_segment.items()
            for start in range(0, len(ids), _HEADS)
        ]
        answers = self._session.fetch_each(CQL["heads"], queries)
        return {row[0]: tables.head_row(row[1:]) for answer in answers for row in answer}

    # -- snapshots

    def save_snapshot(self, topic: str, entity: str, since: Position, snapshot: Snapshot) -> None:
        self._put_snapshot(topic, entity, since, snapshot.seq_nr, tables.body_bytes(snapshot.payload))

    def snapshot(self, topic: str, entity: str, since: Position, at_most: int) -> Snapshot | None:
        key = (topic_key(topic), entity, stamp(since))
        most = min(at_most, MAX_SEQ_NR)
        for page in self._session.pages(CQL["snapshots"], *key, most, size=_SNAPSHOTS):
            for seq_nr, body in page:
                if body is not None:
                    return Snapshot(seq_nr, tables.payload_of(body))
        return None

    def delete_snapshot(self, topic: str, entity: str, since: Position, seq_nr: int) -> None:
        self._put_snapshot(topic, entity, since, seq_nr, None)

    def _put_snapshot(self, topic: str, entity: str, since: Position, seq_nr: int, body: bytes | None) -> None:
        """The timestamp is the next version. So of two writes that do not overlap, the later one counts."""
        key = topic_key(topic)
        found = self._session.fetch(CQL["snapshot_version"], key, entity, stamp(since), seq_nr)
        if body is None and not found:
            return
        version = long(1 + (found[0][0] if found else 0))
        values = [key.bytes, entity.encode(), long(stamp(since)), long(seq_nr), version, body, version]
        self._session.write([_add_topic(key), Write(CQL["put_snapshot"], values)])

    # -- expiry

    def expired(self, topic: str, now_ms: int, limit: int) -> list[tuple[str, Position]]:
        key, pointers = topic_key(topic), self.pointers(topic)
        hours = self._session.fetch(CQL["due_hours"], key, now_ms // HOUR_MS)
        found: list[tuple[int, str, Position]] = []
        for hour, places in groupby(hours, key=itemgetter(0)):
            for _, partition in places:
                if (pointer := pointers.get(partition)) is not None:
                    found += self._due(DueHour(key, hour, partition), pointer, now_ms, limit)
            if len(found) >= limit:
                break
        return [(entity, cursor) for _, entity, cursor in sorted(found)[:limit]]

    def _due(self, place: DueHour, pointer: Position, now_ms: int, limit: int) -> list[tuple[int, str, Position]]:
        """Journals of an hour that have expired. Entries that are out of date are deleted."""
        found: list[tuple[int, str, Position]] = []
        kept = False
        for page in self._session.pages(CQL["due"], *place, now_ms):
            heads = self._heads(place.topic, {entity for _, entity, _ in page})
            stale: list[Write] = []
            for due_ms, entity, cursor in page:
                row = heads.get(entity)
                if row is not None and not row.purging and row.head.expire_on_ms == due_ms:
                    found.append((due_ms, entity, row.head.cursor))
                elif cursor <= stamp(pointer):
                    stale += place.removals(due_ms, entity, cursor)
                    stale += self._left_over(place.topic, entity, row, pointer)
                else:
                    kept = True  # its head is not written yet
            self._session.write(stale)
            if len(found) >= limit:
                return found
        if not found and not kept and place.hour < now_ms // HOUR_MS:
            self._session.write([place.removal(pointer)])
        return found

    def _left_over(self, topic: UUID, entity: str, row: HeadRow | None, pointer: Position) -> Iterator[Write]:
        """Delete the head of a purged journal that a killed replicator left."""
        if row is not None and row.purging and row.head.cursor <= pointer:
            key = [topic.bytes, integer(tables.head_segment(entity, self._sizes.segments)), entity.encode()]
            yield Write(CQL["remove_head"], [long(stamp(row.head.cursor)), *key])

    # -- dead letters and forgotten topics

    def dead_letters(
        self, topic: str, limit: int, after: tuple[int, Position] | None = None, *, brief: bool = False
    ) -> list[DeadLetter]:
        statement = CQL["brief_dead_letters" if brief else "dead_letters"]
        key, (first, position) = topic_key(topic), after or (0, None)
        found: list[DeadLetter] = []
        for partition in sorted(self.pointers(topic)):
            if partition >= first and len(found) < limit:
                start = stamp(position) if position is not None and partition == first else -1
                rows = self._session.fetch(statement, key, partition, start, limit - len(found))
                found += (tables.dead_letter(partition, row) for row in rows)
        return found

    def forget(self, topic: str) -> None:
        key = topic_key(topic)
        segments = [(key, segment) for segment in range(self._sizes.segments)]
        for place, found in zip(segments, self._session.fetch_each(CQL["any_head"], segments), strict=True):
            if found:
                self._forget_heads(*place)
        for hour, partition in self._session.fetch(CQL["all_due_hours"], key):
            values = [_FOREVER, key.bytes, integer(hour), integer(partition)]
            self._session.write([Write(CQL["remove_all_due"], values)])
        self._session.write(
            [
                Write(CQL["remove_dead_letters"], [_FOREVER, key.bytes, integer(partition)])
                for partition in self.pointers(topic)
            ]
        )
        last = [Write(CQL[name], [_FOREVER, key.bytes]) for name in ("remove_due_hours", "remove_pointers")]
        self._session.write(last)

    def _forget_heads(self, topic: UUID, segment: int) -> None:
        """Delete rows from the last segment on, then the heads: a repetition finds the rest through the heads."""
        for page in self._session.pages(CQL["all_heads"], topic, segment):
            removals = [self._forgetting(topic, row[0], tables.head_row(row[1:])) for row in page]
            for wave in zip_longest(*removals):
                self._session.write([write for write in wave if write is not None])
        self._session.write([Write(CQL["remove_heads"], [_FOREVER, topic.bytes, integer(segment)])])

    def _forgetting(self, topic: UUID, entity: str, row: HeadRow) -> Iterator[Write]:
        lives = {row.head.since, *(removal.since for removal in row.removing)}
        segments = [(one.since, n) for one in row.removing for n in range(one.first, one.last + 1)]
        if row.segments.first is not None:
            linked = self._chain_of(topic)(entity, row.head.since, row.segments.first, row.segments.last or 0)
            segments += ((row.head.since, one) for one in linked)
        for since, one in reversed(segments):
            key = [topic.bytes, entity.encode(), long(stamp(since)), long(one)]
            yield Write(CQL["remove_segment"], [_FOREVER, *key])
        for since in lives:
            yield Write(CQL["remove_snapshots"], [_FOREVER, topic.bytes, entity.encode(), long(stamp(since))])

    def close(self) -> None:
        self._session.close()


def _add_topic(topic: UUID) -> Write:
    return Write(CQL["add_topic"], [topic.bytes])


class DueHour(NamedTuple):
    """A partition of the table `due`."""

    topic: UUID
    hour: int
    partition: int

    @property
    def _key(self) -> list[bytes]:
        return [self.topic.bytes, integer(self.hour), integer(self.partition)]

    def removals(self, due_ms: int, entity: str, cursor: int) -> Iterator[Write]:
        """Delete an entry, as it was written: a newer one stays."""
        yield Write(CQL["remove_due"], [long(cursor), *self._key, long(due_ms), entity.encode()])

    def removal(self, pointer: Position) -> Write:
        """Delete the hour, unless an action after the pointer has written to it."""
        return Write(CQL["remove_due_hour"], [long(stamp(pointer)), *self._key])
