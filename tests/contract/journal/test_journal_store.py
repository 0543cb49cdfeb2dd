"""The contract of `JournalStore`."""

from __future__ import annotations

import msgspec
import pytest
from journal_place import TOPIC, append, at, delete, head, purge, replicate, seq_nrs, stored

from strandline.errors import Conflict, Unavailable
from strandline.journal import payloads
from strandline.journal.model import (
    MAX_SEQ_NR,
    Append,
    DeadLetter,
    Head,
    JournalEvent,
    LoggedAction,
    Mark,
    NewEvent,
    Payload,
    Snapshot,
    StoredEvent,
)
from strandline.log.cursors import Position

TEXTS = [
    "a",
    "ä ö",
    "it's",
    'say "no"',
    "back\\slash",
    "{1,2}",
    "NULL",
    "\0",
    "\1",
    "a\0\1b\x010",
    "x" * 255,
    "🦈",
]


def test_a_journal_that_was_never_written_is_absent(store):
    with store.open(TOPIC, 0, "a") as journal:
        assert (journal.pointer, journal.head, [*journal.rows(1, 10)]) == (None, None, [])
    assert store.pointers(TOPIC) == {}
    assert store.event(TOPIC, "a", 1) is None


def test_events_are_stored_with_everything_that_their_append_had(store):
    events = [
        NewEvent(Payload("json", b'{"big": 1e400}'), ("red", "\0"), 1),
        NewEvent(Payload("text", "ö\0".encode()), (), 2),
        NewEvent(None, ("only a tag",), 4),
    ]
    encoding, value = payloads.encode(events, b'{"who": "ada"}')
    action = Append(1, 4, encoding, id="id-1", expire_after_ms=500)
    replicate(store, LoggedAction("a", at(7), 1234, action, value, "node 1", "2.0", (("trace", b"\0\xff"),)))
    assert stored(store) == [
        StoredEvent(
            JournalEvent(event.seq_nr, event.payload, event.tags, 1234, b'{"who": "ada"}'),
            at(7),
            "id-1",
            "node 1",
            (("trace", b"\0\xff"),),
        )
        for event in events
    ]
    assert head(store) == Head(at(7), at(7), 4, None, 1234, 1234, 500, 1734, "node 1")


@pytest.mark.parametrize("time_ms", [-1, 0, 2**63 - 1])
def test_an_event_of_any_time_is_stored(store, time_ms):
    """The producers of an adopted Kafka topic set the times of their records."""
    encoding, value = payloads.encode([NewEvent(None, (), 1)], None, 5)
    logged = LoggedAction("a", at(0), time_ms, Append(1, 1, encoding), value)
    dead = DeadLetter(0, at(1), time_ms, "bad", None, None)
    store.apply(TOPIC, 0, None, at(1), [logged], [dead], adopted=True)
    assert store.dead_letters(TOPIC, 9) == [dead]
    assert [row.event.timestamp_ms for row in stored(store)] == [time_ms]
    assert (head(store).created_ms, head(store).expire_on_ms) == (time_ms, min(time_ms + 5, 2**63 - 1))


def test_a_binary_payload_keeps_its_bytes(store):
    data = bytes(range(256))
    encoding, value = payloads.encode([NewEvent(Payload("binary", data), (), 1)])
    replicate(store, LoggedAction("a", at(0), 0, Append(1, 1, encoding), value))
    assert stored(store)[0].event.payload == Payload("binary", data)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_an_id(store, text):
    action = msgspec.structs.replace(append(0, 1, entity=text, id=text, expire_after_ms=0), origin=text)
    replicate(store, action, append(1, 1, entity="other"))
    replicate(store, append(2, 2, entity=text))
    assert seq_nrs(store, text) == [1, 2]
    assert head(store, text).origin == text
    assert stored(store, text)[0].append_id == text
    assert [entity for entity, _ in store.expired(TOPIC, 10**15, 10)] == []
    replicate(store, append(3, 3, entity=text, expire_after_ms=0))
    assert store.expired(TOPIC, 10**15, 10) == [(text, at(3))]


# -- the pointer


def test_a_batch_that_does_not_start_at_the_pointer_changes_nothing(store):
    replicate(store, append(4, 1))
    for after in (None, at(3), at(5), Position(2, -1)):
        with pytest.raises(Conflict, match="replicated up to 001-0001-000000000000000004"):
            store.apply(TOPIC, 0, after, at(9), [append(9, 2)])
    assert store.pointers(TOPIC) == {0: at(4)}
    assert seq_nrs(store) == [1]


def test_a_first_batch_must_start_at_the_beginning(store):
    with pytest.raises(Conflict, match="replicated up to BEGIN"):
        store.apply(TOPIC, 0, at(3), at(9), [append(9, 1)])
    assert store.pointers(TOPIC) == {}
    assert head(store) is None


def test_the_pointer_moves_even_if_nothing_else_changes(store):
    store.apply(TOPIC, 0, None, at(5), [LoggedAction("a", at(5), 1, Mark("m"))])
    store.apply(TOPIC, 0, at(5), Position(2, 0), [])
    with store.open(TOPIC, 0, "a") as journal:
        assert (journal.pointer, journal.head) == (Position(2, 0), None)


def test_partitions_and_topics_are_independent(store):
    store.apply(TOPIC, 0, None, at(0), [append(0, 1)])
    store.apply(TOPIC, 7, None, at(0), [append(0, 1, 2, entity="b")])
    store.apply("other topic", 0, None, at(3), [append(3, 5)])
    assert store.pointers(TOPIC) == {0: at(0), 7: at(0)}
    assert store.pointers("other topic") == {0: at(3)}
    assert seq_nrs(store) == [1]
    with store.open(TOPIC, 7, "b") as journal:
        assert [row.event.seq_nr for row in journal.rows(1, 9)] == [1, 2]
    with store.open("other topic", 0, "a") as journal:
        assert [row.event.seq_nr for row in journal.rows(1, 9)] == [5]


def test_an_action_at_or_below_the_cursor_of_the_head_is_a_no_op(store):
    replicate(store, append(3, 1, 2))
    before = head(store)
    store.apply(TOPIC, 0, at(3), at(4), [append(2, 3), append(3, 3)])
    assert head(store) == before
    assert seq_nrs(store) == [1, 2]


def test_void_appends_are_not_stored(store):
    replicate(store, append(0, 1, 2), append(1, 2, 3), append(2, 3, expected=1), append(3, 3, expected=2))
    assert [(row.event.seq_nr, row.cursor) for row in stored(store)] == [(1, at(0)), (2, at(0)), (3, at(3))]


# -- reading


@pytest.mark.parametrize("count", [99, 100, 101, 1000, 12_345])
def test_a_journal_of_any_length_is_read_in_order(store, count):
    replicate(store, *(append(n, n * 50 + 1, min(n * 50 + 50, count)) for n in range(-(-count // 50))))
    assert seq_nrs(store) == [*range(1, count + 1)]
    assert seq_nrs(store, first=count - 1) == [count - 1, count]
    assert seq_nrs(store, first=90, last=95) == [*range(90, 96)]
    assert seq_nrs(store, first=count + 1) == []


def test_rows_may_start_later_than_announced(store):
    replicate(store, *(append(n, n + 1) for n in range(300)))
    for first in (5, 100, 101, 102, 250, 301):
        with store.open(TOPIC, 0, "a") as journal:
            assert [row.event.seq_nr for row in journal.rows(first, 260)] == [*range(first, 261)]


def test_large_events_are_read_completely(store):
    """The size of pages follows the size of the events."""
    events = [NewEvent(Payload("text", b"x" * 300_000), (), n) for n in range(1, 151)]
    encoding, value = payloads.encode(events)
    replicate(store, LoggedAction("a", at(0), 0, Append(1, 150, encoding), value), append(1, 151, 400))
    assert seq_nrs(store) == [*range(1, 401)]


def test_gaps_and_the_largest_seq_nr(store):
    replicate(store, append(0, 5), append(1, MAX_SEQ_NR - 1), append(2, MAX_SEQ_NR))
    assert seq_nrs(store) == [5, MAX_SEQ_NR - 1, MAX_SEQ_NR]


def test_only_the_pointer_and_the_head(store):
    replicate(store, append(0, 1, 3))
    with store.open(TOPIC, 0, "a", None) as journal:
        assert (journal.pointer, journal.head.seq_nr, [*journal.rows(1, 3)]) == (at(0), 3, [])


def test_one_event(store):
    replicate(store, append(0, 1, 3, id="one"), delete(1, 1))
    assert store.event(TOPIC, "a", 2).append_id == "one"
    assert store.event(TOPIC, "a", 1) is None
    assert store.event(TOPIC, "a", 4) is None
    replicate(store, purge(2), append(3, 1, id="two"))
    assert store.event(TOPIC, "a", 1).append_id == "two"
    assert store.event(TOPIC, "a", 2) is None


# -- lives


def test_a_new_life_has_nothing_of_the_old_one(store, place):
    replicate(store, append(0, 1, 5))
    replicate(store, purge(1))
    assert head(store) is None
    assert place.stored_seq_nrs() == []
    replicate(store, append(2, 1, 2))
    replicate(store, delete(3, 1), purge(4), append(5, 3))
    assert head(store).since == at(5)
    assert place.stored_seq_nrs() == [3]


def test_a_purge_of_more_rows_than_one_statement_deletes(store, place):
    for batch in range(5):
        replicate(store, *(append(n, n * 100 + 1, n * 100 + 100) for n in range(batch * 100, batch * 100 + 100)))
    replicate(store, append(500, 50_001, entity="b"), delete(501, 45_000))
    assert len(place.stored_seq_nrs()) == 5_001
    replicate(store, purge(502))
    assert place.stored_seq_nrs() == [50_001]


def test_an_adopted_topic_replaces_events_of_the_same_seq_nr(store):
    replicate(store, append(0, 1, 5), adopted=True)
    replicate(store, append(1, 3, id="again"), adopted=True)
    assert head(store).seq_nr == 3
    replicate(store, append(2, 4, 6, id="more"), adopted=True)
    assert [row.append_id for row in stored(store)] == [None, None, "again", "more", "more", "more"]
    replicate(store, purge(3), adopted=True)
    assert seq_nrs(store) == []


# -- snapshots


def test_snapshots(store):
    since = at(0)
    replicate(store, append(0, 1, 9))
    for payload in (Payload("json", b"[1]"), None, Payload("binary", b"\0\xff")):
        store.save_snapshot(TOPIC, "a", since, Snapshot(5, payload))
        assert store.snapshot(TOPIC, "a", since, 9) == Snapshot(5, payload)
    store.save_snapshot(TOPIC, "a", since, Snapshot(7, None))
    assert [store.snapshot(TOPIC, "a", since, most).seq_nr for most in (5, 6, 7, MAX_SEQ_NR)] == [5, 5, 7, 7]
    assert store.snapshot(TOPIC, "a", since, 4) is None
    assert store.snapshot(TOPIC, "b", since, 9) is None
    for _ in range(2):
        store.delete_snapshot(TOPIC, "a", since, 7)
        assert store.snapshot(TOPIC, "a", since, 9).seq_nr == 5


def test_a_snapshot_belongs_to_one_life(store):
    """A purge removes the snapshots of older lives, not those of a life that began after it in the log."""
    replicate(store, append(0, 1, 9))
    store.save_snapshot(TOPIC, "a", at(0), Snapshot(9, Payload("text", b"old")))
    store.save_snapshot(TOPIC, "a", at(8), Snapshot(1, Payload("text", b"new")))
    assert store.snapshot(TOPIC, "a", at(8), 9).payload.data == b"new"
    replicate(store, purge(5))
    assert store.snapshot(TOPIC, "a", at(0), 9) is None
    assert store.snapshot(TOPIC, "a", at(8), 9).payload.data == b"new"


def test_a_snapshot_can_come_before_the_first_batch(store):
    store.save_snapshot(TOPIC, "a", at(0), Snapshot(1, None))
    assert store.snapshot(TOPIC, "a", at(0), 1) == Snapshot(1, None)
    replicate(store, append(0, 1))
    assert store.snapshot(TOPIC, "a", at(0), 1) == Snapshot(1, None)


# -- expiry


def test_expired_journals_come_oldest_first(store):
    replicate(
        store,
        append(0, 1, entity="b", expire_after_ms=500),
        append(1, 1, entity="a", expire_after_ms=100),
        append(2, 1, entity="c"),
        append(3, 1, entity="d", expire_after_ms=5_000),
    )
    assert store.expired(TOPIC, 1_100, 10) == []
    assert store.expired(TOPIC, 1_101, 10) == [("a", at(1))]
    assert store.expired(TOPIC, 2_000, 10) == [("a", at(1)), ("b", at(0))]
    assert store.expired(TOPIC, 2_000, 1) == [("a", at(1))]
    replicate(store, append(4, 2, entity="a"), purge(5, "b"))
    assert store.expired(TOPIC, 2_000, 10) == []


# -- dead letters


def test_records_that_cannot_be_decoded_are_set_aside(store):
    dead = DeadLetter(0, at(1), 77, "the key is \0 bad", b"\xff", None, (("journal.action", b"{"),))
    broken = msgspec.structs.replace(append(2, 2), value=b"{", headers=(("h", b"1"),))
    assert replicate(store, append(0, 1), broken, append(3, 3), dead=[dead]) == 2
    first, second = store.dead_letters(TOPIC, 10)
    assert first == msgspec.structs.replace(dead, reason="the key is \ufffd bad")
    assert (second.cursor, second.key, second.value, second.headers) == (at(2), b"a", b"{", (("h", b"1"),))
    assert "not json" in second.reason
    brief = [msgspec.structs.replace(one, key=None, value=None, headers=()) for one in (first, second)]
    assert store.dead_letters(TOPIC, 10, brief=True) == brief
    assert seq_nrs(store) == [1, 3]


def test_dead_letters_are_listed_in_pages(store):
    for partition in (0, 1):
        letters = [DeadLetter(partition, at(n), 0, "bad", None, None) for n in range(3)]
        store.apply(TOPIC, partition, None, at(3), [], letters)
    found, after = [], None
    while page := store.dead_letters(TOPIC, 2, after):
        found += page
        after = (page[-1].partition, page[-1].cursor)
    assert [(one.partition, one.cursor.offset) for one in found] == [(p, n) for p in (0, 1) for n in range(3)]


# -- forgetting


def test_topics_of_which_something_is_stored(store):
    assert store.topics() == []
    replicate(store, append(0, 1))
    store.save_snapshot("other topic", "a", at(0), Snapshot(1, None))
    assert sorted(store.topics()) == sorted([TOPIC, "other topic"])
    store.forget(TOPIC)
    assert store.topics() == ["other topic"]


def test_a_forgotten_topic_leaves_nothing_behind(store):
    replicate(store, append(0, 1, 3, expire_after_ms=0), dead=[DeadLetter(0, at(0), 0, "bad", None, None)])
    store.save_snapshot(TOPIC, "a", at(0), Snapshot(1, None))
    store.apply("other topic", 0, None, at(0), [append(0, 1, 2)])
    for _ in range(2):
        store.forget(TOPIC)
        assert store.pointers(TOPIC) == {}
        assert (head(store), seq_nrs(store)) == (None, [])
        assert store.snapshot(TOPIC, "a", at(0), 9) is None
        assert store.expired(TOPIC, 10**15, 9) == []
        assert store.dead_letters(TOPIC, 9) == []
    with store.open("other topic", 0, "a") as journal:
        assert len([*journal.rows(1, 9)]) == 2
    replicate(store, append(5, 1))
    assert seq_nrs(store) == [1]


def test_a_closed_store_is_unavailable(place):
    store = place.open()
    store.close()
    for call in (lambda: store.pointers(TOPIC), lambda: head(store), lambda: replicate(store, append(0, 1))):
        with pytest.raises(Unavailable):
            call()
    store.close()


def test_another_connection_sees_what_was_applied(place):
    replicate(place.open(), append(0, 1, 2))
    assert seq_nrs(place.open()) == [1, 2]
