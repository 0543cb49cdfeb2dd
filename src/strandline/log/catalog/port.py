"""The catalog port: event types, their schemas and timelines, storages, and topics on their way out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Timeline


class Catalog(ABC):
    """The truth about what exists. Thread-safe; every method is one transaction.

    Topics and catalog rows live in different files, so topics are announced before they are made and stay on
    the list of doomed topics until an event type owns them: a crash between the two steps leaves nothing
    that the next sweep does not find.
    """

    @abstractmethod
    def version(self) -> int:
        """Changes whenever something in the catalog may have changed, by any process. Cheap."""

    @abstractmethod
    def get(self, name: str) -> CatalogEntry | None:
        """The event type of that name with all its timelines, oldest first."""

    @abstractmethod
    def entries(self) -> list[CatalogEntry]:
        """All event types by name."""

    @abstractmethod
    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        """Record a new event type with its first timeline and take the topic off the list of doomed ones.

        Conflict if the name is taken, or if the topic was swept meanwhile.
        """

    @abstractmethod
    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        """Replace the definition that `entry` holds; Conflict if somebody else changed it since."""

    @abstractmethod
    def delete(self, entry: CatalogEntry, now_ms: int) -> None:
        """Forget the event type and doom its topics. NotFound if it is gone."""

    @abstractmethod
    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        """All schemas the event type ever had, newest first."""

    @abstractmethod
    def doom_topic(self, storage_id: str, topic: str, after_ms: int) -> None:
        """Announce a topic that may be deleted after that time unless an event type owns it by then."""

    @abstractmethod
    def doomed_topics(self, now_ms: int) -> list[tuple[str, str]]:
        """(storage id, topic) of all that may be deleted now."""

    @abstractmethod
    def forget_topic(self, storage_id: str, topic: str) -> None:
        """The topic is deleted."""

    @abstractmethod
    def storages(self) -> list[StorageInfo]:
        """All storages by id; exactly one is the default."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""
