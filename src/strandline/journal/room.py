"""The contract of the journal room, implemented in process (`local.py`) and over HTTP (`client/`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from strandline.journal.model import (
    Appended,
    DeadLetter,
    JournalEvent,
    JournalTopic,
    NewEvent,
    Payload,
    Pointer,
    Snapshot,
)


class Journals(ABC):
    """Topics of journals. Thread-safe and synchronous."""

    @abstractmethod
    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        storage: str | None = None,
        kafka_topic: str | None = None,
    ) -> JournalTopic:
        """Create the event type that holds the actions. The same request again changes nothing.

        `kafka_topic` adopts an existing topic of a Kafka storage as the first timeline. Conflict if the name is an
        ordinary event type, or was created with other values.
        """

    @abstractmethod
    def topics(self) -> list[JournalTopic]:
        """All topics by name."""

    @abstractmethod
    def of(self, topic: str) -> Journal:
        """The journals of a topic. NotFound, at the first call that needs it, if the topic does not exist."""

    @abstractmethod
    def dead_letters(self, topic: str, *, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        """Records that could not be decoded and were set aside, oldest first."""


class Journal(ABC):
    """The journals of one topic, by the id of their entity (1 to 255 characters)."""

    #: The topic.
    name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}>"

    @abstractmethod
    def append(
        self,
        entity: str,
        events: Sequence[NewEvent | Any],
        *,
        expected: int | None = None,
        since: str | None = None,
        expire_after_ms: int | None = None,
        metadata: Any = None,
        append_id: str | None = None,
    ) -> Appended:
        """Append events together or not at all. Durable when this returns.

        An event that is not a `NewEvent` is a JSON value. Conflict, with the pointer as it is, if `expected` or
        `since` differ from the journal, or the first seqNr is not above the pointer. A retry with the same
        `append_id` has the answer of the first append; without one a new id is made for this call.
        """

    @abstractmethod
    def read(
        self, entity: str, first: int = 1, last: int | None = None, *, limit: int | None = None
    ) -> Iterator[JournalEvent]:
        """The events with rising seqNr, including all that were acknowledged before this call. Streams."""

    @abstractmethod
    def pointer(self, entity: str) -> Pointer:
        """The newest seqNr. As consistent as `read`."""

    @abstractmethod
    def delete(self, entity: str, to: int, *, since: str | None = None) -> None:
        """Delete the events up to and including `to`, at most up to the pointer. Does nothing if it is absent.

        Conflict if `since` is given and the journal has another life. A purge that comes in between makes the
        delete do nothing.
        """

    @abstractmethod
    def purge(self, entity: str) -> None:
        """Delete the journal. The next append starts a new one."""

    @abstractmethod
    def save_snapshot(self, entity: str, seq_nr: int, payload: Payload | Any, *, since: str | None = None) -> None:
        """Save the state of the entity at a seqNr.

        NotFound if the journal is absent. Conflict if `since` is given and the journal has another life, or if it
        is purged and created again meanwhile.
        """

    @abstractmethod
    def snapshot(self, entity: str, at_most: int | None = None) -> Snapshot | None:
        """The newest snapshot at or below a seqNr."""

    @abstractmethod
    def delete_snapshot(self, entity: str, seq_nr: int) -> None:
        """Delete the snapshot of that seqNr. Idempotent."""
