"""The contract of the log room, implemented in process (`local.py`) and over HTTP (`client/`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from strandline.log.model import (
    CursorText,
    Distance,
    DistanceQuery,
    EventType,
    PartitionInfo,
    PublishReport,
    Schema,
    ShiftedCursor,
    StorageInfo,
    Switch,
    Timeline,
)
from strandline.log.preparation import Events
from strandline.log.reading import Batch
from strandline.log.subscriptions.model import ReadFrom, StreamParameters, Subscription
from strandline.log.subscriptions.room import SDK_PARAMETERS, Consumer, Subscriptions

#: `"BEGIN"`, `"END"`, or the offset to start after for some partitions (others are not read).
Start = str | Mapping[str, str] | Sequence[CursorText]


class Log(ABC):
    """Event types, publishing, reading. Thread-safe and synchronous."""

    admin: Admin

    #: Reading in groups, with cursors that the platform keeps.
    subscriptions: Subscriptions

    # -- event types

    @abstractmethod
    def create(self, event_type: EventType) -> EventType:
        """Make an event type and return it as recorded. Conflict if the name is taken."""

    @abstractmethod
    def get(self, name: str) -> EventType:
        """The event type of that name, or NotFound."""

    @abstractmethod
    def event_types(self) -> list[EventType]:
        """All event types by name."""

    @abstractmethod
    def update(self, event_type: EventType) -> EventType:
        """Change what may be changed and return the event type as recorded."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an event type with all its events. Conflict while a subscription reads it."""

    @abstractmethod
    def schemas(self, name: str) -> list[Schema]:
        """Every schema the event type ever had, newest first."""

    # -- events

    @abstractmethod
    def submit(self, name: str, events: Events, *, flow_id: str | None = None) -> Future[PublishReport]:
        """Start to publish and return at once; the future has the report once the events are durable.

        Publishes started one after the other by one thread keep their order in every partition.
        """

    def publish(self, name: str, events: Events, *, flow_id: str | None = None) -> PublishReport:
        """Publish and wait for the report. There is no retry: an unknown outcome is reported as such."""
        return self.submit(name, events, flow_id=flow_id).result()

    @abstractmethod
    def read(
        self,
        name: str,
        start: Start = "BEGIN",
        *,
        follow: bool = False,
        limit: int | None = None,
        batch_size: int = 10_000,
    ) -> Iterator[Batch]:
        """Batches of records after `start`, in order within each partition.

        Stops at the records that were the last ones when it began, or after `limit` records; with `follow` it
        waits for more.
        """

    @abstractmethod
    def partitions(self, name: str, cursors: Sequence[CursorText] = ()) -> list[PartitionInfo]:
        """Oldest and newest offset of every partition; with a cursor, also how many events follow it."""

    def subscribe(
        self,
        event_types: Sequence[str],
        *,
        group: str = "default",
        application: str = "default",
        read_from: ReadFrom = "end",
        parameters: StreamParameters = SDK_PARAMETERS,
    ) -> Consumer:
        """Read together with the other consumers of the group, from the cursors of the group.

        A new group begins at `read_from`. Conflict if the group has as many consumers as there are partitions.
        """
        asked = Subscription(application, tuple(event_types), group, read_from)
        subscription, _ = self.subscriptions.create(asked)
        return self.subscriptions.consume(str(subscription.id), parameters)

    # -- cursors

    @abstractmethod
    def distances(self, name: str, queries: Sequence[DistanceQuery]) -> list[Distance]:
        """How many events lie between two cursors of a partition."""

    @abstractmethod
    def shift(self, name: str, cursors: Sequence[ShiftedCursor]) -> list[CursorText]:
        """Each cursor moved by its number of events; both positions must be available."""

    @abstractmethod
    def lag(self, name: str, cursors: Sequence[CursorText]) -> list[PartitionInfo]:
        """How many events follow each cursor."""

    # -- where it is stored

    @abstractmethod
    def timelines(self, name: str) -> list[Timeline]:
        """The storage epochs of an event type, oldest first."""

    @abstractmethod
    def storages(self) -> list[StorageInfo]:
        """All storages by id."""

    @abstractmethod
    def close(self) -> None:
        """Finish operations in progress; close files, connections and threads."""


class Admin(ABC):
    """What an operator changes while the log runs."""

    @abstractmethod
    def add_storage(self, storage: StorageInfo) -> StorageInfo:
        """Add a storage. Conflict if the id is taken."""

    @abstractmethod
    def set_default_storage(self, storage_id: str) -> StorageInfo:
        """Put new event types on this storage from now on."""

    @abstractmethod
    def remove_storage(self, storage_id: str) -> None:
        """Remove a storage that nothing uses."""

    @abstractmethod
    def switch(self, name: str, storage_id: str) -> Timeline:
        """Move an event type to another storage while it is written and read; its new timeline.

        Atomic: it happens completely or not at all. Conflict if another switch of the event type is in progress,
        Unavailable if the nodes did not confirm in time.
        """

    @abstractmethod
    def check_switch(self, name: str, storage_id: str) -> list[Timeline]:
        """A dry run: the same errors as `switch`, but nothing changes; the timelines as they are."""

    @abstractmethod
    def current_switch(self, name: str) -> Switch | None:
        """The newest switch of an event type, in any state."""

    @abstractmethod
    def abort_switch(self, name: str) -> Switch:
        """Abort a switch that is not decided yet. Conflict if there is none."""

    @abstractmethod
    def grow(self, name: str, partitions: int) -> None:
        """Give an event type more partitions; as many as it has is fine, fewer are Invalid."""
