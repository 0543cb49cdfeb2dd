"""How actions change a journal, one by one and in batches, against a plain model."""

from __future__ import annotations

import msgspec
import pytest

from journal_actions import PlainJournal, logged, sequences
from strandline.journal import payloads
from strandline.journal.fold import Verdict, fold, is_void, plan_batch
from strandline.journal.model import Append, Delete, Head, LoggedAction, Mark, NewEvent, Payload, Purge
from strandline.log.cursors import Position

AT = Position(1, 100)
HEAD = Head(Position(1, 10), Position(1, 20), seq_nr=5, delete_to=2, created_ms=1, updated_ms=2)


class MemoryStore:
    """Heads and rows as dicts, changed by plans exactly as `JournalChange` describes."""

    def __init__(self):
        self.heads = {}
        self.rows = {}

    def apply(self, actions, *, adopted=False):
        plan = plan_batch(self.heads, actions, adopted=adopted)
        for change in plan.changes:
            entity = change.entity
            assert change.before == self.heads.get(entity)
            if change.purged and change.before is not None:
                self.rows = {
                    key: row for key, row in self.rows.items() if key[:2] != (entity, change.before.since)
                }
            if change.deleted:
                life = (entity, change.head.since)
                gone = [key for key in self.rows if key[:2] == life and key[2] <= change.head.delete_to]
                for key in gone:
                    del self.rows[key]
            for row in change.rows:
                self.rows[entity, change.head.since, row.event.seq_nr] = row
            self.heads.pop(entity, None)
            if change.head is not None:
                self.heads[entity] = change.head
        return plan

    def journal(self, entity="a"):
        """The journal as the plain model has it. All rows in the store must belong to it."""
        head = self.heads.get(entity)
        rows = {key[2]: row for key, row in self.rows.items() if key[0] == entity}
        assert all(key[1] == head.since for key in self.rows if key[0] == entity)
        events = {n: rows[n].event.payload.data for n in sorted(rows)}
        return (head and head.seq_nr, head and head.delete_to, events)


def plain(steps):
    journal = PlainJournal()
    for step in steps:
        journal.take(step)
    return (journal.seq_nr, journal.delete_to, journal.events)


@pytest.mark.parametrize("length", range(1, 6))
def test_every_short_sequence_and_every_split_result_in_the_plain_model(length):
    """The first part is replicated in one batch, the rest in a second one."""
    for steps in sequences(length):
        records, expected = logged(steps), plain(steps)
        for split in range(length + 1):
            store = MemoryStore()
            store.apply(records[:split])
            store.apply(records[split:])
            assert store.journal() == expected, (steps, split)


@pytest.mark.parametrize("length", range(1, 5))
def test_a_batch_results_in_what_its_actions_result_in_one_by_one(length):
    for steps in sequences(length):
        records = logged(steps)
        at_once, one_by_one = MemoryStore(), MemoryStore()
        at_once.apply(records)
        for record in records:
            one_by_one.apply([record])
        assert (at_once.heads, at_once.rows) == (one_by_one.heads, one_by_one.rows), steps


@pytest.mark.parametrize("length", range(1, 5))
def test_repeating_a_batch_changes_nothing_while_the_head_exists(length):
    """Actions at or below the cursor of the head are included in it already."""
    for steps in sequences(length):
        store = MemoryStore()
        store.apply(logged(steps))
        before = (dict(store.heads), dict(store.rows))
        if store.heads:
            store.apply(logged(steps))
            assert (store.heads, store.rows) == before, steps


def test_everything_before_the_last_purge_is_dropped():
    steps = (("append", 2), ("purge", 0), ("append", 1), ("delete", 1), ("purge", 0), ("append", 2))
    plan = plan_batch({}, logged(steps))
    [change] = plan.changes
    assert (change.before, change.purged.offset) == (None, 40)  # snapshots of the lives before it are deleted
    assert change.deleted is None
    assert [row.cursor.offset for row in change.rows] == [50, 50]


def test_appends_that_a_later_delete_covers_are_not_written_except_what_the_head_needs():
    plan = plan_batch({}, logged((("append", 1), ("append", 2), ("delete", 2))))
    [change] = plan.changes
    assert [row.event.seq_nr for row in change.rows] == [3]
    [change] = plan_batch({}, logged((("append", 2), ("delete", 2)))).changes
    assert change.rows == []
    assert (change.head.seq_nr, change.head.delete_to) == (2, 2)


def test_a_delete_that_the_head_includes_is_repeated_for_engines_without_transactions():
    store = MemoryStore()
    records = logged((("append", 2), ("delete", 1)))
    store.apply(records)
    [change] = plan_batch(store.heads, records).changes
    assert change.deleted == records[1].cursor
    assert (change.head, change.rows, change.purged) == (store.heads["a"], [], None)


@pytest.mark.parametrize(
    ("head", "action", "void"),
    [
        (None, Append(1, 1), False),
        (None, Append(7, 9), False),
        (None, Append(1, 1, expected=0), False),
        (None, Append(2, 2, expected=1), True),
        (None, Append(1, 1, since=AT), True),
        (HEAD, Append(6, 6), False),
        (HEAD, Append(9, 9), False),
        (HEAD, Append(5, 6), True),
        (HEAD, Append(1, 1), True),
        (HEAD, Append(6, 6, expected=5), False),
        (HEAD, Append(9, 9, expected=5), False),
        (HEAD, Append(6, 6, expected=4), True),
        (HEAD, Append(7, 7, expected=6), True),
        (HEAD, Append(6, 6, expected=0), True),
        (HEAD, Append(6, 6, since=HEAD.since), False),
        (HEAD, Append(6, 6, since=AT), True),
        (None, Delete(3), False),
        (None, Delete(3, since=AT), True),
        (HEAD, Delete(3, since=HEAD.since), False),
        (HEAD, Delete(3, since=AT), True),
        (None, Purge(), False),
        (None, Purge(if_cursor=AT), True),
        (HEAD, Purge(if_cursor=HEAD.cursor), False),
        (HEAD, Purge(if_cursor=HEAD.since), True),
    ],
)
def test_an_action_is_void_if_a_condition_of_it_does_not_hold(head, action, void):
    assert is_void(head, action) == void
    folded = fold(head, LoggedAction("a", AT, 9, action))
    if void:
        assert folded == (head, Verdict.VOID)
    else:
        assert folded.verdict is not Verdict.VOID
        assert head is None or folded.head != head
    assert fold(head, LoggedAction("a", AT, 9, action), adopted=True).verdict is not Verdict.VOID


def test_void_appends_are_counted_and_write_nothing():
    first, second = (LoggedAction("a", Position(1, n), 9, Append(1, 1, id=str(n)), value()) for n in range(2))
    plan = plan_batch({}, [first, second])
    assert plan.void == [second]
    assert [row.append_id for change in plan.changes for row in change.rows] == ["0"]


def value(*numbers):
    return payloads.encode([NewEvent(Payload("json", b"1"), (), n) for n in numbers or (1,)])[1]


def test_a_mark_changes_nothing_not_even_the_cursor():
    assert fold(HEAD, LoggedAction("a", AT, 9, Mark("m"))) == (HEAD, Verdict.NOTHING)
    assert fold(None, LoggedAction("a", AT, 9, Mark("m"))) == (None, Verdict.NOTHING)


def test_a_purge_of_an_absent_journal_does_nothing():
    assert fold(None, LoggedAction("a", AT, 9, Purge())) == (None, Verdict.NOTHING)


def test_the_life_of_a_journal_starts_with_the_action_that_creates_it():
    records = logged((("append", 1), ("append", 1), ("purge", 0), ("append", 1)))
    head, lives = None, []
    for record in records:
        head, _ = fold(head, record)
        lives.append(head and head.since)
    assert lives == [Position(1, 0), Position(1, 0), None, Position(1, 30)]


def test_an_append_sets_or_removes_the_expiry():
    head, _ = fold(None, LoggedAction("a", Position(1, 1), 1000, Append(1, 1, expire_after_ms=50)))
    assert (head.expire_after_ms, head.expire_on_ms) == (50, 1050)
    head, _ = fold(head, LoggedAction("a", Position(1, 2), 1010, Delete(1)))
    assert (head.expire_after_ms, head.expire_on_ms) == (50, 1050)
    head, _ = fold(head, LoggedAction("a", Position(1, 3), 2000, Append(2, 2)))
    assert (head.expire_after_ms, head.expire_on_ms) == (None, None)


def test_an_expiry_beyond_64_bits_ends_with_them():
    """A record of an adopted Kafka topic has the time that its producer gave."""
    head, _ = fold(None, LoggedAction("a", Position(1, 1), 2**63 - 10, Append(1, 1, expire_after_ms=50)))
    assert (head.expire_after_ms, head.expire_on_ms) == (50, 2**63 - 1)


def test_times_and_origin_of_a_head():
    head, _ = fold(None, LoggedAction("a", Position(1, 1), 1000, Append(1, 1), origin="first"))
    head, _ = fold(head, LoggedAction("a", Position(1, 2), 2000, Append(2, 2), origin="second"))
    assert (head.created_ms, head.updated_ms, head.origin) == (1000, 2000, "first")


def test_a_malformed_value_moves_the_pointer_and_is_reported():
    broken = LoggedAction("a", Position(1, 0), 9, Append(1, 1), b"{")
    wrong = LoggedAction("a", Position(1, 1), 9, Append(2, 3), value(2))
    fine = LoggedAction("a", Position(1, 2), 9, Append(4, 4), value(4))
    plan = plan_batch({}, [broken, wrong, fine])
    [change] = plan.changes
    assert change.head.seq_nr == 4
    assert [row.event.seq_nr for row in change.rows] == [4]
    assert [record for record, _ in plan.malformed] == [broken, wrong]


# -- adopted topics: kafka-journal's replicator


def adopted(head, *actions):
    for n, action in enumerate(actions):
        head, _ = fold(head, LoggedAction("a", Position(1, n), 9, action), adopted=True)
    return head and (head.seq_nr, head.delete_to)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([Append(1, 2)], (2, None)),
        ([Append(3, 4)], (4, 2)),
        ([Append(1, 3), Append(2, 2)], (2, None)),
        ([Append(1, 2, expected=7)], (2, None)),
        ([Delete(4)], (4, 4)),
        ([Append(1, 5), Delete(9)], (5, 5)),
        ([Append(1, 5), Delete(5), Append(3, 3), Delete(4)], (5, 5)),
        ([Append(1, 5), Purge(if_cursor=AT)], None),
        ([Append(1, 5), Purge(), Append(1, 1)], (1, None)),
    ],
)
def test_an_adopted_topic_is_folded_as_kafka_journal_does(actions, expected):
    assert adopted(None, *actions) == expected


def test_events_that_are_written_twice_on_an_adopted_topic_are_those_of_the_later_append():
    twice = [LoggedAction("a", Position(1, n), n, Append(1, 2), value(1, 2)) for n in range(2)]
    together, apart = MemoryStore(), MemoryStore()
    together.apply(twice, adopted=True)
    apart.apply(twice[:1], adopted=True)
    apart.apply(twice[1:], adopted=True)
    assert together.rows == apart.rows
    assert {row.cursor for row in together.rows.values()} == {twice[1].cursor}


def test_the_expiry_of_an_adopted_topic_is_in_the_value():
    encoding, data = payloads.encode([NewEvent(None, (), 1)], None, 700)
    record = LoggedAction("a", Position(1, 0), 1000, Append(1, 1, encoding), data)
    [change] = plan_batch({}, [record], adopted=True).changes
    assert (change.head.expire_after_ms, change.head.expire_on_ms) == (700, 1700)
    record = msgspec.structs.replace(record, cursor=Position(1, 1), action=Append(2, 2), value=value(2))
    [change] = plan_batch({"a": change.head}, [record], adopted=True).changes
    assert change.head.expire_on_ms is None
