"""The values of the feeds room.

A feed is a home timeline: a capped set of entries, newest first. Every write is an operation with a time, which it
gets once and keeps in every retry and replay.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from strandline.errors import StrandlineError

MIN_ID = -(2**63)
MAX_ID = 2**63 - 1
#: Operation times are not negative, so that every engine can store them as a signed integer.
MAX_TIME = 2**63 - 1
_LONGEST_RENEWAL_MS = 3_600_000


class Entry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An entry of a feed. The id is its order and its identity; empty metadata is not the same as none."""

    id: int
    metadata: bytes | None = None


# -- operations


class AppendEntry(msgspec.Struct, frozen=True, tag_field="operation", tag="append"):
    """Add a new entry to those of the feeds that exist."""

    time: int
    entry: Entry
    feeds: tuple[str, ...]


class DeleteEntry(msgspec.Struct, frozen=True, tag_field="operation", tag="delete"):
    """Remove an id from the feeds for good, also from those that do not exist yet."""

    time: int
    id: int
    feeds: tuple[str, ...]


class SetFeed(msgspec.Struct, frozen=True, tag_field="operation", tag="set"):
    """Create or replace a feed. Operations with this time or a later one survive."""

    time: int
    feed: str
    entries: tuple[Entry, ...]


class MergeEntries(msgspec.Struct, frozen=True, tag_field="operation", tag="merge"):
    """Add history to a feed if it exists."""

    time: int
    feed: str
    entries: tuple[Entry, ...]


class UnmergeEntries(msgspec.Struct, frozen=True, tag_field="operation", tag="unmerge"):
    """Hide what was added up to this time, if the feed exists."""

    time: int
    feed: str
    ids: tuple[int, ...]


class DropFeed(msgspec.Struct, frozen=True, tag_field="operation", tag="drop"):
    """Remove a feed. Of a drop and a set the one with the later time wins."""

    time: int
    feed: str


Operation = AppendEntry | DeleteEntry | SetFeed | MergeEntries | UnmergeEntries | DropFeed


def feeds_of(operation: Operation) -> tuple[str, ...]:
    """The feeds that an operation names."""
    return operation.feeds if isinstance(operation, AppendEntry | DeleteEntry) else (operation.feed,)


def narrowed(operation: Operation, feeds: tuple[str, ...]) -> Operation:
    """The same operation for some of its feeds only, with the same time."""
    if isinstance(operation, AppendEntry | DeleteEntry):
        return msgspec.structs.replace(operation, feeds=feeds)
    return operation


# -- answers


class Applied(msgspec.Struct, frozen=True):
    """The outcome of an operation in a store.

    `accepted` counts the named feeds that exist; after a drop or set: that existed before. `failed` has the feeds
    for which the operation has failed or its outcome is unknown; they are not counted.
    """

    accepted: int = 0
    failed: dict[str, StrandlineError] = {}


Status = Literal["hit", "miss", "error"]


class FeedAnswer(msgspec.Struct, frozen=True):
    """What a read found: a feed that exists, even if it is empty, is a `hit`. An `error` carries its cause."""

    name: str
    status: Status
    entries: tuple[Entry, ...] = ()
    error: StrandlineError | None = None


class DeadOperation(msgspec.Struct, frozen=True):
    """An operation that was refused or given up, for those feeds that it did not reach."""

    number: int
    failed_ms: int
    reason: str
    operation: Operation


class FeedLimits(msgspec.Struct, frozen=True):
    """How much a store keeps, and for how long.

    A feed keeps the newest `cap` ids, and up to `slack` more until it is trimmed. A feed that nobody reads for
    `unread_ms` expires. Tombstones and the times of drops are kept for `grace_ms`.
    """

    cap: int = 800
    slack: int = 50
    unread_ms: int = 21 * 86_400_000
    grace_ms: int = 10 * 86_400_000

    @property
    def renewal_ms(self) -> int:
        """A read renews the life of a feed if the last renewal is at least this old."""
        return min(_LONGEST_RENEWAL_MS, self.unread_ms // 2)
