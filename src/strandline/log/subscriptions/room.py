"""Subscriptions as their users see them: one contract, kept in process (`local.py`) and over HTTP (`client/`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from strandline.log.subscriptions.model import (
    CommitResult,
    DeliveredBatch,
    EventTypeStats,
    StreamParameters,
    Subscription,
    SubscriptionCursor,
)

#: What the SDK asks for unless told otherwise: larger batches than Nakadi's defaults, sent without waiting.
SDK_PARAMETERS = StreamParameters(max_uncommitted_events=10_000, batch_limit=1_000, batch_flush_timeout=1)


class Consumer(ABC):
    """A client's share of a subscription. Its stream is opened anew whenever it ends, until it is closed.

    Every event is delivered at least once: what was not committed is delivered again, to this consumer or to
    another. One thread uses it; any thread may commit.
    """

    subscription: Subscription

    @abstractmethod
    def receive(self, timeout: float | None = None) -> DeliveredBatch | None:
        """The next batch; None when nothing came for `timeout` seconds. Without that it waits for ever."""

    @abstractmethod
    def commit(self, batch: DeliveredBatch) -> bool:
        """Everything up to and including this batch of its partition is done. False if that was known already.

        Conflict if the cursors were reset since the batch was sent.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the partitions to others."""

    def __iter__(self) -> Iterator[DeliveredBatch]:
        while (batch := self.receive()) is not None:
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Subscriptions(ABC):
    """Who reads what, and how far they are. Thread-safe and synchronous."""

    @abstractmethod
    def create(self, subscription: Subscription) -> tuple[Subscription, bool]:
        """The subscription with that owner, event types and group, made if there is none; and whether it is new.

        Invalid if an event type does not exist.
        """

    @abstractmethod
    def get(self, subscription_id: str) -> Subscription:
        """The subscription of that id, or NotFound."""

    @abstractmethod
    def search(
        self,
        owning_application: str | None = None,
        event_types: Sequence[str] = (),
        *,
        limit: int = 1000,
        offset: int = 0,
    ) -> list[Subscription]:
        """Newest first: those of the owner that read all of the event types."""

    @abstractmethod
    def update(self, subscription: Subscription) -> None:
        """Change annotations, labels and authorization; nothing else of a subscription can change."""

    @abstractmethod
    def delete(self, subscription_id: str) -> None:
        """Remove a subscription with its cursors; its streams end."""

    @abstractmethod
    def cursors(self, subscription_id: str) -> list[SubscriptionCursor]:
        """The committed cursors; none before the first stream of a subscription that begins at BEGIN or END."""

    @abstractmethod
    def commit(
        self, subscription_id: str, stream_id: str, cursors: Sequence[SubscriptionCursor]
    ) -> list[CommitResult]:
        """Move cursors forward to what a stream has delivered.

        Taken up to 60 s after the end of the stream. Conflict if the cursors were reset since it began.
        """

    @abstractmethod
    def reset(self, subscription_id: str, cursors: Sequence[SubscriptionCursor] = ()) -> None:
        """Put cursors anywhere: an offset, BEGIN, END or a time like 2024-05-01T12:00:00Z.

        All streams end, and their later commits are refused. Without cursors it only fixes where the subscription
        begins, if nothing has yet.
        """

    @abstractmethod
    def stats(self, subscription_id: str, *, show_time_lag: bool = False) -> list[EventTypeStats]:
        """Who reads which partition and how much is left there."""

    @abstractmethod
    def consume(self, subscription_id: str, parameters: StreamParameters = SDK_PARAMETERS) -> Consumer:
        """Join the clients of a subscription. Conflict if it has as many as partitions."""
