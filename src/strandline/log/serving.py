"""The log as the server of its own process sees it: the room, and streams that push events."""

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
    #: Nothing comes any more.
    finished: bool
    #: The next step has nothing to do before `wake` is called or `wait_ms()` milliseconds have passed.
    idle: bool

    @property
    def has_partitions(self) -> bool:
        """Whether there is a partition to read; the others of a group may have them all."""

    def step(self) -> list[StreamChunk]:
        """What is to be sent now, in order within each partition; reads, but does not wait for more records."""

    def wait_ms(self) -> int: ...

    def close(self) -> None:
        """Release what the stream holds. May write: not for an event loop."""


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
        """A stream of the given partitions or, without any, of a share of all.

        After its end, commits of what it delivered are taken for a while. An eager stream sends what is there
        instead of waiting to fill a batch.
        """

    @abstractmethod
    def status(self, subscription_id: str) -> list[EventTypeStats]:
        """Who reads which partition: `stats` without looking into the log."""


class ServedLog(Log):
    subscriptions: ServedSubscriptions

    #: A publish that has not been answered for this long has an unknown outcome.
    publish_deadline_ms: int

    @abstractmethod
    def stream(self, name: str, start: Start, limits: StreamLimits, wake: Wake, *, eager: bool) -> PushStream:
        """A stream of an event type after `start`, every position checked to be available."""
