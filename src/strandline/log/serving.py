"""The log as the server in the same process uses it: the room, and streams that push events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from strandline.log.room import Log, Start
from strandline.log.streaming import StreamChunk, StreamLimits
from strandline.log.subscriptions.model import EventTypePartition, EventTypeStats, StreamParameters
from strandline.log.subscriptions.room import Subscriptions

#: Called from any thread when a stream may have more to do.
Wake = Callable[[], None]


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

    def step(self) -> list[StreamChunk]:
        """The chunks to send now, in order within each partition. Reads, but does not wait for more records."""

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


class ServedLog(Log):
    subscriptions: ServedSubscriptions

    #: A publish that has not been answered for this long has an unknown outcome.
    publish_deadline_ms: int

    @abstractmethod
    def stream(self, name: str, start: Start, limits: StreamLimits, wake: Wake, *, eager: bool) -> PushStream:
        """Open a stream of an event type after `start`; InvalidCursor if a position is not available."""
