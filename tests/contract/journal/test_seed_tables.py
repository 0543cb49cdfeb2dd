"""The two tables of the seed, row by row: how records are stored, and what every action does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journal_place import TOPIC, append, at, delete, head, purge, replicate, seq_nrs

from strandline.journal.model import MAX_SEQ_NR, LoggedAction, Mark, Snapshot
from strandline.journal.storage import JournalStore

# -- cases on how records can be stored: actions and snapshots; the head, events and snapshots that they result in

CASES = {
    "events": ([append(0, 1, 3)], [], (3, None), [1, 2, 3], []),
    "more events": ([append(0, 1, 3), append(1, 4, 5)], [], (5, None), [1, 2, 3, 4, 5], []),
    "the first ones are deleted": ([append(0, 1, 5), delete(1, 2)], [], (5, 2), [3, 4, 5], []),
    "all events and a snapshot": ([append(0, 1, 5)], [5], (5, None), [1, 2, 3, 4, 5], [5]),
    "all events are deleted": ([append(0, 1, 5), delete(1, 5)], [], (5, 5), [], []),
    "all are deleted, with a snapshot": ([append(0, 1, 5), delete(1, 5)], [5], (5, 5), [], [5]),
    "all are deleted, with two snapshots": ([append(0, 1, 5), delete(1, 5)], [2, 5], (5, 5), [], [2, 5]),
}


def snapshots(store: JournalStore) -> list[int]:
    found: list[int] = []
    most = MAX_SEQ_NR
    while (snapshot := store.snapshot(TOPIC, "a", at(0), most)) is not None:
        found.insert(0, snapshot.seq_nr)
        most = snapshot.seq_nr - 1
    return found


@pytest.mark.parametrize("in_one_batch", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_how_records_are_stored(store, place, case, in_one_batch):
    actions, saved, numbers, events, kept = CASES[case]
    replicate(store, actions[0])
    for seq_nr in saved:
        store.save_snapshot(TOPIC, "a", at(0), Snapshot(seq_nr, None))
    for batch in [actions[1:]] if in_one_batch else [[action] for action in actions[1:]]:
        if batch:
            replicate(store, *batch)
    found = head(store)
    assert (found.seq_nr, found.delete_to) == numbers
    assert place.stored_seq_nrs() == seq_nrs(store) == events
    assert snapshots(store) == kept


# -- expected action behaviour


def state(store: JournalStore) -> tuple[object, ...] | None:
    found = head(store)
    return None if found is None else (found.seq_nr, found.delete_to, found.cursor, seq_nrs(store))


def nothing(store: JournalStore) -> None:
    """There is no entry in the store."""
    replicate(store, append(0, 1, entity="another"))


def entry(store: JournalStore) -> None:
    """There is an entry with events 3 to 5."""
    replicate(store, append(0, 1, 5), delete(1, 2))


ACTIONS: dict[str, tuple[Callable[[JournalStore], None], LoggedAction, tuple[object, ...] | None]] = {
    "mark, no entry": (nothing, LoggedAction("a", at(9), 0, Mark("m")), None),
    "mark, an entry": (entry, LoggedAction("a", at(9), 0, Mark("m")), (5, 2, at(1), [3, 4, 5])),
    "append, no entry": (nothing, append(9, 1, 2), (2, None, at(9), [1, 2])),
    "append, an entry": (entry, append(9, 6, 7), (7, 2, at(9), [3, 4, 5, 6, 7])),
    "delete, no entry": (nothing, delete(9, 4), (4, 4, at(9), [])),
    "delete, an entry": (entry, delete(9, 4), (5, 4, at(9), [5])),
    "delete of everything": (entry, delete(9, 5), (5, 5, at(9), [])),
    "delete of more than there is": (entry, delete(9, 8), (5, 5, at(9), [])),
    "delete of what is deleted": (entry, delete(9, 1), (5, 2, at(9), [3, 4, 5])),
    "purge, no entry": (nothing, purge(9), None),
    "purge, an entry": (entry, purge(9), None),
}


@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("case", ACTIONS)
def test_what_an_action_does(store, place, case, adopted):
    before, action, after = ACTIONS[case]
    before(store)
    replicate(store, action, adopted=adopted)
    assert state(store) == after
    others = [1] if before is nothing else []
    assert place.stored_seq_nrs() == sorted([*others, *seq_nrs(store)])
    assert store.pointers(TOPIC) == {0: at(9)}


def test_a_journal_continues_after_a_delete_created_it(store):
    """`deleteTo` of a journal that does not exist sets where it starts."""
    replicate(store, delete(0, 4))
    replicate(store, append(1, 5, 6))
    assert state(store) == (6, 4, at(1), [5, 6])


def test_a_journal_starts_again_after_a_purge(store):
    entry(store)
    replicate(store, purge(2))
    replicate(store, append(3, 1))
    assert state(store) == (1, None, at(3), [1])


def test_append_and_delete_remember_the_place_of_the_last_change(store):
    replicate(store, append(0, 1, 2))
    for action in (append(1, 3), delete(2, 1)):
        replicate(store, action)
        found = head(store)
        assert (found.cursor, found.updated_ms) == (action.cursor, action.timestamp_ms)
        assert (found.since, found.created_ms) == (at(0), 1000)
