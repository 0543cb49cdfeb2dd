"""The store of replicated journals.

A topic is named by the id of its event type, so that a topic that is created again starts without old rows. The
replicated cursor of a partition ("pointer") says that all actions up to and including it are in the store. It is
always read before heads and rows: what a reader sees is then at least as new as the pointer. Thread-safe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from strandline.journal.model import DeadLetter, Head, LoggedAction, Snapshot, StoredEvent
from strandline.log.cursors import Position


class StoredJournal(ABC):
    """A journal in the store, at the moment at which it was opened."""

    #: The replicated cursor of the journal's partition, read before everything else; None before the first batch.
    pointer: Position | None
    #: The head with its own cursor, which on some engines is newer than the pointer.
    head: Head | None

    @abstractmethod
    def rows(self, first: int, last: int) -> Iterator[StoredEvent]:
        """The stored events of the head's life with these seqNrs, rising. Streams: never holds the whole journal.

        May be called once. Rows at or below the head's `delete_to` are left out. Unavailable in the middle if the
        journal changed so that a complete answer is not possible any more (engines without snapshots).
        """


class JournalStore(ABC):
    @abstractmethod
    def open(
        self, topic: str, partition: int, entity: str, first: int | None = 1
    ) -> AbstractContextManager[StoredJournal]:
        """The journal as it is now. On SQL engines pointer, head and rows are of one snapshot.

        `first` is the smallest seqNr for which `rows` will be called: a short journal then needs one query. None
        if only the pointer and the head are needed; `rows` is then empty.
        """

    @abstractmethod
    def pointers(self, topic: str) -> dict[int, Position]:
        """The replicated cursor of every partition that was ever replicated."""

    @abstractmethod
    def event(self, topic: str, entity: str, seq_nr: int) -> StoredEvent | None:
        """One event of the journal's current life, without the rest."""

    @abstractmethod
    def apply(
        self,
        topic: str,
        partition: int,
        after: Position | None,
        until: Position,
        actions: Sequence[LoggedAction],
        dead: Sequence[DeadLetter] = (),
        *,
        adopted: bool = False,
    ) -> int:
        """Replicate the actions of (after, until], which are all of that range in log order.

        Returns how many records were set aside: `dead`, and appends whose values cannot be decoded.
        Exactly once in effect: heads, rows, dead letters and the pointer change together (on engines without
        transactions: in an order that makes every repetition harmless). An action at or below the cursor of its
        head is a no-op. Conflict if the pointer is not `after`: another replicator is ahead, nothing is changed.
        """

    @abstractmethod
    def save_snapshot(self, topic: str, entity: str, since: Position, snapshot: Snapshot) -> None:
        """Save or replace the snapshot of that seqNr in that life."""

    @abstractmethod
    def snapshot(self, topic: str, entity: str, since: Position, at_most: int) -> Snapshot | None:
        """The newest snapshot of that life at or below a seqNr."""

    @abstractmethod
    def delete_snapshot(self, topic: str, entity: str, since: Position, seq_nr: int) -> None:
        """Delete a snapshot. Idempotent."""

    @abstractmethod
    def expired(self, topic: str, now_ms: int, limit: int) -> list[tuple[str, Position]]:
        """Journals whose `expire_on_ms` has come, oldest first: id and cursor of the last action."""

    @abstractmethod
    def dead_letters(
        self, topic: str, limit: int, after: tuple[int, Position] | None = None, *, brief: bool = False
    ) -> list[DeadLetter]:
        """Records that were set aside, by partition and cursor; if `brief`, without keys, values and headers."""

    @abstractmethod
    def topics(self) -> list[str]:
        """The ids of all topics of which something is stored, also of those whose event type was deleted."""

    @abstractmethod
    def forget(self, topic: str) -> None:
        """Delete everything of a topic. Idempotent; for topics whose event type was deleted."""

    @abstractmethod
    def close(self) -> None:
        """Release connections. Later calls are Unavailable."""
