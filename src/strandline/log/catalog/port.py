"""The catalog port: event types, their schemas and timelines, storages, and topics on their way out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline


@dataclass(frozen=True)
class SwitchEffect:
    """What a switch changes when it is done."""

    #: The old timeline with its last offsets, and the new one.
    closed: Timeline | None = None
    opened: Timeline | None = None
    #: The definition before and after.
    redefined: tuple[EventType, EventType] | None = None


class SwitchBook(ABC):
    """The rows of timeline switches, each moved by compare-and-set on its token; a method is a transaction."""

    @abstractmethod
    def begin(self, entry: CatalogEntry, switch: Switch, sweep_after_ms: int) -> None:
        """Record a switch as `preparing` and mark its new topic for deletion until the switch is done.

        Conflict if another one of the event type is not decided yet, or if the event type or its timelines are
        no longer those of `entry`.
        """

    @abstractmethod
    def get(self, token: str) -> Switch | None:
        """The switch of that token; None once its event type is deleted."""

    @abstractmethod
    def undecided(self) -> list[Switch]:
        """All that are `preparing` or `closing`."""

    @abstractmethod
    def close(self, token: str) -> bool:
        """`preparing` → `closing`; False if somebody aborted it."""

    @abstractmethod
    def abort(self, token: str) -> bool:
        """`preparing` or `closing` → `aborted`; True also if it was aborted already, False if it is done."""

    @abstractmethod
    def commit(self, token: str, effect: SwitchEffect) -> bool:
        """`closing` → `done` together with its effect; False, and nothing changed, if it is not `closing`.

        Conflict, and nothing changed, if the effect replaces a definition that is no longer the one it was
        made from. The mark of a new timeline's topic is removed.
        """


class StorageBook(ABC):
    """The storages there are; exactly one is the default. Every method is one transaction.

    A catalog that several machines share begins without any, and takes none that is on one machine (Invalid).
    """

    @abstractmethod
    def list(self) -> list[StorageInfo]:
        """All storages by id."""

    @abstractmethod
    def add(self, storage: StorageInfo) -> None:
        """Record a storage; the first one of all is the default. Conflict if the id is taken."""

    @abstractmethod
    def set_default(self, storage_id: str) -> None:
        """Where new event types go from now on. NotFound if it does not exist."""

    @abstractmethod
    def remove(self, storage_id: str) -> None:
        """Forget a storage. Conflict if it is the default or a timeline or switch uses it."""


class Catalog(ABC):
    """The truth about what exists. Thread-safe; every method is one transaction.

    Topics and catalog rows are stored in different places. So a topic is marked for deletion before it is made,
    and the mark is removed when an event type owns the topic: after a crash between the two steps the next
    sweep finds the topic.
    """

    switches: SwitchBook
    storages: StorageBook

    @abstractmethod
    def version(self) -> int:
        """Changes whenever something in the catalog may have changed, by any process. Cheap."""

    @abstractmethod
    def get(self, name: str) -> CatalogEntry | None:
        """The event type of that name with all its timelines, oldest first, and its newest switch."""

    @abstractmethod
    def entries(self) -> list[CatalogEntry]:
        """All event types by name."""

    @abstractmethod
    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        """Record a new event type with its first timeline and remove the mark of its topic.

        Conflict if the name is taken, or if the topic was swept meanwhile.
        """

    @abstractmethod
    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        """Replace the definition that `entry` holds; Conflict if somebody else changed it since."""

    @abstractmethod
    def delete(self, entry: CatalogEntry, now_ms: int) -> None:
        """Forget the event type and mark its topics for deletion. NotFound if it is gone."""

    @abstractmethod
    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        """All schemas the event type ever had, newest first."""

    @abstractmethod
    def remove_timeline(self, removed: Timeline, delete_after_ms: int) -> bool:
        """Record a closed timeline as removed, as given, and mark its topic for deletion after that time.

        Its row stays, so that cursors in it stay valid; it no longer counts as a use of its storage. False, and
        nothing changed, if another process was first or the event type is gone.
        """

    @abstractmethod
    def mark_for_deletion(self, storage_id: str, topic: str, after_ms: int) -> None:
        """The topic may be deleted after that time unless an event type owns it by then."""

    @abstractmethod
    def topics_to_delete(self, now_ms: int) -> list[tuple[str, str]]:
        """(storage id, topic) of every topic that may be deleted now."""

    @abstractmethod
    def forget_topic(self, storage_id: str, topic: str) -> None:
        """The topic is deleted."""
