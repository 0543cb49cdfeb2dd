"""Reads of SQL stores: one snapshot, flat memory, and few queries, however long a journal is."""

from __future__ import annotations

import tracemalloc

import pytest
from journal_place import TOPIC, append, at, delete, purge, replicate, seq_nrs

from strandline.journal.model import MAX_SEQ_NR

on_both = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)


@on_both
def test_a_reader_sees_one_state_while_the_journal_changes(store):
    """A delete, a purge and a new life are replicated after the first row was read."""
    replicate(store, *(append(n, n * 100 + 1, n * 100 + 100) for n in range(200)))
    with store.open(TOPIC, 0, "a") as journal:
        rows = journal.rows(1, MAX_SEQ_NR)
        read = [next(rows).event.seq_nr]
        replicate(store, append(200, 20_001))
        replicate(store, delete(201, 10_000))
        replicate(store, purge(202), append(203, 1, 7))
        read += [row.event.seq_nr for row in rows]
        assert (journal.pointer, journal.head.seq_nr) == (at(199), 20_000)
    assert read == [*range(1, 20_001)]
    assert seq_nrs(store) == [*range(1, 8)]


@on_both
def test_a_read_can_be_left_early(store):
    replicate(store, *(append(n, n * 100 + 1, n * 100 + 100) for n in range(10)))
    for _ in range(40):  # more than there can be snapshots
        with store.open(TOPIC, 0, "a") as journal:
            assert next(journal.rows(1, MAX_SEQ_NR)).event.seq_nr == 1
    replicate(store, append(10, 1_001))
    assert len(seq_nrs(store)) == 1_001


@on_both
def test_memory_does_not_grow_with_the_journal(store):
    peaks = []
    for batch in range(3):
        offsets = range(batch * 1_000, batch * 1_000 + 1_000)
        replicate(store, *(append(offset, offset * 20 + 1, offset * 20 + 20) for offset in offsets))
        tracemalloc.start()
        with store.open(TOPIC, 0, "a") as journal:
            assert sum(1 for _ in journal.rows(1, MAX_SEQ_NR)) == (batch + 1) * 20_000
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.3 * peaks[0], peaks


@pytest.fixture
def queries(monkeypatch, store) -> list[str]:
    asked: list[str] = []
    for name in ("fetch", "snapshot", "transaction"):
        own = getattr(store._tables, name)

        def counted(*given, own=own, name=name, **values):
            asked.append(name)
            return own(*given, **values)

        monkeypatch.setattr(store._tables, name, counted)
    return asked


@on_both
def test_a_short_journal_needs_one_query(store, queries):
    replicate(store, append(0, 1, 99))
    queries.clear()
    assert len(seq_nrs(store)) == 99
    assert queries == ["fetch"]


@on_both
def test_a_long_journal_is_not_sorted(place, store):
    """Otherwise the first row of a journal with a million events would need all of them."""
    replicate(store, append(0, 1, 200))
    statement = store._tables._statements["open"]
    values = {"topic": TOPIC, "partition": 0, "id": "a", "first": 1, "limit": 100}
    explain = "EXPLAIN QUERY PLAN " if place.address.startswith("sqlite:") else "EXPLAIN (COSTS OFF) "
    plan = " ".join(str(column) for row in place.execute(explain + statement, **values) for column in row)
    if place.address.startswith("sqlite:"):
        assert "TEMP B-TREE" not in plan
        assert "SCAN" not in plan
    else:
        assert plan.index("Sort") < plan.index("Limit")  # only the rows of the first page are sorted
        assert plan.count("Sort") == 2  # the node and its key
        assert "Seq Scan" not in plan


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("lives", [1, 2_000])
def test_rows_are_removed_through_their_key(place, store, lives):
    """Whatever the statistics say, a batch with many purges does not read all rows of the partition."""
    replicate(store, *(append(n, 1, entity=f"entity {n}") for n in range(lives)))
    place.execute("ANALYZE journal")
    array = "{" + ",".join(map(str, range(1_000))) + "}"
    values = dict.fromkeys(("since_orders", "since_offsets", "afters", "lasts"), array)
    statement = "EXPLAIN (COSTS OFF) " + store._tables._statements["remove_rows"]
    plan = " ".join(line for (line,) in place.execute(statement, number=1, partition=0, **values))
    assert "since_offset = gone.since_offset" in plan.partition("Index Cond:")[2], plan
