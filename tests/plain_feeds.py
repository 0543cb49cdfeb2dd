"""Feeds as the documentation describes them, without any storage: the oracle of the tests.

A plain feed remembers every operation and computes its entries from all of them, so that nothing depends on the
order of arrival except what the documentation names. It never trims, and so has no floor.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.feeds.model import (
    AppendEntry,
    DeleteEntry,
    DropFeed,
    Entry,
    MergeEntries,
    Operation,
    SetFeed,
    UnmergeEntries,
    feeds_of,
)


class PlainFeed:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._sets: set[int] = set()
        self._drops: set[int] = set()
        self._deletes: set[tuple[int, int]] = set()
        self._unmerges: set[tuple[int, int]] = set()
        self._additions: set[tuple[int, int, bytes | None]] = set()
        self._arrivals: dict[int, tuple[int, bool]] = {}

    @property
    def exists(self) -> bool:
        return max(self._sets, default=-1) > max(self._drops, default=-1)

    @property
    def start(self) -> int:
        return max(self._sets | self._drops, default=-1)

    def apply(self, operation: Operation) -> int:
        """Returns 1 if the feed existed before."""
        existed = self.exists
        if isinstance(operation, DeleteEntry):
            self._deletes.add((operation.id, operation.time))
        elif isinstance(operation, DropFeed):
            self._drops.add(operation.time)
        elif isinstance(operation, SetFeed):
            self._sets.add(operation.time)
            self._forget_arrivals()
            self._add(operation.entries, operation.time, fresh=False)
        elif existed and isinstance(operation, AppendEntry):
            self._add([operation.entry], operation.time, fresh=True)
        elif existed and isinstance(operation, MergeEntries):
            self._add(operation.entries, operation.time, fresh=False)
        elif existed and isinstance(operation, UnmergeEntries):
            self._unmerges |= {(entry_id, operation.time) for entry_id in operation.ids}
        self._forget_arrivals()
        return int(existed)

    def _add(self, entries: Iterable[Entry], time: int, *, fresh: bool) -> None:
        for entry in entries:
            self._additions.add((entry.id, time, entry.metadata))
            if time >= self.start:
                self._arrivals.setdefault(entry.id, (len(self._arrivals) + self._forgotten, fresh))

    _forgotten = 0

    def _forget_arrivals(self) -> None:
        kept = self.counted()
        gone = [entry_id for entry_id in self._arrivals if entry_id not in kept]
        self._forgotten += len(gone)
        for entry_id in gone:
            del self._arrivals[entry_id]

    def counted(self) -> set[int]:
        """The ids of all operations that are not before the start."""
        added = {(entry_id, time) for entry_id, time, _ in self._additions}
        return {entry_id for entry_id, time in added | self._deletes | self._unmerges if time >= self.start}

    def entries(self) -> list[Entry]:
        buried = {entry_id for entry_id, _ in self._deletes}
        unmerged: dict[int, int] = {}
        for entry_id, time in self._unmerges:
            unmerged[entry_id] = max(time, unmerged.get(entry_id, -1))
        newest = set(sorted(self.counted(), reverse=True)[: self._cap])
        found: dict[int, bytes | None] = {}
        for entry_id, time, metadata in self._additions:
            hidden = entry_id in buried or time <= unmerged.get(entry_id, -1) or time < self.start
            if entry_id in newest and not hidden and is_greater(metadata, found.get(entry_id)):
                found[entry_id] = metadata
            elif entry_id in newest and not hidden:
                found.setdefault(entry_id, metadata)
        return [Entry(entry_id, found[entry_id]) for entry_id in sorted(found, reverse=True)]

    def since(self, entry_id: int) -> list[Entry]:
        rank = self._arrivals.get(entry_id, (None, False))[0]
        return [
            entry
            for entry in self.entries()
            if entry.id > entry_id
            or (rank is not None and self._arrivals[entry.id][1] and self._arrivals[entry.id][0] > rank)
        ]


def is_greater(one: bytes | None, other: bytes | None) -> bool:
    return one is not None and (other is None or one > other)


class PlainFeeds:
    """All feeds by name."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.feeds: dict[str, PlainFeed] = {}

    def apply(self, operation: Operation) -> int:
        """Returns the number of named feeds that existed."""
        return sum(
            self.feeds.setdefault(name, PlainFeed(self._cap)).apply(operation) for name in feeds_of(operation)
        )

    def entries(self, name: str) -> list[Entry] | None:
        """None if the feed does not exist."""
        feed = self.feeds.get(name)
        return feed.entries() if feed is not None and feed.exists else None

    def since(self, name: str, entry_id: int) -> list[Entry] | None:
        feed = self.feeds.get(name)
        return feed.since(entry_id) if feed is not None and feed.exists else None
