"""The lists of feeds in Valkey stay short, and short reads give the same answers as a fold of all records."""

from __future__ import annotations

import random
import uuid

import pytest

from strandline.clock import ManualClock
from strandline.feeds.fold import FeedState, since, visible
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    Entry,
    FeedLimits,
    MergeEntries,
    SetFeed,
    UnmergeEntries,
)
from strandline.feeds.records import of_operation
from strandline.feeds.storage.redis import RedisFeedStore
from strandline.feeds.storage.redis_layout import list_key

LIMITS = FeedLimits(cap=200, slack=10)
START = 1_700_000_000_000 << 20


@pytest.fixture
def feed():
    return f"feed-{uuid.uuid4().hex}"


@pytest.fixture
def store(valkey):
    opened = RedisFeedStore(valkey.url, LIMITS, ManualClock())
    yield opened
    opened.close()


class Model:
    """A feed of which all records are kept, folded by the rules alone."""

    def __init__(self) -> None:
        self.state = FeedState()

    def apply(self, operation) -> None:
        if self.state.exists or isinstance(operation, SetFeed | DropFeed | DeleteEntry):
            for record in of_operation(operation):
                self.state.apply(record)


def history(feed: str, seed: int, count: int):
    """Mostly new entries with rising ids, and some of everything else."""
    dice = random.Random(seed)
    disorder = dice.choice([0, 0.02, 0.3])
    other = dice.choice([0, 0.02, 0.1])
    yield SetFeed(START, feed, tuple(Entry(-number) for number in range(1, dice.choice([2, 30, 300]))))
    top = 0
    for number in range(1, count):
        time = START + number * 1000
        low = dice.randrange(max(0, top - 300), top + 1)
        if dice.random() < other:
            some = tuple(dice.randrange(max(0, top - 300), top + 1) for _ in range(dice.randrange(30)))
            entries = tuple(Entry(entry_id, b"merged") for entry_id in some)
            yield dice.choice(
                [
                    DeleteEntry(time, low, (feed,)),
                    UnmergeEntries(time, feed, some),
                    MergeEntries(time, feed, entries),
                    SetFeed(time - 20_000, feed, entries),
                    DropFeed(time - 20_000, feed),
                ]
            )
            continue
        top += dice.randrange(1, 4)
        late = dice.random() < disorder
        metadata = dice.choice([None, b"", b"m" * 30])
        yield AppendEntry(time - (5000 if late else 0), Entry(low if late else top, metadata), (feed,))


@pytest.mark.parametrize("seed", range(12))
def test_short_reads_agree_with_a_fold_of_all_records(store, feed, seed):
    model = Model()
    dice = random.Random(seed)
    for operation in history(feed, seed, 700):
        model.apply(operation)
        (applied,) = store.apply([operation])
        assert not applied.failed
        if dice.random() < 0.1:
            offset, length = dice.choice([(0, 20), (0, 1), (20, 20), (100, 50), (190, 50), (0, 500)])
            (answer,) = store.read([feed], offset, length)
            expected = visible(model.state, LIMITS.cap) if model.state.exists else None
            assert answer.status == ("miss" if expected is None else "hit")
            assert list(answer.entries) == (expected or [])[offset : offset + length]
            entry_id = dice.choice(list(model.state.ids) or [0])
            later = store.read_since(feed, entry_id)
            assert later == (None if expected is None else tuple(since(model.state, entry_id, LIMITS.cap)))


def test_lists_are_trimmed(store, feed, valkey):
    """A list has at most one record per id of the cap, the slack and the head."""
    store.apply([SetFeed(START, feed, ())])
    for number in range(1000):
        store.apply([AppendEntry(START + number, Entry(number), (feed,))])
        length = valkey.execute("LLEN", list_key(feed))
        assert length <= 1 + LIMITS.cap + LIMITS.slack
    (answer,) = store.read([feed], 0, 1000)
    assert [entry.id for entry in answer.entries] == list(range(999, 799, -1))


def test_a_feed_can_be_replaced_while_others_write_to_it(store, feed, valkey, monkeypatch):
    """What is appended between the read and the write of a set or a drop stays behind it."""
    store.apply([SetFeed(START, feed, (Entry(-1),))])
    other = RedisFeedStore(valkey.url, LIMITS, ManualClock())
    read, numbers = store._redis.read, iter(range(1, 100))

    def read_and_append(commands):
        found, number = read(commands), next(numbers)
        time = START + 1000 + number
        other.apply([AppendEntry(time, Entry(number), (feed,)), DeleteEntry(time, 1000 + number, (feed,))])
        return found

    with monkeypatch.context() as patched:
        patched.setattr(store._redis, "read", read_and_append)
        (replaced,) = store.apply([SetFeed(START + 10, feed, (Entry(500), Entry(1001)))])
        assert (replaced.failed, next(numbers)) == ({}, 2)  # at the first attempt
        (answer,) = other.read([feed], 0, 10)
        assert [entry.id for entry in answer.entries] == [500, 1]
        (dropped,) = store.apply([DropFeed(START + 20, feed)])
        assert (dropped.failed, dropped.accepted) == ({}, 1)
    assert other.read([feed], 0, 10)[0].status == "miss"
    other.apply([SetFeed(START + 30, feed, (Entry(1001), Entry(1003), Entry(600)))])
    (answer,) = other.read([feed], 0, 10)
    assert [entry.id for entry in answer.entries] == [600, 3, 1]  # all later than the drop
    other.close()
