"""Random histories on every engine: all permutations, retries and duplicates give the feeds of the plain model."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from feed_place import FeedPlace, append, at, delete, install, unmerge
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from plain_feeds import PlainFeeds
from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    Entry,
    FeedLimits,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
)
from strandline.feeds.storage import FeedStore

FEEDS = ("ada", "bob", "eve", "joe")
NO_METADATA = (None, b"", b"a", b"bb")


def random_operation(chance: random.Random, *, sets: bool) -> Operation:
    time = chance.randrange(1, 1000)
    some = [Entry(chance.randrange(60), chance.choice(NO_METADATA)) for _ in range(chance.randrange(1, 5))]
    feeds = tuple(chance.sample(FEEDS, chance.randrange(1, 4)))
    kind = chance.choice(["append"] * 5 + ["delete", "merge", "unmerge"] + ["set"] * sets)
    if kind == "append":
        return append(time, some[0], *feeds)
    if kind == "delete":
        return delete(time, some[0].id, *feeds)
    if kind == "unmerge":
        return unmerge(time, feeds[0], *(entry.id for entry in some))
    if kind == "set":
        return SetFeed(at(time), feeds[0], tuple(some))
    return MergeEntries(at(time), feeds[0], tuple(some))


def renamed(operation: Operation, prefix: str) -> Operation:
    """The operation on other feeds, so that one store has the feeds of many permutations."""
    if isinstance(operation, AppendEntry | DeleteEntry):
        return msgspec.structs.replace(operation, feeds=tuple(prefix + name for name in operation.feeds))
    return msgspec.structs.replace(operation, feed=prefix + operation.feed)


def apply_with_retries(store: FeedStore, chance: random.Random, history: Sequence[Operation], prefix: str) -> None:
    """In batches of any size, some of them twice, as a caller does that got no answer."""
    created = [install(0, prefix + name) for name in FEEDS]
    rest = created + [renamed(one, prefix) for one in history]
    while rest:
        size = chance.randrange(1, 30)
        batch, rest = rest[:size], rest[size:]
        for _ in range(chance.choice([1, 1, 2])):
            assert not any(one.failed for one in store.apply(batch))


@pytest.mark.parametrize(("cap", "sets"), [(800, True), (12, False)], ids=["with sets", "with a small cap"])
def test_200_operations_permuted_100_ways_give_the_same_feeds(place, cap, sets):
    """The epoch of a set and the cap are permuted apart: an old set after a trim is a documented exception."""
    chance = random.Random(f"feeds {cap}")
    history = [random_operation(chance, sets=sets) for _ in range(200)]
    model = PlainFeeds(cap)
    for operation in [*(install(0, name) for name in FEEDS), *history]:
        model.apply(operation)
    expected = {name: model.entries(name) for name in FEEDS}
    assert all(expected.values())
    store = place.open(FeedLimits(cap=cap, slack=4))
    for number in range(100):
        prefix = f"{cap}.{number}."
        order = [*history, *chance.sample(history, 20)]
        chance.shuffle(order)
        apply_with_retries(store, chance, order, prefix)
        answers = store.read([prefix + name for name in FEEDS], 0, cap)
        assert {name: [*one.entries] for name, one in zip(FEEDS, answers, strict=True)} == expected, number


CAP = 5
IDS = st.integers(-3, 12)
ENTRIES = st.lists(st.builds(Entry, IDS, st.sampled_from(NO_METADATA)), max_size=8).map(tuple)
NAMES = st.lists(st.sampled_from(FEEDS[:2]), min_size=1, max_size=2, unique=True).map(tuple)
NAME = st.sampled_from(FEEDS[:2])
TIMES = st.integers(1, 60)


class FeedMachine(RuleBasedStateMachine):
    """A store and the plain model get the same operations in the same order, and answer the same.

    After more ids than the cap, a feed is only set or dropped with the latest time: see the documented exceptions.
    """

    place: FeedPlace
    number = 0

    @initialize()
    def open(self) -> None:
        FeedMachine.number += 1
        self.prefix = f"machine-{FeedMachine.number}-"
        self.store = self.place.open(FeedLimits(cap=CAP, slack=2))
        self.model = PlainFeeds(CAP)
        self.done: list[Operation] = []
        self.full: set[str] = set()
        self.latest = 100

    def apply(self, operation: Operation) -> None:
        self.done.append(operation)
        (applied,) = self.store.apply([renamed(operation, self.prefix)])
        assert applied.failed == {}
        assert applied.accepted == self.model.apply(operation)
        self.full |= {name for name, feed in self.model.feeds.items() if len(feed.counted()) > CAP}

    def restart_time(self, feed: str, time: int) -> int:
        if feed not in self.full:
            return at(time)
        self.latest += 1
        self.full.discard(feed)
        return at(self.latest)

    @rule(time=TIMES, entry=st.builds(Entry, IDS, st.sampled_from(NO_METADATA)), feeds=NAMES)
    def append(self, time, entry, feeds):
        self.apply(AppendEntry(at(time), entry, feeds))

    @rule(entry=st.builds(Entry, IDS, st.sampled_from(NO_METADATA)), feeds=NAMES)
    def append_now(self, entry, feeds):
        self.latest += 1
        self.apply(AppendEntry(at(self.latest), entry, feeds))

    @rule(time=TIMES, entry_id=IDS, feeds=NAMES)
    def delete(self, time, entry_id, feeds):
        self.apply(DeleteEntry(at(time), entry_id, feeds))

    @rule(time=TIMES, feed=NAME, entries=ENTRIES)
    def merge(self, time, feed, entries):
        self.apply(MergeEntries(at(time), feed, entries))

    @rule(time=TIMES, feed=NAME, ids=st.lists(IDS, max_size=5).map(tuple))
    def unmerge(self, time, feed, ids):
        self.apply(UnmergeEntries(at(time), feed, ids))

    @rule(time=TIMES, feed=NAME, entries=ENTRIES)
    def set(self, time, feed, entries):
        self.apply(SetFeed(self.restart_time(feed, time), feed, entries))

    @rule(time=TIMES, feed=NAME)
    def drop(self, time, feed):
        self.apply(DropFeed(self.restart_time(feed, time), feed))

    @rule(chance=st.randoms(use_true_random=False))
    def retry(self, chance):
        """Appends and deletes may be repeated at any time; a feed that was dropped meanwhile does not get them."""
        again = [one for one in self.done if isinstance(one, AppendEntry | DeleteEntry)]
        if again:
            self.apply(chance.choice(again))

    @invariant()
    def the_answers_are_the_same(self) -> None:
        for name in FEEDS[:2]:
            (answer,) = self.store.read([self.prefix + name], 0, 800)
            expected = self.model.entries(name)
            assert answer.status == ("miss" if expected is None else "hit")
            assert [*answer.entries] == (expected or [])

    @rule(feed=NAME, entry_id=IDS)
    def since(self, feed, entry_id):
        found = self.store.read_since(self.prefix + feed, entry_id)
        expected = self.model.since(feed, entry_id)
        assert (None if found is None else [*found]) == expected

    @rule(feed=NAME, offset=st.integers(0, 6), length=st.integers(0, 6))
    def page(self, feed, offset, length):
        (answer,) = self.store.read([self.prefix + feed], offset, length)
        assert [*answer.entries] == (self.model.entries(feed) or [])[offset : offset + length]


def test_the_store_and_the_model_agree(place):
    class Machine(FeedMachine):
        pass

    Machine.place = place
    run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
