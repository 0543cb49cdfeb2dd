"""The interface of subscriptions to users, implemented in process (`local.py`) and over HTTP (`client/`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from strandline.errors import Conflict, StrandlineError, Unavailable
from strandline.log.subscriptions import model

#: The SDK's defaults: larger batches than Nakadi's defaults, and a shorter flush timeout.
SDK_PARAMETERS = model.StreamParameters(max_uncommitted_events=10_000, batch_limit=1_000, batch_flush_timeout=1)

# How long a consumer whose stream ended tries to open another one.
_PATIENCE_S = 60.0
_PAUSE_S = 0.2


class Consumer(AbstractContextManager["Consumer"]):
    """A reader of a subscription. It opens a new stream whenever its stream ends, until it is closed.

    Every event is delivered at least once: uncommitted events are delivered again, to this consumer or to another.
    One thread may use it, but any thread may commit.
    """

    subscription: model.Subscription
    _room: Subscriptions
    _closed = False
    #: The errors after which opening another stream is tried again, for a while.
    _transient: ClassVar[tuple[type[StrandlineError], ...]] = (Conflict,)

    @abstractmethod
    def receive(self, timeout: float | None = None) -> model.DeliveredBatch | None:
        """The next batch; None after `timeout` seconds without events. Without a timeout it waits indefinitely."""

    def commit(self, batch: model.DeliveredBatch) -> bool:
        """Commit this batch and all before it in its partition. False if they were committed already.

        Conflict if the cursors were reset since the batch was sent.
        """
        cursor = batch.subscription_cursor
        (result,) = self._room.commit(str(self.subscription.id), batch.stream_id, [cursor])
        return result.result == "committed"

    def close(self) -> None:
        """End the stream; its partitions go to other consumers. `receive` is Unavailable from now on."""
        self._closed = True
        self._end()

    @abstractmethod
    def _open(self) -> None:
        """Open a stream in place of the ended one."""

    @abstractmethod
    def _end(self) -> None:
        """End the stream."""

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the consumer is closed; subscribe again")

    def _reopen(self) -> None:
        self._end()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            self._check_open()
            try:
                return self._open()
            except self._transient:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.subscription.event_types))
        return f"<{type(self).__name__} of {names}, group {self.subscription.consumer_group!r}>"

    def __iter__(self) -> Iterator[model.DeliveredBatch]:
        while (batch := self.receive()) is not None:
            yield batch

    def __exit__(self, *_: object) -> None:
        self.close()


class Subscriptions(ABC):
    """The subscriptions and their cursors. Thread-safe and synchronous."""

    @abstractmethod
    def create(self, subscription: model.Subscription) -> tuple[model.Subscription, bool]:
        """The subscription with that owner, event types and group, created if needed; and whether it is new.

        Invalid if an event type does not exist.
        """

    @abstractmethod
    def get(self, subscription_id: str) -> model.Subscription:
        """The subscription of that id, or NotFound."""

    @abstractmethod
    def search(
        self,
        owning_application: str | None = None,
        event_types: Sequence[str] = (),
        *,
        limit: int = 1000,
        offset: int = 0,
    ) -> list[model.Subscription]:
        """The subscriptions of the owner that read all of the event types, newest first."""

    @abstractmethod
    def update(self, subscription: model.Subscription) -> None:
        """Change annotations, labels and authorization; nothing else of a subscription can change."""

    @abstractmethod
    def delete(self, subscription_id: str) -> None:
        """Delete a subscription with its cursors; its streams end."""

    @abstractmethod
    def cursors(self, subscription_id: str) -> list[model.SubscriptionCursor]:
        """The committed cursors; empty before the first stream of a subscription that begins at BEGIN or END."""

    @abstractmethod
    def commit(
        self, subscription_id: str, stream_id: str, cursors: Sequence[model.SubscriptionCursor]
    ) -> list[model.CommitResult]:
        """Move cursors forward to positions that a stream has delivered.

        Allowed until 60 s after the end of the stream. Conflict if the cursors were reset since it began. Invalid,
        with nothing moved, for partitions that are not the stream's or that it lost by its commit timeout.
        """

    @abstractmethod
    def reset(self, subscription_id: str, cursors: Sequence[model.SubscriptionCursor] = ()) -> None:
        """Set cursors anywhere: to an offset, BEGIN, END or a time like 2024-05-01T12:00:00Z.

        All streams end, and their later commits are refused. Without cursors, it only creates the cursors of
        partitions that have none yet.
        """

    @abstractmethod
    def stats(self, subscription_id: str, *, show_time_lag: bool = False) -> list[model.EventTypeStats]:
        """The stream of each partition, and the number of its unread events."""

    @abstractmethod
    def consume(self, subscription_id: str, parameters: model.StreamParameters = SDK_PARAMETERS) -> Consumer:
        """Open a consumer. Conflict if the subscription has as many consumers as partitions."""
