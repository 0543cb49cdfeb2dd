"""Where the stores of a contract test are: one subclass per engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from services.valkey import ValkeyCluster, ValkeyServer
from strandline.clock import ManualClock
from strandline.engine.sqlite_database import SqliteDatabase
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
from strandline.feeds.storage.redis import RedisFeedStore
from strandline.feeds.storage.sql import SqlFeedStore
from strandline.feeds.times import of_ms

START_MS = 1_700_000_000_000


class FeedPlace(ABC):
    """Opens stores over the same feeds. The names of feeds are the test's own."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS)

    @abstractmethod
    def open(self, limits: FeedLimits | None = None) -> FeedStore: ...

    @abstractmethod
    def close(self) -> None: ...


class SqlitePlace(FeedPlace):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.database = SqliteDatabase(directory / "feeds.db")

    def open(self, limits: FeedLimits | None = None) -> FeedStore:
        return SqlFeedStore(self.database, limits or FeedLimits(), self.clock)

    def close(self) -> None:
        self.database.close()


class ValkeyPlace(FeedPlace):
    """A server or a Cluster. It is empty at first, because tests use the same names of feeds."""

    def __init__(self, server: ValkeyServer | ValkeyCluster) -> None:
        super().__init__()
        self.server = server
        self.replicas = 1 if isinstance(server, ValkeyCluster) else 0
        self._stores: list[FeedStore] = []
        server.flush()

    def open(self, limits: FeedLimits | None = None) -> FeedStore:
        limits = limits or FeedLimits()
        store = RedisFeedStore(self.server.url, limits, self.clock, replicas=self.replicas, wait_ms=60_000)
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()


# -- operations, with small numbers as times


def at(time: int) -> int:
    return of_ms(START_MS) + time


def append(time: int, entry: int | Entry, *feeds: str) -> Operation:
    return AppendEntry(at(time), entry if isinstance(entry, Entry) else Entry(entry), feeds)


def delete(time: int, entry_id: int, *feeds: str) -> Operation:
    return DeleteEntry(at(time), entry_id, feeds)


def install(time: int, feed: str, *ids: int) -> Operation:
    return SetFeed(at(time), feed, tuple(map(Entry, ids)))


def merge(time: int, feed: str, *ids: int) -> Operation:
    return MergeEntries(at(time), feed, tuple(map(Entry, ids)))


def unmerge(time: int, feed: str, *ids: int) -> Operation:
    return UnmergeEntries(at(time), feed, ids)


def drop(time: int, feed: str) -> Operation:
    return DropFeed(at(time), feed)


def do(store: FeedStore, *operations: Operation) -> list[int]:
    """Apply operations that must succeed; how many feeds each has found."""
    applied = store.apply(operations)
    assert [one.failed for one in applied] == [{}] * len(operations)
    return [one.accepted for one in applied]


def get(store: FeedStore, feed: str, offset: int = 0, length: int = 800) -> list[int] | None:
    """The ids of a feed, None if it is missing."""
    (answer,) = store.read([feed], offset, length)
    assert answer.name == feed
    assert answer.status in {"hit", "miss"}, answer.error
    return [entry.id for entry in answer.entries] if answer.status == "hit" else None


def since(store: FeedStore, feed: str, entry_id: int) -> list[int] | None:
    found = store.read_since(feed, entry_id)
    return None if found is None else [entry.id for entry in found]
