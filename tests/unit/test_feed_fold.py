"""The state of a feed: every order of operations gives the same entries, and compaction changes no answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_feeds import PlainFeed
from strandline.feeds import fold, records
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    Entry,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
)
from strandline.feeds.records import CHECKPOINT, EPOCH, Record

NAME = "ada"
CREATE = SetFeed(0, NAME, ())


def append(time: int, entry_id: int, metadata: bytes | None = None) -> Operation:
    return AppendEntry(time, Entry(entry_id, metadata), (NAME,))


def delete(time: int, entry_id: int) -> Operation:
    return DeleteEntry(time, entry_id, (NAME,))


def unmerge(time: int, *ids: int) -> Operation:
    return UnmergeEntries(time, NAME, ids)


def merge(time: int, *ids: int) -> Operation:
    return MergeEntries(time, NAME, tuple(map(Entry, ids)))


def install(time: int, *ids: int) -> Operation:
    return SetFeed(time, NAME, tuple(map(Entry, ids)))


def drop(time: int) -> Operation:
    return DropFeed(time, NAME)


class Lost(Exception):
    """The history has one of the documented exceptions, in which the order of arrival matters."""


class Stored:
    """A feed in an engine that compacts after every operation, so that everything goes through its records."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.kept = fold.Compacted([], [])
        self._refused: list[int] = []

    def state(self) -> fold.FeedState:
        return fold.fold(records.decode(records.encode(one)) for one in (*self.kept.beside, *self.kept.listed))

    def apply(self, operation: Operation) -> None:
        state = self.state()
        if not state.exists and isinstance(operation, AppendEntry | MergeEntries | UnmergeEntries):
            if operation.time >= state.start:
                raise Lost("an operation arrived while the feed did not exist")
            return
        before = state.start
        for record in records.of_operation(operation):
            if (
                record.kind < EPOCH
                and state.floor is not None
                and record.id <= state.floor
                and record.time >= state.start
            ):
                self._refused.append(record.time)
            state.apply(record)
        if state.start > before and any(time >= state.start for time in self._refused):
            raise Lost("an id was refused by the floor before an older set or drop arrived")
        known = dict(state.ids)
        self.kept = fold.compact(state, self.cap)
        self._refused += [one.last for entry_id, one in known.items() if entry_id not in state.ids]

    def entries(self) -> list[Entry] | None:
        state = self.state()
        return fold.visible(state, self.cap) if state.exists else None


def stored(history: Iterable[Operation], cap: int = 800) -> Stored:
    feed = Stored(cap)
    for operation in history:
        feed.apply(operation)
    return feed


def plain(history: Iterable[Operation], cap: int = 800) -> PlainFeed:
    feed = PlainFeed(cap)
    for operation in history:
        feed.apply(operation)
    return feed


def ids(entries: Iterable[Entry]) -> list[int]:
    return [entry.id for entry in entries]


# -- every order of short histories


def choices(time: int) -> Iterator[Operation]:
    """One operation of each kind that can interact with the others, at a time."""
    yield append(time, 1, b"m%d" % (9 - time))
    yield append(time, 2)
    yield append(time, 3, b"m%d" % time)
    yield merge(time, 1, 2)
    yield delete(time, 2)
    yield delete(time, 3)
    yield unmerge(time, 1, 2)
    yield unmerge(time, 3)
    yield install(time)
    yield install(time, 1, 2)


def assert_all_orders_agree(history: Sequence[Operation], cap: int) -> int:
    """Every permutation, also with one operation repeated at the end, gives the entries of the model."""
    expected = plain([CREATE, *history], cap).entries()
    checked = 0
    for order in itertools.permutations(history):
        try:
            found = stored([CREATE, *order, order[0]], cap).entries()
        except Lost:
            continue
        assert found == expected, order
        checked += 1
    return checked


@pytest.mark.parametrize("cap", [1, 2])
def test_every_order_of_three_operations_gives_the_same_feed(cap):
    """Brute force over all histories of three operations with rising times, in all orders."""
    for history in itertools.product(*(choices(time) for time in (1, 2, 3))):
        assert assert_all_orders_agree(history, cap) >= 1


def test_every_order_of_operations_of_the_same_time_gives_the_same_feed():
    """Equal times have one outcome, too: an unmerge hides, and sets unite."""
    for history in itertools.product(*(choices(time) for time in (1, 1, 2))):
        assert assert_all_orders_agree(history, 1) >= 1


def test_every_order_of_four_operations_gives_the_same_feed():
    """With four operations a set can come between any two others."""
    for history in itertools.product(*([*choices(time)][::3] for time in (1, 2, 3, 4))):
        assert assert_all_orders_agree(history, 1) >= 1


def test_every_order_with_drops_gives_the_same_existing_feed():
    """Of a drop and a set the newer wins in any order, and what came after the drop survives it."""
    some = [lambda t: append(t, 1), lambda t: delete(t, 1), lambda t: install(t, 1, 2), drop]
    for history in itertools.product(some, repeat=4):
        operations = [one(time) for time, one in enumerate(history, 1)]
        found = set()
        for order in itertools.permutations(operations):
            try:
                entries = stored([CREATE, *order]).entries()
            except Lost:
                continue
            found.add(None if entries is None else tuple(entries))
        assert len(found) <= 1, operations


# -- histories from the documentation


def test_a_late_append_is_sorted_in():
    assert ids(stored([CREATE, append(1, 5), append(2, 3), append(3, 4)]).entries()) == [5, 4, 3]


def test_a_delete_is_final():
    """It also hides what is appended later, and what a later set contains."""
    assert stored([CREATE, delete(5, 7), append(9, 7)]).entries() == []
    assert ids(stored([CREATE, append(1, 7), delete(2, 7), install(9, 6, 7)]).entries()) == [6]
    assert ids(stored([delete(2, 7), install(9, 6, 7)]).entries()) == [6]


def test_a_tombstone_survives_a_drop():
    assert ids(stored([CREATE, delete(1, 7), drop(2), install(3, 6, 7)]).entries()) == [6]


def test_a_delete_below_the_floor_is_final_too():
    """A later set resets the floor, and the deleted id must not come back with it."""
    history = [install(1, 1, 2, 3), delete(2, 1), install(3, 1)]
    assert stored(history, cap=2).entries() == []


def test_an_unfollow_hides_delayed_appends_but_not_a_later_follow():
    unfollowed = [CREATE, append(1, 7), unmerge(5, 7, 8), append(4, 8)]
    assert stored(unfollowed).entries() == []
    assert ids(stored([*unfollowed, merge(6, 7, 8)]).entries()) == [8, 7]


def test_an_addition_at_the_time_of_the_unmerge_is_hidden():
    assert stored([CREATE, append(5, 7), unmerge(5, 7)]).entries() == []


def test_the_greater_metadata_wins_in_any_order():
    for first, second in itertools.permutations([b"a", b"b", b"", None], 2):
        found = stored([CREATE, append(1, 7, first), append(2, 7, second)]).entries()
        expected = max(first, second, key=lambda one: (one is not None, one or b""))
        assert found == [Entry(7, expected)]


def test_only_visible_additions_take_part_in_greater_wins():
    """The addition with the greater metadata was before the unfollow."""
    history = [append(1, 7, b"z"), append(9, 7, b"a"), unmerge(5, 7)]
    for order in itertools.permutations(history):
        assert stored([CREATE, *order]).entries() == [Entry(7, b"a")]


def test_deleted_ids_count_towards_the_cap():
    """Ten deletes leave 790 of 800, whatever the order."""
    appends = [append(n, n) for n in range(1, 851)]
    deletes = [delete(1000 + n, n) for n in range(841, 851)]
    for history in ([CREATE, *appends, *deletes], [CREATE, *deletes, *appends]):
        state = fold.fold(itertools.chain.from_iterable(map(records.of_operation, history)))
        assert len(fold.visible(state, 800)) == 790
        state.trim(800)
        assert len(fold.visible(state, 800)) == 790


def test_a_delete_before_the_epoch_does_not_count():
    history = [CREATE, delete(1, 9), install(5, 1, 2)]
    assert ids(stored(history, cap=2).entries()) == [2, 1]


def test_concurrent_later_appends_survive_a_set():
    assert ids(stored([CREATE, append(9, 3), append(1, 2), install(5, 1)]).entries()) == [3, 1]


def test_sets_of_the_same_time_unite():
    """A rebuild sets an empty feed first, and its content later with the same time."""
    assert ids(stored([CREATE, install(5), append(6, 3), install(5, 1, 2)]).entries()) == [3, 2, 1]


def test_an_older_set_or_drop_has_no_effect():
    assert ids(stored([install(5, 1), install(4, 2)]).entries()) == [1]
    assert ids(stored([install(5, 1), drop(4)]).entries()) == [1]
    assert stored([install(5, 1), drop(6), install(4, 2)]).entries() is None


def test_what_came_after_a_late_drop_survives_it():
    history = [CREATE, append(30, 1), drop(20), install(25, 2)]
    assert ids(stored(history).entries()) == [2, 1]


def test_ids_at_or_below_the_floor_are_refused():
    feed = stored([CREATE, *(append(n, n) for n in range(1, 6))], cap=3)
    assert feed.state().floor == 2
    feed.apply(append(9, 2))
    assert ids(feed.entries()) == [5, 4, 3]


def test_a_set_resets_the_floor():
    feed = stored([CREATE, *(append(n, n) for n in range(1, 6)), install(9, 1)], cap=3)
    assert (feed.state().floor, ids(feed.entries())) == (None, [1])


def test_a_checkpoint_may_be_anywhere_in_the_list():
    """An engine can trim the front of the list and write the checkpoint behind what is left."""
    added = [records.of_operation(append(n, n))[0] for n in range(1, 9)]
    state = fold.fold([*added[2:6], Record(CHECKPOINT, 2, 1), *added[6:]])
    assert state.exists
    assert state.floor == 2
    assert ids(fold.visible(state, 5)) == [8, 7, 6, 5, 4]


def test_forgetting_a_tombstone_does_not_bring_its_entry_back():
    state = stored([CREATE, append(9, 7), delete(5, 7)]).state()
    state.forget(before=6)
    assert state.tombstones == {}
    assert fold.visible(fold.fold(fold.compact(state, 800).listed), 800) == []


def test_a_forgotten_drop_leaves_nothing():
    state = stored([CREATE, append(9, 7), drop(8)]).state()
    state.forget(before=9)
    assert fold.compact(state, 800) == ([], [])


# -- since


def since(history: Sequence[Operation], entry_id: int) -> list[int]:
    """The answer from all records at once, which must be that of the stored feed."""
    found = fold.fold(itertools.chain.from_iterable(map(records.of_operation, history)))
    answer = ids(fold.since(found, entry_id, 800))
    assert ids(fold.since(stored(history).state(), entry_id, 800)) == answer
    return answer


def test_since_has_higher_ids_and_late_ones():
    history = [CREATE, append(1, 10), append(2, 20), append(3, 30), append(4, 15), append(5, 5)]
    assert since(history, 20) == [30, 15, 5]
    assert since(history, 15) == [30, 20, 5]


def test_since_an_unknown_id_has_higher_ids():
    history = [CREATE, append(1, 10), append(2, 20), append(3, 15)]
    assert since(history, 17) == [20]


def test_merged_history_is_no_news():
    history = [CREATE, append(1, 20), merge(2, 5, 30), append(3, 6), append(4, 5)]
    assert since(history, 20) == [30, 6]


def test_since_a_deleted_or_unmerged_entry_still_knows_when_it_came():
    history = [CREATE, append(1, 20), append(2, 15), delete(3, 20)]
    assert since(history, 20) == [15]
    assert since([*history[:3], unmerge(3, 20)], 20) == [15]


# -- compaction


def operations(most_time: int = 12) -> st.SearchStrategy[Operation]:
    time = st.integers(1, most_time)
    entry_id = st.sampled_from([-(2**63), -1, 1, 2, 3, 4, 2**63 - 1])
    several = st.lists(entry_id, max_size=4)
    metadata = st.sampled_from([None, b"", b"a", b"b"])
    return st.one_of(
        st.builds(append, time, entry_id, metadata),
        st.builds(append, time, entry_id, metadata),
        st.builds(delete, time, entry_id),
        st.builds(lambda t, some: merge(t, *some), time, several),
        st.builds(lambda t, some: unmerge(t, *some), time, several),
        st.builds(lambda t, some: install(t, *some), time, several),
        st.builds(drop, time),
    )


def answers(state: fold.FeedState, cap: int) -> tuple[object, ...]:
    asked = (-(2**63), -1, 1, 2, 3, 4, 2**63 - 1, 99)
    everything = [fold.since(state, entry_id, cap) for entry_id in asked]
    return state.exists, fold.visible(state, cap), everything


@settings(max_examples=500)
@given(st.lists(operations(), max_size=12), st.lists(operations(), max_size=6))
def test_compaction_changes_no_answer_now_or_later(history, more):
    """Also after records that arrive later, and with the list alone while the feed exists."""
    before = [record for one in (CREATE, *history) for record in records.of_operation(one)]
    after = [record for one in more for record in records.of_operation(one)]
    kept = fold.compact(fold.fold(before), 800)
    expected = answers(fold.fold(before + after), 800)
    assert answers(fold.fold([*kept.beside, *kept.listed, *after]), 800) == expected
    if kept.listed:
        assert answers(fold.fold(kept.listed), 800) == answers(fold.fold(before), 800)


@settings(max_examples=300)
@given(st.lists(operations(), max_size=12), st.integers(1, 4), st.integers(1, 4))
def test_trimming_changes_no_answer(history, cap, more):
    """Whenever an engine trims to the cap or to more than the cap."""
    state = fold.fold(record for one in history for record in records.of_operation(one))
    expected = answers(state, cap)
    state.trim(cap + more)
    assert answers(state, cap) == expected
    state.trim(cap)
    assert answers(state, cap) == expected


@settings(max_examples=500)
@given(st.data(), st.lists(operations(), max_size=10), st.integers(1, 4))
def test_a_permuted_history_with_duplicates_gives_the_same_feed(data, history, cap):
    """Apart from the documented exceptions, all orders agree with the plain model."""
    kept = [one for one in history if not isinstance(one, DropFeed)]
    order = data.draw(st.permutations(kept + kept[:3]))
    try:
        found = stored([CREATE, *order], cap).entries()
    except Lost:
        return
    assert found == plain([CREATE, *kept], cap).entries()


@given(st.lists(operations(), max_size=10))
def test_the_plain_model_and_the_fold_agree_in_every_answer(history):
    """Also about what is new since an entry, with drops and while the feed does not exist."""
    state, model = fold.FeedState(), PlainFeed(800)
    for one in history:
        if state.exists or not isinstance(one, AppendEntry | MergeEntries | UnmergeEntries):
            for record in records.of_operation(one):
                state.apply(record)
        model.apply(one)
    assert state.exists == model.exists
    if model.exists:
        assert fold.visible(state, 800) == model.entries()
        for asked in (-(2**63), -1, 1, 2, 3, 4, 99):
            assert fold.since(state, asked, 800) == model.since(asked)


# -- encoding


@given(
    st.integers(1, 7),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | st.binary(max_size=40),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_a_record_is_decoded_as_it_was_encoded(kind, entry_id, time, metadata, rank):
    record = Record(kind, entry_id, time, metadata, rank)
    assert records.decode(records.encode(record)) == record
    assert records.decode_id(records.encode_id(entry_id)) == entry_id


def test_encoded_ids_compare_as_the_ids_do():
    some = [-(2**63), -2, -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]
    assert sorted(map(records.encode_id, reversed(some))) == [records.encode_id(one) for one in some]
    plain_append = records.encode(records.of_operation(append(1, 5, b"x"))[0])
    assert plain_append[1:9] == records.encode_id(5)
    assert len(plain_append) == 18
