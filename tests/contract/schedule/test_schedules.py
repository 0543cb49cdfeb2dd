"""Schedules, counts and upkeep."""

from __future__ import annotations

import random

import pytest
from schedule_place import CLOCK, MEGABYTE, NOON, act, created, everything, leased, made, message, own

from strandline.errors import Conflict, Invalid, NotFound
from strandline.schedule.model import ListQuery, LoadCounts, LoadStep, Schedule
from strandline.schedule.storage import sql

HOUR = 3_600_000
DAY = 24 * HOUR


# -- schedules


def test_a_schedule_is_created_once_and_then_changed(store):
    """Settings that are left out have their defaults."""
    assert store.put(Schedule("mail", max_attempts=3, dedupe_ms=5))
    assert store.get("mail") == Schedule("mail", max_attempts=3, dedupe_ms=5)
    assert not store.put(Schedule("mail", max_lease_ms=9000))
    assert store.get("mail") == Schedule("mail", max_lease_ms=9000)
    assert [one.name for one in store.all()] == ["mail", "s"]
    assert store.get("none") is None


def test_the_buckets_of_a_schedule_cannot_change(store):
    made(store, "few", buckets=89)
    with pytest.raises(Conflict, match="89 buckets"):
        store.put(Schedule("few"))
    created(store, "a", schedule="few")
    assert store.messages.get("few", "a").bucket < 89


@pytest.mark.parametrize(
    "bad",
    [
        Schedule(""),
        Schedule("a/b"),
        Schedule("a.dead"),
        Schedule("-a"),
        Schedule("x" * 256),
        Schedule("a", buckets=0),
        Schedule("a", max_lease_ms=5),
        Schedule("a", max_body_bytes=0),
        Schedule("a", max_attempts=0),
        Schedule("a", dedupe_ms=-1),
        Schedule("a", max_future_ms=2**53),
    ],
)
def test_schedules_that_cannot_be(store, bad):
    with pytest.raises(Invalid):
        store.put(bad)


def test_a_schedule_that_is_created_again_shares_nothing_with_the_deleted_one(place, store):
    """Not even the ids within the dedupe window. The rows are removed later, in batches."""
    leased(store, *(f"m{n}" for n in range(5)))
    assert store.delete("s")
    assert not store.delete("s")
    with pytest.raises(NotFound):
        store.messages.create("s", [message("m1")])
    made(store)
    assert store.messages.list("s", ListQuery()) == []
    assert store.messages.counts("s", 0, NOON * 2).total == 0
    created(store, "m1")
    assert [store.purge(3), store.purge(3), store.purge(3)] == [3, 2, 0]
    assert [one.id for one in store.messages.list("s", ListQuery())] == ["m1"]
    place.now_ms += 2 * HOUR
    store.purge(3)
    assert place.execute("SELECT count(*) FROM schedules") == [(1,)]


# -- upkeep


def test_a_schedule_that_is_created_again_at_once_repeats_no_version(store):
    """A lease of the deleted schedule gives no right to the message of the new one, nor an earlier session."""
    seen, epochs, acts = set(), set(), []
    for _ in range(3):
        epochs.add(store.sessions.open("s", "ada", "node"))
        (lease,) = leased(store, "x")
        for old in acts:
            assert store.messages.delete("s", [old])[0].code == "stale_version"
        acts.append(act(lease))
        seen.add(lease.message.version)
        assert store.delete("s")
        made(store)
    assert (len(seen), len(epochs)) == (3, 3)


def test_tombstones_are_removed_after_the_dedupe_window(place, store):
    made(store, dedupe_ms=1000)
    created(store, *(f"m{n}" for n in range(7)))
    store.messages.delete("s", [own(f"m{n}") for n in range(5)])
    place.now_ms += 999
    assert store.purge(10) == 0
    place.now_ms += 1
    assert [store.purge(3), store.purge(3)] == [3, 2]
    assert place.execute("SELECT id FROM messages ORDER BY id") == [("m5",), ("m6",)]
    assert place.execute("SELECT id FROM message_bodies ORDER BY id") == [("m5",), ("m6",)]


def test_the_removal_of_a_tombstone_repeats_no_version(place, store):
    """Without a dedupe window, and with a create in the second of the first one."""
    made(store, dedupe_ms=0)
    (first,) = leased(store, "a")
    assert store.messages.delete("s", [act(first)])[0].status == "ok"
    store.purge(10)
    (second,) = leased(store, "a")
    assert second.message.version > first.message.version
    assert store.messages.delete("s", [own("a")])[0].code == "lease_active"
    assert store.messages.delete("s", [act(second)])[0].status == "ok"
    place.now_ms += 1000
    assert store.purge(10) == 1


def test_upkeep_removes_what_is_over(place, store):
    """Counts of the past, and consumers and nodes that left."""
    store.sessions.beat("node", 1000, CLOCK)
    store.sessions.open("s", "ada", "node")
    leased(store, "a")
    store.fold()
    place.now_ms += 2 * HOUR
    store.purge(10)
    store.purge(10)
    assert place.execute(
        "SELECT (SELECT count(*) FROM schedule_slots), (SELECT count(*) FROM schedule_nodes),"
        " (SELECT count(*) FROM schedule_consumers)"
    ) == [(0, 0, 0)]


# -- counts


def test_counts_by_state(place, store):
    """The order of the states decides: a held message whose lease has ended is available."""
    created(store, "new", at_ms=NOON + HOUR)
    created(store, "due", at_ms=NOON - HOUR)
    store.due.lease("s", [everything(lease_ms=1000)], MEGABYTE)
    created(store, "old", at_ms=NOON - 2 * HOUR)
    assert store.messages.counts("s", 0, NOON + DAY) == LoadCounts(3, 1, 1, 1, [LoadStep(0, 3, 1, 1)])
    place.now_ms += 999
    assert store.messages.counts("s", 0, NOON + DAY).processing == 1
    place.now_ms += 1
    assert store.messages.counts("s", 0, NOON + DAY) == LoadCounts(3, 1, 0, 2, [LoadStep(0, 3, 1, 0)])


@pytest.mark.parametrize(("late", "waiting"), [(-1, 1), (0, 0), (1, 0)])
def test_now_divides_the_counts(place, store, late, waiting):
    created(store, "a", at_ms=NOON + 1000)
    place.now_ms = NOON + 1000 + late
    assert store.messages.counts("s", NOON, NOON + HOUR).waiting == waiting


def test_a_range_is_half_open(store):
    created(store, "a", at_ms=NOON + 1000)
    ranges = [(NOON, NOON + 1000), (NOON, NOON + 1001), (NOON + 1000, NOON + HOUR), (NOON + 1001, NOON + HOUR)]
    assert [store.messages.counts("s", *one).total for one in ranges] == [0, 1, 1, 0]


def test_empty_steps_are_listed_and_the_last_step_may_be_shorter(store):
    created(store, "a", at_ms=NOON + 25)
    found = store.messages.counts("s", NOON, NOON + 35, 10)
    assert [(one.from_ms - NOON, one.total) for one in found.steps] == [(0, 0), (10, 0), (20, 1), (30, 0)]


def test_ranges_that_cannot_be_counted(store):
    for bad in [(NOON, NOON, None), (NOON, NOON - 1, None), (0, 10_001, 1), (0, 10, 0), (0, 10, -1)]:
        with pytest.raises(Invalid):
            store.messages.counts("s", *bad)
    assert len(store.messages.counts("s", 0, 10_000, 1).steps) == 10_000


@pytest.mark.parametrize("seed", range(3))
def test_counts_agree_with_the_messages(place, store, seed):
    """Whatever was done, whether changes are folded or not, and wherever the range begins."""
    chance = random.Random(seed)
    spread = [1000, 10 * 60_000, 5 * HOUR]
    for step in range(25):
        created(store, *(f"{step}-{n}" for n in range(6)), at_ms=NOON + chance.randrange(chance.choice(spread)))
        leases = store.due.lease("s", [everything(credit=4, lease_ms=200_000)], MEGABYTE).leases
        for lease in leases[:3]:
            chance.choice([store.messages.delete, store.messages.release, store.messages.extend])(
                "s", [act(lease, in_ms=chance.randrange(6, 250_000))]
            )
        store.messages.move("s", [own(f"{step}-5", NOON + chance.randrange(chance.choice(spread)))])
        store.messages.delete("s", [own(f"{step}-4")])
        place.now_ms += chance.randrange(60_000)
        if chance.random() < 0.3:
            store.fold()
        from_ms = NOON + chance.randrange(-HOUR, HOUR)
        to_ms = from_ms + chance.randrange(1, 6 * HOUR)
        step_ms = chance.choice([None, 60_000, HOUR, 7 * 60_000, chance.randrange(5_000, DAY)])
        messages = store.messages.list("s", ListQuery(limit=10_000))
        found = store.messages.counts("s", from_ms, to_ms, step_ms)
        length = step_ms or to_ms - from_ms
        expected = [
            by_state(messages, start, min(start + length, to_ms), place.now_ms)
            for start in range(from_ms, to_ms, length)
        ]
        assert found.steps == expected
        assert (found.total, found.waiting) == (sum(s.total for s in expected), sum(s.waiting for s in expected))


def by_state(messages, from_ms, to_ms, now_ms):
    inside = [one for one in messages if from_ms <= one.at_ms < to_ms]
    ahead = [one for one in inside if one.at_ms > now_ms]
    free = sum(one.consumer is None for one in ahead)
    return LoadStep(from_ms, len(inside), free, len(ahead) - free)


def test_counts_are_folded_in_parts(place, store, monkeypatch):
    """A node that was away for long has too many changes for one statement."""
    monkeypatch.setattr(sql, "_FOLDED_AT_ONCE", 3)
    created(store, *(f"m{n}" for n in range(4)))
    for n in range(8):
        created(store, f"later{n}", at_ms=NOON + n * HOUR)
    store.fold()
    assert place.execute("SELECT count(*) FROM schedule_slots WHERE part > 0") == [(0,)]
    assert store.messages.counts("s", NOON, NOON + DAY, HOUR).total == 12
    assert store.fold() == 0
