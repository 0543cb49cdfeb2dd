"""The storage port of the feeds.

A store keeps the records of each feed and answers by `fold.py`, so that the rules exist once. Every write carries
its operation time and is idempotent: an operation that is repeated, late or out of order leads to the same entries
(`docs/explanation/feeds.md` names the exceptions). A write that returned is durable as far as the engine promises.
Thread-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from strandline.feeds.model import Applied, Entry, FeedAnswer, Operation
from strandline.log.cursors import Position


class FeedStore(ABC):
    @abstractmethod
    def apply(self, operations: Sequence[Operation]) -> list[Applied]:
        """Apply operations; on each feed, in the given order. Returns an outcome for each.

        A set, a merge, an unmerge and a drop are atomic. An append or a delete is atomic in each of its feeds. A
        delete leaves a tombstone in every named feed, also in those that do not exist. An unreachable part of the
        store, or an unknown outcome, is reported for its feeds in `Applied.failed`, and does not affect others.
        """

    @abstractmethod
    def read(self, feeds: Sequence[str], offset: int, length: int) -> list[FeedAnswer]:
        """Entries by position, 0 is the newest, of several feeds. Returns an answer for each, in the given order.

        Never raises for a part of the store that fails: its feeds are answered with `error`. Renews the life of
        the feeds, with at most one write an hour for each.
        """

    @abstractmethod
    def read_since(self, feed: str, entry_id: int) -> tuple[Entry, ...] | None:
        """Everything that was added after the entry was, newest first; None if the feed does not exist.

        Renews the life of the feed, like `read`.
        """

    @abstractmethod
    def expire(self) -> int:
        """Remove feeds that nobody reads, and tombstones and drops older than the grace time.

        Returns the number of removed feeds; 0 if the engine removes them by itself.
        """

    @abstractmethod
    def save_positions(
        self, source: str, positions: Mapping[int, Position], incarnation: str | None = None
    ) -> None:
        """Remember how far a source was applied: a position for each partition. Others stay as they are.

        With an `incarnation`: Unavailable if a part of the store has started since, and that part saves nothing.
        The caller has seen all effects up to there acknowledged. Every copy of a part of the store (a snapshot, a
        replica) contains all effects up to the positions that it contains.
        """

    @abstractmethod
    def positions(self, source: str) -> dict[int, Position]:
        """The positions from which a replay restores everything: the lowest over all parts of the store.

        A partition that one of the parts does not know is left out.
        """

    @abstractmethod
    def incarnation(self) -> str:
        """Changes whenever a part of the store has started again or was replaced, and may be an older copy now."""

    @abstractmethod
    def check(self) -> None:
        """Return if all parts of the store answer; Unavailable otherwise."""

    @abstractmethod
    def close(self) -> None:
        """Release the connections that belong to this store alone."""
