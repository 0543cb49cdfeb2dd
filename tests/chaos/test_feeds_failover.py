"""Masters of a Valkey Cluster are killed while feeds are written; what was acknowledged is there afterwards."""

from __future__ import annotations

import itertools
import os
import random
import threading

import pytest

from services import until
from services.valkey import ValkeyCluster
from strandline.clock import SystemClock
from strandline.errors import OutcomeUnknown, Unavailable
from strandline.feeds.model import AppendEntry, Entry, FeedLimits, SetFeed
from strandline.feeds.storage.redis import RedisFeedStore
from strandline.feeds.storage.redis_layout import list_key
from strandline.feeds.times import OperationClock

FEEDS = tuple(f"follower-{number}" for number in range(30))
LIMITS = FeedLimits(cap=3000, slack=50)
WRITERS = 3


class Fanout(threading.Thread):
    """Appends entries to all feeds, and repeats what failed until it is acknowledged."""

    def __init__(self, store: RedisFeedStore, ids, times: OperationClock) -> None:
        super().__init__(name="fanout")
        self._store, self._ids, self._times = store, ids, times
        self.stopping = threading.Event()
        self.acknowledged: dict[str, set[int]] = {feed: set() for feed in FEEDS}
        self.partial = 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            kept: list[AppendEntry] = []
            while kept or not self.stopping.is_set():
                new = [] if self.stopping.is_set() else [self._next() for _ in range(5)]
                kept = self._apply(kept[:200] + new) + kept[200:]
        except BaseException as error:
            self.error = error
            raise

    def _next(self) -> AppendEntry:
        return AppendEntry(self._times.next(), Entry(next(self._ids), b"metadata"), FEEDS)

    def _apply(self, operations: list[AppendEntry]) -> list[AppendEntry]:
        """Returns the operations for the feeds that failed."""
        again = []
        for operation, applied in zip(operations, self._store.apply(operations), strict=True):
            assert all(isinstance(error, Unavailable | OutcomeUnknown) for error in applied.failed.values())
            assert applied.accepted + len(applied.failed) == len(operation.feeds)
            for feed in operation.feeds:
                if feed not in applied.failed:
                    self.acknowledged[feed].add(operation.entry.id)
            self.partial += bool(applied.accepted and applied.failed)
            if applied.failed:
                again.append(AppendEntry(operation.time, operation.entry, tuple(applied.failed)))
        return again

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


def until_more(fanouts: list[Fanout], entries: int = 300) -> None:
    goals = [(fanout, fanout.count + entries) for fanout in fanouts]
    until(lambda: all(fanout.error or fanout.count >= goal for fanout, goal in goals), "more acknowledged entries")
    assert [fanout.error for fanout in fanouts] == [None] * len(fanouts)


def content(store: RedisFeedStore) -> dict[str, list[int]]:
    answers = store.read(FEEDS, 0, LIMITS.cap)
    assert {answer.status for answer in answers} == {"hit"}
    return {answer.name: [entry.id for entry in answer.entries] for answer in answers}


def check(found: dict[str, list[int]], before: dict[str, set[int]]) -> None:
    """Everything that was acknowledged before is there, except for what was trimmed; nothing is there twice."""
    for feed, ids in found.items():
        assert ids == sorted(set(ids), reverse=True)
        floor = ids[-1] if len(ids) == LIMITS.cap else -1
        assert {entry_id for entry_id in before[feed] if entry_id >= floor} <= set(ids)


def acknowledged(fanouts: list[Fanout]) -> dict[str, set[int]]:
    return {feed: set().union(*(fanout.acknowledged[feed].copy() for fanout in fanouts)) for feed in FEEDS}


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_acknowledged_entries_survive_the_failover_of_a_master(tmp_path, kills):
    dice = random.Random(int(os.environ.get("CHAOS_SEED", "1")))
    with ValkeyCluster(tmp_path) as cluster:
        store = RedisFeedStore(cluster.url, LIMITS, SystemClock(), replicas=1, wait_ms=300)
        times = OperationClock(SystemClock())
        created = [SetFeed(times.next(), feed, ()) for feed in FEEDS]
        until(lambda: not any(one.failed for one in store.apply(created)), "the feeds on all replicas")
        ids = itertools.count(1)
        fanouts = [Fanout(store, ids, times) for _ in range(WRITERS)]
        try:
            for _ in range(kills):
                until_more(fanouts)
                victim = cluster.master_of(list_key(dice.choice(FEEDS)))
                before = acknowledged(fanouts)
                victim.kill()
                until_more(fanouts)  # the other masters go on
                until(lambda: {one.status for one in store.read(FEEDS, 0, 1)} == {"hit"}, "the failover")
                check(content(store), before)
                cluster.bring_back()
        finally:
            for fanout in fanouts:
                fanout.stopping.set()
            for fanout in fanouts:
                fanout.join()
        until_more(fanouts, 0)
        assert all(fanout.partial for fanout in fanouts), "no write has met the failover"
        final = acknowledged(fanouts)
        check(content(store), final)
        assert len({len(entries) for entries in final.values()}) == 1
        store.close()
