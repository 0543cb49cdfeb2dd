"""The contract of the feeds room, implemented in process (`local.py`) and over HTTP (`client/`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from strandline.feeds.fanout.values import FanoutLetter
from strandline.feeds.model import DeadOperation, Entry, FeedAnswer


class Feeds(ABC):
    """Home timelines. Thread-safe and synchronous.

    Writes may arrive late, twice or in any order: the feeds become the same. Every write has an operation time.
    Without `operation_time` (64 bits) or `operation_ms`, the server that first gets the write gives it one. A
    replay gives the original one. Invalid if the time is older than the grace time of the tombstones; the
    operation is a dead letter then.
    """

    @abstractmethod
    def append(
        self,
        entry: Entry,
        feeds: Sequence[str],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> int:
        """Add an entry to those of the feeds that exist; returns their number.

        Where a part of the store fails, the operation is retried later, and its feeds are not counted.
        """

    @abstractmethod
    def delete(
        self,
        entry: Entry | int,
        feeds: Sequence[str],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> int:
        """Remove an id for good, also from feeds that are set later; returns the number of feeds that exist."""

    @abstractmethod
    def get(self, feed: str, offset: int = 0, length: int = 20) -> list[Entry]:
        """Entries by position, 0 is the newest. Miss if the feed does not exist."""

    @abstractmethod
    def get_since(self, feed: str, entry_id: int) -> list[Entry]:
        """What was added after that entry was, newest first. Miss if the feed does not exist.

        Higher ids, and lower ids that arrived later; merged history does not count as new. Of an unknown id: the
        higher ids.
        """

    @abstractmethod
    def get_many(self, feeds: Sequence[str], offset: int = 0, length: int = 20) -> list[FeedAnswer]:
        """The same part of several feeds: for each feed a hit, a miss or an error, in the given order.

        Invalid if the answer may have more than 200,000 entries; split such a call.
        """

    @abstractmethod
    def set(
        self,
        feed: str,
        entries: Sequence[Entry],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> None:
        """Create a feed, or replace it atomically. Writes with later operation times survive."""

    @abstractmethod
    def merge(
        self,
        feed: str,
        entries: Sequence[Entry],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> bool:
        """Add history to a feed. Returns False, and does nothing, if the feed does not exist."""

    @abstractmethod
    def unmerge(
        self,
        feed: str,
        entries: Sequence[Entry | int],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> bool:
        """Take entries out. Returns False, and does nothing, if the feed does not exist.

        A later merge can bring the entries back; a delayed append from before the unmerge stays hidden.
        """

    @abstractmethod
    def drop(self, feed: str, *, operation_time: int | None = None, operation_ms: int | None = None) -> None:
        """Remove a feed. Its tombstones stay. Of a drop and a set the later one wins."""

    @abstractmethod
    def operation_time(self) -> int:
        """A new operation time, later than all that this server gave before.

        A caller that may have to repeat a write gets a time first, and gives it with every attempt.
        """

    @abstractmethod
    def dead_letters(self, *, limit: int = 100, after: int = 0) -> list[DeadOperation]:
        """Operations that were given up, oldest first; `after` is the number of the last one that is known."""

    @abstractmethod
    def fanout_letters(self, *, limit: int = 100, after: str = "") -> list[FanoutLetter]:
        """Records that the job `fanout` has set aside, by event type, partition and cursor.

        `after` is the `place` of the last one that is known.
        """
