"""What every store of feeds promises: each sentence of the API, on every engine."""

from __future__ import annotations

import pytest
from feed_place import append, delete, do, drop, get, install, merge, since, unmerge

from strandline.feeds.model import Entry, FeedLimits
from strandline.log.cursors import Position

IDS = [-(2**63), -(2**53) - 1, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1]


def test_a_feed_that_was_never_set_is_missing_and_an_empty_one_is_a_hit(store):
    do(store, install(0, "ada"))
    assert get(store, "ada") == []
    assert get(store, "bob") is None
    assert since(store, "ada", 1) == []
    assert since(store, "bob", 1) is None


def test_an_append_reaches_the_feeds_that_exist_and_counts_them(store):
    do(store, install(0, "ada"), install(0, "bob"))
    assert do(store, append(1, 7, "ada", "bob", "eve")) == [2]
    assert (get(store, "ada"), get(store, "bob"), get(store, "eve")) == ([7], [7], None)


def test_an_append_before_the_feed_was_set_does_nothing(store):
    do(store, append(5, 7, "ada"), install(1, "ada"))
    assert get(store, "ada") == []


def test_entries_are_read_newest_first_by_position(store):
    do(store, install(0, "ada", *range(1, 101)))
    assert get(store, "ada", 0, 20) == [*range(100, 80, -1)]
    assert get(store, "ada", 20, 20) == [*range(80, 60, -1)]
    assert get(store, "ada", 95, 20) == [5, 4, 3, 2, 1]
    assert get(store, "ada", 100, 20) == []
    assert get(store, "ada", 3, 0) == []
    assert get(store, "ada", 0, 0) == []


def test_ids_are_exact_and_ordered(store):
    """Over the whole range of 64 bits, with every neighbour of 2^53."""
    do(store, install(0, "ada"), *(append(n, entry_id, "ada") for n, entry_id in enumerate(IDS, 1)))
    assert get(store, "ada") == sorted(IDS, reverse=True)
    assert since(store, "ada", 2**63 - 2) == [2**63 - 1]


def test_metadata_are_kept_and_empty_ones_stay_empty(store):
    entries = [Entry(1), Entry(2, b""), Entry(3, bytes(range(256)) * 256)]
    do(store, install(0, "ada"), *(append(n, entry, "ada") for n, entry in enumerate(entries, 1)))
    assert store.read(["ada"], 0, 9)[0].entries == tuple(reversed(entries))
    assert store.read_since("ada", 0) == tuple(reversed(entries))


def test_entries_out_of_order_are_sorted_in_and_duplicates_discarded(store):
    history = [append(1, 30, "ada"), append(2, 10, "ada"), append(3, 20, "ada")]
    do(store, install(0, "ada"), *history, *history, append(9, 20, "ada"))
    assert get(store, "ada") == [30, 20, 10]


def test_of_different_metadata_the_greater_wins(store):
    do(store, install(0, "ada"))
    for time, metadata in ((1, b"b"), (2, b"a"), (2, b"c"), (2, b"b"), (3, None)):
        do(store, append(time, Entry(7, metadata), "ada"))
    assert store.read(["ada"], 0, 9)[0].entries == (Entry(7, b"c"),)


def test_a_delete_is_final(store):
    """Whether the append, a merge or a set comes later, and across a drop."""
    do(store, install(0, "ada", 1, 2), delete(5, 1, "ada"), append(9, 1, "ada"), merge(10, "ada", 1))
    assert get(store, "ada") == [2]
    do(store, install(20, "ada", 1, 3))
    assert get(store, "ada") == [3]
    do(store, drop(30, "ada"), install(40, "ada", 1, 4))
    assert get(store, "ada") == [4]


def test_a_delete_counts_the_feeds_that_exist_and_is_kept_for_those_that_do_not(store):
    do(store, install(0, "ada", 7))
    assert do(store, delete(1, 7, "ada", "eve")) == [1]
    assert get(store, "eve") is None
    do(store, install(2, "eve", 6, 7))
    assert get(store, "eve") == [6]


def test_a_merge_adds_history_to_a_feed_that_exists(store):
    do(store, install(0, "ada", 5))
    assert do(store, merge(1, "ada", 3, 9), merge(1, "eve", 3)) == [1, 0]
    assert (get(store, "ada"), get(store, "eve")) == ([9, 5, 3], None)


def test_an_unmerge_is_not_final(store):
    """A later follow merges the entries again; a delayed append from before the unfollow stays hidden."""
    do(store, install(0, "ada", 1), merge(5, "ada", 2, 3))
    assert do(store, unmerge(10, "ada", 2, 3, 4), unmerge(10, "eve", 2)) == [1, 0]
    assert get(store, "ada") == [1]
    do(store, append(9, 4, "ada"))
    assert get(store, "ada") == [1]
    do(store, merge(11, "ada", 2, 3, 4))
    assert get(store, "ada") == [4, 3, 2, 1]


def test_a_set_replaces_the_feed_and_later_appends_survive(store):
    do(store, install(0, "ada", 1, 2), append(5, 3, "ada"), append(20, 4, "ada"))
    assert do(store, install(10, "ada", 8)) == [1]
    assert get(store, "ada") == [8, 4]
    do(store, install(9, "ada", 9), append(9, 10, "ada"))
    assert get(store, "ada") == [8, 4]
    do(store, install(10, "ada", 9))
    assert get(store, "ada") == [9, 8, 4]


def test_a_drop_removes_the_feed(store):
    do(store, install(0, "ada", 1))
    assert do(store, drop(5, "ada"), append(6, 2, "ada"), merge(6, "ada", 3)) == [1, 0, 0]
    assert get(store, "ada") is None
    assert do(store, drop(6, "ada"), drop(6, "never")) == [0, 0]


def test_of_a_drop_and_a_set_the_newer_wins(store):
    do(store, install(10, "ada", 1), drop(5, "ada"))
    assert get(store, "ada") == [1]
    do(store, drop(20, "eve"), install(15, "eve", 1))
    assert get(store, "eve") is None
    do(store, install(21, "eve", 2))
    assert get(store, "eve") == [2]
    do(store, drop(21, "eve"))
    assert get(store, "eve") is None


def test_what_came_after_a_late_drop_survives_it(store):
    do(store, install(0, "ada", 1), append(30, 5, "ada"), append(10, 4, "ada"), drop(20, "ada"))
    assert get(store, "ada") is None
    do(store, install(25, "ada", 2))
    assert get(store, "ada") == [5, 2]


# -- since


def test_since_has_higher_ids_and_those_that_arrived_later(store):
    history = [append(n, entry_id, "ada") for n, entry_id in enumerate((10, 20, 30, 15, 5), 1)]
    do(store, install(0, "ada"), *history, *history)
    assert since(store, "ada", 20) == [30, 15, 5]
    assert since(store, "ada", 30) == [15, 5]
    assert since(store, "ada", 5) == [30, 20, 15, 10]


def test_since_an_unknown_id_has_the_higher_ids(store):
    do(store, install(0, "ada", 10, 30), append(1, 20, "ada"), append(2, 15, "ada"))
    assert since(store, "ada", 17) == [30, 20]
    assert since(store, "ada", 40) == []


def test_merged_history_is_no_news_but_higher_ids_are(store):
    do(store, install(0, "ada", 10), append(1, 20, "ada"), merge(2, "ada", 5, 25), append(3, 6, "ada"))
    assert since(store, "ada", 20) == [25, 6]


def test_since_keeps_the_order_of_arrival_across_a_set(store):
    do(store, install(0, "ada"), append(30, 20, "ada"), append(31, 15, "ada"), install(10, "ada", 5))
    do(store, append(32, 7, "ada"))
    assert since(store, "ada", 20) == [15, 7]


def test_since_keeps_the_order_of_arrival_if_a_set_is_repeated(store):
    """Also if an id was added several times, and each addition may still be shown."""
    first, several = install(0, "ada"), [append(3 - n, Entry(0, bytes([n])), "ada") for n in range(3)]
    do(store, first, *several, *(append(4 + n, entry_id, "ada") for n, entry_id in enumerate((1, 5, 2))))
    for _ in range(2):
        assert since(store, "ada", 5) == [2]
        do(store, first)


# -- the cap


@pytest.fixture
def small(place):
    return place.open(FeedLimits(cap=10, slack=3))


def test_a_feed_keeps_its_newest_ids_and_reads_never_show_the_slack(small):
    do(small, install(0, "ada"))
    for entry_id in range(1, 60):
        do(small, append(entry_id, entry_id, "ada"))
        assert get(small, "ada") == [*range(entry_id, max(entry_id - 10, 0), -1)]
    assert get(small, "ada", 8, 5) == [51, 50]


def test_an_old_id_does_not_come_back_into_a_full_feed(small):
    do(small, install(0, "ada", *range(11, 40)), append(50, 3, "ada"), merge(51, "ada", 4, 5))
    assert get(small, "ada") == [*range(39, 29, -1)]


def test_deleted_and_unmerged_ids_count_towards_the_cap(small):
    """Whatever the order."""
    do(small, install(0, "ada", *range(1, 31)), delete(1, 30, "ada"), unmerge(2, "ada", 29, 28))
    do(small, install(0, "eve"), delete(1, 30, "eve"), unmerge(2, "eve", 29, 28), merge(1, "eve", *range(1, 31)))
    assert get(small, "ada") == get(small, "eve") == [*range(27, 20, -1)]


def test_a_set_larger_than_the_cap_keeps_the_newest(store):
    do(store, install(0, "ada", *range(2000)))
    assert get(store, "ada") == [*range(1999, 1199, -1)]
    assert get(store, "ada", 790, 50) == [*range(1209, 1199, -1)]


def test_a_set_resets_the_floor(small):
    do(small, install(0, "ada", *range(100, 150)), install(1, "ada", 1, 2), append(2, 3, "ada"))
    assert get(small, "ada") == [3, 2, 1]


def test_a_delete_below_the_floor_outlives_a_set(small):
    do(small, install(0, "ada", *range(100, 150)), delete(1, 5, "ada"), install(2, "ada", 4, 5))
    assert get(small, "ada") == [4]


def test_many_duplicates_do_not_push_entries_out(small):
    do(small, install(0, "ada", *range(10)))
    for time in range(1, 100):
        do(small, append(time, 9, "ada"))
    assert get(small, "ada") == [*range(9, -1, -1)]


# -- many


def test_many_feeds_are_read_in_one_call(store):
    do(store, install(0, "ada", 1, 2, 3), install(0, "bob"))
    found = store.read(["bob", "eve", "ada", "ada"], 1, 1)
    assert [(one.name, one.status, [entry.id for entry in one.entries]) for one in found] == [
        ("bob", "hit", []),
        ("eve", "miss", []),
        ("ada", "hit", [2]),
        ("ada", "hit", [2]),
    ]
    assert store.read([], 0, 20) == []


def test_one_entry_reaches_ten_thousand_feeds(store):
    names = [f"feed-{number}" for number in range(10_000)]
    do(store, *(install(0, name) for name in names[::2]))
    assert do(store, append(1, 2**53 + 1, *names), delete(2, 5, *names)) == [5000, 5000]
    assert {one.status for one in store.read(names[1::2], 0, 1)} == {"miss"}
    assert {one.entries for one in store.read(names[::2], 0, 1)} == {(Entry(2**53 + 1),)}


def test_operations_of_one_batch_are_applied_in_order(store):
    found = do(store, append(1, 1, "ada"), install(0, "ada"), append(2, 2, "ada"), drop(3, "ada"))
    assert found == [0, 0, 1, 1]
    assert do(store) == []


def test_names_of_feeds_may_have_any_allowed_character(store):
    names = ["a.b", "user:1", "A_b-c", "x" * 255, "{ada}".strip("{}"), "..."]
    do(store, *(install(0, name, 1) for name in names))
    assert [one.status for one in store.read(names, 0, 1)] == ["hit"] * len(names)


def test_another_store_over_the_same_place_has_the_same_feeds(place):
    do(place.open(), install(0, "ada", 1, 2), delete(1, 2, "ada", "eve"))
    other = place.open()
    assert get(other, "ada") == [1]
    do(other, install(2, "eve", 2, 3))
    assert get(other, "eve") == [3]


# -- positions


def test_positions_are_kept_for_each_source_and_partition(place):
    store = place.open()
    assert store.positions("fanout") == {}
    store.save_positions("fanout", {0: Position(1, 5), 1: Position(2, -1)})
    store.save_positions("fanout", {0: Position(1, 2**40)})
    store.save_positions("other", {7: Position(3, 3)})
    assert place.open().positions("fanout") == {0: Position(1, 2**40), 1: Position(2, -1)}
    store.check()
