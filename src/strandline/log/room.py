"""The contract of the log room, implemented in process (`local.py`) and over HTTP (`client/`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from strandline.log import model
from strandline.log.event_json import Events
from strandline.log.reading import Batch
from strandline.log.subscriptions.model import ReadFrom, StreamParameters, Subscription
from strandline.log.subscriptions.room import SDK_PARAMETERS, Consumer, Subscriptions

#: `"BEGIN"`, `"END"`, or for some partitions the offset to start after (others are not read).
Start = str | Mapping[str, str] | Sequence[model.CursorText]


class Log(ABC):
    """Event types, publishing, reading. Thread-safe and synchronous."""

    admin: Admin

    #: Reading in groups, with cursors that the platform keeps.
    subscriptions: Subscriptions

    # -- event types

    @abstractmethod
    def create(self, event_type: model.EventType, *, exist_ok: bool = False) -> model.EventType:
        """Create an event type and return it as stored. Conflict if the name is taken.

        With `exist_ok`, an event type of that name is returned as it is, whatever its definition.
        """

    @abstractmethod
    def get(self, name: str) -> model.EventType:
        """The event type of that name, or NotFound."""

    @abstractmethod
    def event_types(self) -> list[model.EventType]:
        """All event types by name."""

    @abstractmethod
    def update(self, event_type: model.EventType) -> model.EventType:
        """Change an event type and return it as stored. Invalid if a change is not allowed."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an event type with all its events. Conflict if it has subscriptions."""

    @abstractmethod
    def schemas(self, name: str) -> list[model.Schema]:
        """All schemas that the event type ever had, newest first."""

    # -- events

    @abstractmethod
    def submit(self, name: str, events: Events, *, flow_id: str | None = None) -> Future[model.PublishReport]:
        """Start a publish and return at once. The future gets the report when the events are durable.

        Publishes that one thread starts one after the other keep their order in every partition.
        """

    def publish(self, name: str, events: Events, *, flow_id: str | None = None) -> model.PublishReport:
        """Publish and wait for the report. It is not retried: an unknown outcome is reported as such."""
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

        Stops after `limit` records. With `follow` it waits for new records; without, it also stops at the records
        that were the newest ones when the call began.
        """

    @abstractmethod
    def partitions(self, name: str, cursors: Sequence[model.CursorText] = ()) -> list[model.PartitionInfo]:
        """Oldest and newest offset of every partition; with a cursor, also the number of events after it."""

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

        A new group starts at `read_from`. Conflict if the group has as many consumers as there are partitions.
        """
        asked = Subscription(application, tuple(event_types), group, read_from)
        subscription, _ = self.subscriptions.create(asked)
        return self.subscriptions.consume(str(subscription.id), parameters)

    # -- cursors

    @abstractmethod
    def distances(self, name: str, queries: Sequence[model.DistanceQuery]) -> list[model.Distance]:
        """The number of events between two cursors of a partition."""

    @abstractmethod
    def shift(self, name: str, cursors: Sequence[model.ShiftedCursor]) -> list[model.CursorText]:
        """Each cursor moved by its number of events; both positions must be available."""

    @abstractmethod
    def lag(self, name: str, cursors: Sequence[model.CursorText]) -> list[model.PartitionInfo]:
        """The number of events after each cursor."""

    # -- where it is stored

    @abstractmethod
    def timelines(self, name: str) -> list[model.Timeline]:
        """The storage epochs of an event type, oldest first."""

    @abstractmethod
    def storages(self) -> list[model.StorageInfo]:
        """All storages by id."""

    @abstractmethod
    def close(self) -> None:
        """Finish operations in progress; close files, connections and threads."""


class Admin(ABC):
    """What an operator changes while the log runs."""

    @abstractmethod
    def add_storage(self, storage: model.StorageInfo) -> model.StorageInfo:
        """Add a storage. Conflict if the id is taken."""

    @abstractmethod
    def set_default_storage(self, storage_id: str) -> model.StorageInfo:
        """Use this storage for new event types."""

    @abstractmethod
    def remove_storage(self, storage_id: str) -> None:
        """Remove a storage. Conflict if it is in use or the default."""

    @abstractmethod
    def switch(self, name: str, storage_id: str) -> model.Timeline:
        """Move an event type to another storage while it is written and read; its new timeline.

        Atomic: it happens completely or not at all. Conflict if another switch of the event type is in progress,
        Unavailable if the nodes did not confirm in time, OutcomeUnknown if the catalog did not answer the commit
        and cannot be asked.
        """

    @abstractmethod
    def check_switch(self, name: str, storage_id: str) -> list[model.Timeline]:
        """A dry run: raises the same errors as `switch` but changes nothing; returns the current timelines.

        Unavailable if the present storage or the other one does not answer.
        """

    @abstractmethod
    def current_switch(self, name: str) -> model.RunningSwitch | None:
        """The newest switch of an event type, in any state, and the nodes that it waits for."""

    @abstractmethod
    def abort_switch(self, name: str) -> model.Switch:
        """Abort the switch that is not decided yet. Conflict if there is no such switch."""

    @abstractmethod
    def grow(self, name: str, partitions: int) -> None:
        """Increase the partition count. The current count changes nothing; a smaller one is Invalid."""
