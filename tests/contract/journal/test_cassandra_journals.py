"""What is special about journals in Cassandra: segments, reads without snapshots, and hints of what is due."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from cassandra_place import KilledError, Log, Place, read

from services.cassandra import CassandraServer
from strandline.errors import Invalid, Unavailable
from strandline.journal.model import MAX_SEQ_NR, Payload, Snapshot
from strandline.journal.storage import cassandra_reads
from strandline.journal.storage.cassandra import CassandraJournalStore
from strandline.journal.storage.cassandra_reads import CassandraReader
from strandline.journal.storage.cassandra_tables import CQL, HeadRow, Sizes, head_segment, stamp
from strandline.log.cursors import Position

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def place(cassandra: CassandraServer) -> Iterator[Place]:
    made = Place(cassandra)
    yield made
    made.close()


@pytest.fixture
def two_rows_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_reads, "_FIRST_PAGE", 2)
    monkeypatch.setattr(cassandra_reads, "_LARGEST_PAGE", 2)


def stored(place: Place, log: Log) -> list[tuple[int, int]]:
    """The rows of a topic as (seqNr, segment)."""
    return sorted(
        (seq_nr, segment) for seq_nr, segment in place.raw("seq_nr, segment", "journal", log.topic) if seq_nr
    )


# -- segments


@pytest.fixture(scope="module")
def place_of_five(cassandra: CassandraServer) -> Iterator[Place]:
    made = Place(cassandra, Sizes(segments=4, segment_size=5))
    yield made
    made.close()


def test_the_seeds_cases_on_how_records_are_stored(place: Place, place_of_five: Place) -> None:
    """`E(seqNr, segment)` for each row of its table that has events; segments have 5 or 3 seqNrs."""
    log = Log()
    log.append("A", 1, 2, 3)
    log.replicate(place_of_five.store)
    assert stored(place_of_five, log) == [(1, 0), (2, 0), (3, 0)]
    log = Log()
    log.append("A", 1, 2, 3, 4, 5)
    log.replicate(place.store)
    assert stored(place, log) == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    log.delete("A", 2)
    log.replicate(place.store)
    assert stored(place, log) == [(3, 0), (4, 1), (5, 1)]
    log.delete("A", 5)
    log.replicate(place.store)
    assert stored(place, log) == []
    assert place.raw("id, seq_nr, delete_to, segment_size", "metajournal", log.topic) == [("A", 5, 5, 3)]


def test_a_journal_keeps_the_segment_size_that_it_began_with(place: Place) -> None:
    log = Log()
    log.append("A", 1, 2, 3, 4)
    log.replicate(place.store)
    log.append("A", 5, 6, 7, 8, 9)
    log.purge("B")
    log.append("B", *range(1, 8))
    other = CassandraJournalStore(place.session)
    other._sizes = other._sizes._replace(segment_size=5)
    log.replicate(other)
    sizes = place.raw("id, segment_size", "metajournal", log.topic)
    assert sizes == [("A", 3), ("B", 5)]
    assert [seq_nr for seq_nr, _ in read(place.store, log, "A")[2]] == [*range(1, 10)]
    assert [seq_nr for seq_nr, _ in read(place.store, log, "B")[2]] == [*range(1, 8)]


def test_the_sizes_of_existing_tables_are_used(place: Place) -> None:
    assert CassandraJournalStore(place.session, Sizes(7, 7))._sizes == Sizes(segments=4, segment_size=3)


def test_gaps_do_not_cost_queries(place: Place) -> None:
    """Ten billion segments lie between the two that have rows."""
    log = Log()
    log.append("A", 1, 2)
    log.append("A", 30_000_000_000, MAX_SEQ_NR)
    log.replicate(place.store)
    assert [seq_nr for seq_nr, _ in read(place.store, log, "A")[2]] == [1, 2, 30_000_000_000, MAX_SEQ_NR]
    with place.store.open(log.topic, 0, "A", 20_000_000_000) as journal:
        found = [row.event.seq_nr for row in journal.rows(20_000_000_000, MAX_SEQ_NR)]
    assert found == [30_000_000_000, MAX_SEQ_NR]
    log.delete("A", 40_000_000_000)
    log.replicate(place.store)
    assert stored(place, log) == [(MAX_SEQ_NR, (MAX_SEQ_NR - 1) // 3)]
    log.purge("A")
    log.replicate(place.store)
    assert stored(place, log) == []


@pytest.fixture(scope="module")
def twelve(place: Place) -> Log:
    log = Log()
    log.append("A", *range(2, 14))
    log.replicate(place.store)
    return log


@pytest.mark.parametrize("first", range(1, 16))
@pytest.mark.parametrize("size", [1, 4, 100])
def test_reading_starts_and_ends_anywhere(
    place: Place, twelve: Log, monkeypatch: pytest.MonkeyPatch, first: int, size: int
) -> None:
    monkeypatch.setattr(cassandra_reads, "_FIRST_PAGE", size)
    monkeypatch.setattr(cassandra_reads, "_LARGEST_PAGE", size)
    for last in (first - 1, first, first + 3, MAX_SEQ_NR):
        with place.store.open(twelve.topic, 0, "A", first) as journal:
            found = [row.event.seq_nr for row in journal.rows(first, last)]
        assert found == [seq_nr for seq_nr in range(2, 14) if first <= seq_nr <= last]


def test_the_segment_of_a_head_is_that_of_kafka_journal() -> None:
    """The numbers are those of `math.abs(id.toLowerCase.hashCode % 100)` in Scala."""
    assert [head_segment(entity, 100) for entity in ("id", "ID", "polygenelubricants", "", "é😀")] == [
        55,
        55,
        48,
        0,
        12,
    ]


# -- reads without snapshots


@pytest.mark.usefixtures("two_rows_a_page")
@pytest.mark.parametrize(
    ("emitted", "to", "complete"),
    [(1, 2, True), (2, 2, True), (3, 9, False), (1, 9, False), (5, 5, True), (2, 11, False)],
)
def test_a_delete_past_what_was_emitted_ends_the_answer_with_an_error(
    place: Place, emitted: int, to: int, complete: bool
) -> None:
    """A page, and the next one that is asked for meanwhile, are of the moment before the delete."""
    log = Log()
    log.append("A", *range(1, 12))
    log.replicate(place.store)
    with place.store.open(log.topic, 0, "A") as journal:
        rows = journal.rows(1, MAX_SEQ_NR)
        found = [next(rows).event.seq_nr for _ in range(emitted)]
        log.delete("A", to)
        log.replicate(place.store)
        if complete:
            found += (row.event.seq_nr for row in rows)
            assert found == [*range(1, 12)]
        else:
            with pytest.raises(Unavailable, match="read it again"):
                found += (row.event.seq_nr for row in rows)
            assert found == [*range(1, len(found) + 1)]


@pytest.mark.usefixtures("two_rows_a_page")
@pytest.mark.parametrize("again", [False, True])
def test_a_purge_ends_an_answer_with_an_error(place: Place, again: bool) -> None:
    log = Log()
    log.append("A", *range(1, 12))
    log.replicate(place.store)
    with place.store.open(log.topic, 0, "A") as journal:
        rows = journal.rows(1, MAX_SEQ_NR)
        next(rows)
        log.purge("A")
        if again:
            log.append("A", *range(1, 12))
        log.replicate(place.store)
        with pytest.raises(Unavailable, match="read it again"):
            list(rows)


def test_rows_that_the_head_does_not_include_are_not_read(place: Place) -> None:
    """The replicator writes rows before the head: the reader takes them from the log."""
    log = Log()
    log.append("A", 1, 2)
    log.replicate(place.store)
    with place.store.open(log.topic, 0, "A", None) as journal:
        head = journal.head
    log.append("A", 3, 4)
    log.replicate(place.store)
    reader = place.store._reader
    row = reader.head(place.store._journal(log.topic, "A"))
    assert head is not None
    assert row is not None
    older = cassandra_reads.CassandraJournal(
        reader, place.store._journal(log.topic, "A"), head.cursor, HeadRow(head, row.segments), 1
    )
    assert [row.event.seq_nr for row in older.rows(1, MAX_SEQ_NR)] == [1, 2]


def test_the_pointer_of_an_absent_journal_is_not_before_its_purge(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge is replicated after the pointer was read and before the head is."""
    log = Log()
    log.append("A", 1)
    log.replicate(place.store)
    log.append("A", 2)
    log.purge("A")
    read_head = CassandraReader.head

    def head(reader: CassandraReader, *where: object) -> HeadRow | None:
        log.replicate(place.store)
        return read_head(reader, *where)

    monkeypatch.setattr(CassandraReader, "head", head)
    with place.store.open(log.topic, 0, "A") as journal:
        assert journal.head is None
        assert journal.pointer == log.end


# -- expiry


def due_at(log: Log, entity: str, due_ms: int, *seq_nrs: int) -> Position:
    """An append that lets the journal expire at that time."""
    return log.append(entity, *seq_nrs, expire_after_ms=due_ms - 1_000 - len(log.actions))


def test_expired_journals_come_oldest_first_with_their_last_cursor(place: Place) -> None:
    log = Log()
    late = due_at(log, "late", 9 * HOUR_MS, 1)
    early = due_at(log, "early", 2 * HOUR_MS, 1)
    due_at(log, "moved", 3 * HOUR_MS, 1)
    due_at(log, "moved", 99 * HOUR_MS, 2)
    due_at(log, "kept", 4 * HOUR_MS, 1)
    log.append("kept", 2)
    due_at(log, "purged", 5 * HOUR_MS, 1)
    log.purge("purged")
    touched = due_at(log, "deleted", 6 * HOUR_MS, 1, 2)
    touched = log.delete("deleted", 1)
    log.replicate(place.store)
    assert place.store.expired(log.topic, 2 * HOUR_MS - 1, 10) == []
    expected = [("early", early), ("deleted", touched), ("late", late)]
    assert place.store.expired(log.topic, 20 * HOUR_MS, 10) == expected
    assert place.store.expired(log.topic, 20 * HOUR_MS, 2) == expected[:2]
    hints = {entity for (entity,) in place.raw("id", "due", log.topic)}
    assert hints == {"early", "deleted", "late", "moved"}


# -- the rest


def test_every_write_has_a_timestamp_of_its_own() -> None:
    """A write without one would have that of a clock."""
    writes = {name for name, text in CQL.items() if text.startswith(("INSERT", "UPDATE", "DELETE"))}
    assert {name for name in writes if "USING TIMESTAMP" not in CQL[name]} == {"add_setting"}


def test_the_timestamp_is_made_of_the_timeline_and_the_offset() -> None:
    assert stamp(Position(3, 7)) == 3 * 2**47 + 7
    assert stamp(Position(2**16 - 1, 2**47 - 1)) == 2**63 - 1
    with pytest.raises(Invalid, match="timelines"):
        stamp(Position(2**16, 0))


def test_a_snapshot_is_saved_replaced_and_deleted_without_clocks(place: Place) -> None:
    since = Position(1, 7)
    topic = str(uuid.uuid4())
    for text in (b"1", b"2"):
        place.store.save_snapshot(topic, "A", since, Snapshot(3, Payload("text", text)))
    assert place.store.snapshot(topic, "A", since, 9) == Snapshot(3, Payload("text", b"2"))
    place.store.delete_snapshot(topic, "A", since, 3)
    place.store.delete_snapshot(topic, "A", since, 3)
    assert place.store.snapshot(topic, "A", since, 9) is None
    place.store.save_snapshot(topic, "A", since, Snapshot(3, None))
    assert place.store.snapshot(topic, "A", since, 3) == Snapshot(3, None)
    assert place.store.snapshot(topic, "A", since, 2) is None
    assert place.store.snapshot(topic, "A", Position(1, 8), 9) is None


def test_a_purge_deletes_the_snapshots_of_its_life_alone(place: Place) -> None:
    log = Log()
    first = log.append("A", 1)
    log.purge("A")
    second = log.append("A", 1)
    for since in (first, second):
        place.store.save_snapshot(log.topic, "A", since, Snapshot(1, None))
    log.replicate(place.store)
    assert place.store.snapshot(log.topic, "A", first, 9) is None
    assert place.store.snapshot(log.topic, "A", second, 9) == Snapshot(1, None)


TABLES = ("metajournal", "journal", "snapshot", "pointer", "due", "due_hour", "dead_letter")


def test_a_topic_is_forgotten_in_all_tables_and_stays_forgotten(place: Place) -> None:
    log, other = Log(), Log()
    for one in (log, other):
        since = one.append("A", *range(1, 12), expire_after_ms=5)
        one.append("B", 1)
        one.actions[-1] = one.actions[-1].__class__("B", one.end, 1, one.actions[-1].action, b"not JSON")
        place.session.written = []
        one.replicate(place.store)
        place.store.save_snapshot(one.topic, "A", since, Snapshot(1, None))
    assert [letter.key for letter in place.store.dead_letters(log.topic, 5)] == [b"B"]
    assert set(place.store.topics()) >= {log.topic, other.topic}
    place.store.forget(other.topic)
    place.store.forget(other.topic)
    place.session.write(place.session.written)
    for table in TABLES:
        assert place.raw("topic", table, log.topic), table
        assert not place.raw("topic", table, other.topic), table
    assert other.topic not in place.store.topics()


def test_a_topic_whose_first_batch_was_not_finished_is_listed(place: Place) -> None:
    log = Log()
    log.append("A", 1)
    place.session.left = 1
    with pytest.raises(KilledError):
        log.replicate(place.store)
    place.session.left = None
    assert log.topic in place.store.topics()
    assert place.store.pointers(log.topic) == {}


def test_a_topic_is_named_by_the_id_of_its_event_type(place: Place) -> None:
    with pytest.raises(Invalid, match="is not the id of an event type"):
        place.store.pointers("orders")


def test_tables_of_a_newer_release_are_not_opened(cassandra: CassandraServer) -> None:
    made = Place(cassandra)
    made.session.fetch("UPDATE setting SET value = ? WHERE name = 'layout'", 99)
    with pytest.raises(Unavailable, match="newer Strandline"):
        CassandraJournalStore(made.session)
    made.close()
