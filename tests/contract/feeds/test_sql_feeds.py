"""What is particular to feeds in SQLite: expiry on the clock of the process, and how rows are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from feed_place import START_MS, SqlitePlace, append, delete, do, drop, get, install, merge

from strandline.engine.database import Tables
from strandline.feeds.model import FeedLimits, SetFeed
from strandline.feeds.times import of_ms

DAY_MS = 86_400_000


@pytest.fixture
def place(tmp_path: Path):
    opened = SqlitePlace(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def store(place):
    return place.open()


def rows(place: SqlitePlace, table: str) -> int:
    return place.database.fetch(f"SELECT count(*) FROM {table}", {})[0][0]  # noqa: S608 - the test's own words


def test_a_feed_that_nobody_reads_expires(place, store):
    do(store, install(0, "ada", 1), install(0, "eve", 1))
    place.clock.advance(20 * DAY_MS)
    get(store, "ada")
    do(store, append(1, 2, "ada", "eve"))  # does not renew
    place.clock.advance(2 * DAY_MS)
    assert store.expire() == 1
    assert (get(store, "ada"), get(store, "eve")) == ([2, 1], None)


def test_every_read_renews_the_life_of_a_feed_but_writes_at_most_once_an_hour(place, store):
    do(store, install(0, "ada", 1))
    place.clock.advance(3_599_999)
    get(store, "ada")
    assert place.database.fetch("SELECT read_ms FROM feed", {}) == [(START_MS,)]
    place.clock.advance(1)
    store.read_since("ada", 1)
    assert place.database.fetch("SELECT read_ms FROM feed", {}) == [(START_MS + 3_600_000,)]


def test_a_read_keeps_a_feed_alive_whose_life_is_short(place):
    store = place.open(FeedLimits(unread_ms=60_000))
    do(store, install(0, "ada", 1))
    for _ in range(3):
        place.clock.advance(40_000)
        assert get(store, "ada") == [1]
        assert store.expire() == 0


def test_an_expired_feed_is_missing_before_it_is_removed(place):
    store = place.open(FeedLimits(unread_ms=60_000))
    do(store, install(0, "ada", 1), install(0, "eve", 1), delete(1, 2, "eve"))
    place.clock.advance(60_001)
    later = 60_001 << 20
    assert (get(store, "ada"), store.read_since("ada", 0)) == (None, None)
    assert do(store, append(later, 2, "ada"), merge(later, "ada", 3), delete(later, 4, "ada")) == [0, 0, 0]
    assert do(store, install(0, "ada", 5), install(later, "eve", 2, 6), drop(later + 1, "eve")) == [0, 0, 1]
    assert (get(store, "ada"), get(store, "eve")) == ([5], None)
    assert store.expire() == 0


def test_tombstones_outlive_an_expired_feed(place, store):
    do(store, install(0, "ada", 1, 2), delete(1, 2, "ada"))
    store = place.open(FeedLimits(unread_ms=DAY_MS))
    place.clock.advance(2 * DAY_MS)
    assert store.expire() == 1
    do(store, SetFeed(of_ms(place.clock.now_ms()), "ada", ()))
    do(store, merge(3 * DAY_MS << 20, "ada", 1, 2))
    assert get(store, "ada") == [1]


def test_old_tombstones_and_drops_are_forgotten_and_leave_no_row(place, store):
    do(store, delete(0, 7, "ada"), drop(0, "eve"), install(0, "joe", 7), delete(0, 7, "joe"))
    place.clock.advance(10 * DAY_MS + 1)
    store.expire()
    assert rows(place, "record WHERE kind = 4") == 0
    assert place.database.fetch("SELECT name FROM feed", {}) == [("joe",)]
    assert get(store, "joe") == []  # the entry does not come back


def test_young_tombstones_stay(place, store):
    do(store, delete(0, 7, "ada"))
    place.clock.advance(10 * DAY_MS - 1)
    store.expire()
    do(store, install(1, "ada", 7))
    assert get(store, "ada") == []


def test_a_feed_is_trimmed_to_about_the_cap_and_the_slack(place):
    store = place.open(FeedLimits(cap=20, slack=5))
    do(store, install(0, "ada"))
    for entry_id in range(1, 400):
        do(store, append(entry_id, entry_id, "ada"))
    assert 20 <= rows(place, "record") < 80
    assert get(store, "ada") == [*range(399, 379, -1)]


def test_a_repeated_operation_adds_no_row(place, store):
    history = [append(1, 2, "ada"), delete(2, 1, "ada"), merge(3, "ada", 4)]
    do(store, install(0, "ada", 1), *history)
    before = rows(place, "record")
    do(store, *history)
    assert rows(place, "record") == before


def test_the_newest_entries_are_read_without_sorting(place, store):
    """The statement follows the primary key, so that it does not read the whole feed."""
    statements = Tables(place.database, "feeds", "strandline.feeds.storage", "feeds.sql")._statements
    values = {"name": "ada", "most": 40, "alive_ms": 0}
    plan = place.database.fetch(f"EXPLAIN QUERY PLAN {statements['newest']}", values)
    assert not any("TEMP B-TREE" in step[3] or "SCAN" in step[3] for step in plan)


def test_hidden_entries_do_not_shorten_a_page(place, store):
    """The read continues when too many of the newest records are hidden."""
    do(store, install(0, "ada", *range(800)))
    do(store, *(delete(n, entry_id, "ada") for n, entry_id in enumerate(range(100, 800), 1)))
    assert get(store, "ada", 0, 20) == [*range(99, 79, -1)]
    assert get(store, "ada", 90, 20) == [*range(9, -1, -1)]
