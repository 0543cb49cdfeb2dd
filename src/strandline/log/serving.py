"""The log as the server in the same process uses it: the room, and streams that push events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Protocol, TypeVar

from strandline.log.model import Timeline
from strandline.log.publish_attempt import Done
from strandline.log.room import Admin, Log, Start
from strandline.log.streaming import StreamChunk, StreamLimits
from strandline.log.subscriptions.model import EventTypePartition, EventTypeStats, StreamParameters
from strandline.log.subscriptions.room import Subscriptions

_T = TypeVar("_T")

#: Called from any thread when a stream or a change may have more to do.
Wake = Callable[[], None]

#: A change in steps: it yields while it waits for other nodes. Continue it after a wake-up or some milliseconds,
#: in any thread. An error thrown into it makes it give up: it undoes what it has done and raises that error.
Steps = Generator[None, None, _T]


class PushStream(Protocol):
    """One open stream. Only one thread at a time calls `step`."""

    id: str
    #: The stream has ended and sends nothing more.
    finished: bool
    #: The next step has nothing to do before `wake` is called or `wait_ms()` milliseconds have passed.
    idle: bool

    @property
    def has_partitions(self) -> bool:
        """Whether the stream has partitions; other streams of its group may have all of them."""

    def step(self, most_bytes: int) -> list[StreamChunk]:
        """The chunks to send now, in order within each partition. Reads, but does not wait for more records.

        The stream keeps at most about `most_bytes` of records, or one record if a single one is larger. Chunks may
        be smaller than the client asked for because of this.
        """

    def wait_ms(self) -> int: ...

    def close(self) -> None:
        """Release the resources of the stream. May block on writes: do not call it in an event loop."""


class ServedSubscriptions(Subscriptions):
    @abstractmethod
    def open(
        self,
        subscription_id: str,
        parameters: StreamParameters,
        partitions: Sequence[EventTypePartition],
        wake: Wake,
        *,
        eager: bool,
    ) -> PushStream:
        """Open a stream of the given partitions; if none is given, of a share of all partitions.

        Commits of delivered events are accepted for some time after its end. An eager stream sends available
        records at once instead of waiting to fill a batch.
        """

    @abstractmethod
    def status(self, subscription_id: str) -> list[EventTypeStats]:
        """Which stream reads which partition: `stats` without reading the log."""


class ServedAdmin(Admin):
    @abstractmethod
    def switching(self, name: str, storage_id: str, wake: Wake) -> Steps[Timeline]:
        """`switch` in steps."""

    @abstractmethod
    def growing(self, name: str, partitions: int, wake: Wake) -> Steps[None]:
        """`grow` in steps."""


class ServedLog(Log):
    admin: ServedAdmin
    subscriptions: ServedSubscriptions

    #: A publish that has not been answered for this long has an unknown outcome.
    publish_deadline_ms: int

    @abstractmethod
    def known_storages(self, names: Collection[str], *, active: bool = False) -> frozenset[str] | None:
        """The storages with timelines of these event types, as this process last found them; never waits.

        None if it has not looked for one of them yet. `active`: only the storages that new events go to.
        """

    @abstractmethod
    def find_storages(self, names: Collection[str], *, active: bool = False) -> frozenset[str]:
        """The same from the catalog. Event types that do not exist have no storages."""

    @abstractmethod
    def submit_small(self, name: str, events: bytes, flow_id: str | None, done: Done) -> None:
        """Start a small publish and return at once, without any I/O in this thread.

        It is stored together with other small publishes of the event type. `done` gets the report or the error, in
        any thread, once the events are durable. Publishes of one thread keep their order in every partition.
        """

    @abstractmethod
    def stream(self, name: str, start: Start, limits: StreamLimits, wake: Wake, *, eager: bool) -> PushStream:
        """Open a stream of an event type after `start`; InvalidCursor if a position is not available."""
