"""The catalog port: event types, their schemas and timelines, storages, and topics marked for deletion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline
from strandline.log.storage import Fence


@dataclass(frozen=True)
class SwitchEffect:
    """The changes that a switch commits."""

    #: The old timeline with its last offsets, and the new one.
    closed: Timeline | None = None
    opened: Timeline | None = None
    #: The definition before and after.
    redefined: tuple[EventType, EventType] | None = None


class SwitchBook(ABC):
    """The timeline switches. Their state changes by compare-and-set; every method is one transaction."""

    @abstractmethod
    def begin(self, entry: CatalogEntry, switch: Switch) -> None:
        """Record a switch as `preparing`. Call this before its new topic is created.

        Conflict if the event type has another undecided switch, or if the event type or its timelines have changed
        since `entry` was read.
        """

    @abstractmethod
    def get(self, token: str) -> Switch | None:
        """The switch of that token; None if its event type was deleted."""

    @abstractmethod
    def undecided(self) -> list[Switch]:
        """All switches that are `preparing` or `closing`."""

    @abstractmethod
    def close(self, token: str) -> bool:
        """`preparing` → `closing`; False if it was aborted."""

    @abstractmethod
    def abort(self, token: str) -> bool:
        """`preparing` or `closing` → `aborted`, and mark its new topic for deletion.

        True also if it was aborted already or its event type was deleted, False if it is done.
        """

    @abstractmethod
    def commit(self, token: str, effect: SwitchEffect) -> bool:
        """`closing` → `done` together with its effect; False, with nothing changed, if it is not `closing`.

        Conflict, with nothing changed, if the effect replaces a definition that has changed since.
        """


class StorageBook(ABC):
    """The storages; exactly one is the default. Every method is one transaction.

    A catalog that several machines share starts without a storage, and a storage on one machine is Invalid there.
    """

    @abstractmethod
    def list(self) -> list[StorageInfo]:
        """All storages by id."""

    @abstractmethod
    def add(self, storage: StorageInfo) -> None:
        """Add a storage; the first one becomes the default. Conflict if the id is taken."""

    @abstractmethod
    def set_default(self, storage_id: str) -> None:
        """Make a storage the default for new event types. NotFound if it does not exist."""

    @abstractmethod
    def remove(self, storage_id: str) -> None:
        """Remove a storage. Conflict if it is the default or a timeline, a switch or a marked topic uses it."""


class FenceBook(ABC):
    """The newest holder of every fence of an event type. Every method is one transaction."""

    @abstractmethod
    def raise_fence(self, entry_id: str, name: str, held: int | None = None) -> Fence:
        """A new holder, with the next epoch; the first one is 1.

        With `held`, the epoch of the caller, Fenced if it is not the newest one any more. NotFound if the event
        type was deleted.
        """

    @abstractmethod
    def all(self, entry_id: str) -> list[Fence]:
        """The newest holders of all fences of the event type, by name."""


class Catalog(ABC):
    """The authority on what exists. Thread-safe; every method is one transaction.

    Topics and catalog rows are stored in different places. So every topic is recorded before it is created: by an
    undecided switch, which marks it for deletion when it is aborted, or by such a mark, which is removed when an
    event type owns the topic. After a crash at any step, a sweep finds the mark and deletes the topic. The sweep
    claims the topic first, and no event type can own a claimed topic.

    Delays are measured on one clock: the database server's, or the machine's if the database is a file.
    """

    switches: SwitchBook
    storages: StorageBook
    fences: FenceBook

    @abstractmethod
    def version(self) -> int:
        """A number that differs after every change of the catalog by any process. Cheap."""

    @abstractmethod
    def get(self, name: str) -> CatalogEntry | None:
        """The event type of that name with all its timelines, oldest first, and its newest switch."""

    @abstractmethod
    def entries(self) -> list[CatalogEntry]:
        """All event types by name."""

    @abstractmethod
    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        """Add a new event type with its first timeline and remove the mark of its topic.

        The timeline gets the order 1 or, if event types of that name were deleted, the order after their last one.
        So a timeline never has the order of another timeline of that name. Conflict if the name is taken, or if a
        sweep has already claimed the topic. An adopted topic must not have a mark: Conflict if it has one, or if
        it belongs to an event type.
        """

    @abstractmethod
    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        """Replace the definition in `entry`; Conflict if it has changed since."""

    @abstractmethod
    def delete(self, entry: CatalogEntry) -> None:
        """Delete the event type and mark its topics for deletion. NotFound if it does not exist.

        The topic of an undecided switch is marked as well. An adopted topic is never marked.
        """

    @abstractmethod
    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        """All schemas the event type ever had, newest first."""

    @abstractmethod
    def remove_timeline(self, removed: Timeline, delay_ms: int) -> bool:
        """Record a closed timeline as removed, as given, and mark its topic for deletion after the delay.

        Its row stays, so that cursors in it stay valid; it no longer counts as a use of its storage. False, with
        nothing changed, if another process was first or the event type was deleted.
        """

    @abstractmethod
    def mark_for_deletion(self, storage_id: str, topic: str, delay_ms: int = 0) -> None:
        """Allow the deletion of the topic after the delay, unless an event type owns it by then.

        This replaces an earlier mark and its claim: the topic may have been created after the claim.
        """

    @abstractmethod
    def topics_to_delete(self) -> list[tuple[str, str]]:
        """(storage id, topic) of every topic that may be claimed now."""

    @abstractmethod
    def claim_topic(self, storage_id: str, topic: str) -> bool:
        """Claim a marked topic for its deletion; True also if it was claimed already.

        False if an event type owns it, or if it is not marked any more: then it must not be deleted.
        """

    @abstractmethod
    def forget_topic(self, storage_id: str, topic: str) -> None:
        """Remove the mark of a claimed topic that was deleted."""
