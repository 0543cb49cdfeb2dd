"""The subscriptions port: definitions and cursors, and the leases that streams have on partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from strandline.log.cursors import Position
from strandline.log.subscriptions.model import Member, Share, Slot, Stored, Subscription, Verdict

#: Event type, partition and the position up to which it was read.
Commit = tuple[str, int, Position]


class StreamLeases(ABC):
    """Which stream has which partitions, on all nodes. Thread-safe; every change of a subscription is atomic.

    A slot has at most one owner. A stream ends if its node does not renew its lease in time, and other streams get
    its slots. So a node that dies blocks its partitions for at most one lease.
    """

    @abstractmethod
    def join(self, subscription_id: str, member: Member, node: str) -> None:
        """Begin a stream and rebalance the slots. Conflict if there is no slot for it."""

    @abstractmethod
    def held(self, stream_id: str) -> list[Share] | None:
        """The slots that a stream owns now, with their cursors; None if the stream has ended."""

    @abstractmethod
    def renew(self, node: str, stream_ids: Sequence[str]) -> None:
        """Renew the leases of these streams of the node, and end the expired streams of all nodes.

        A stream of the node that is not listed expires: it could not be ended, or its `join` got no answer.
        """

    @abstractmethod
    def release(self, stream_id: str, slots: Sequence[Slot]) -> None:
        """Give those of the slots that the stream owns and that have an heir to the heir."""

    @abstractmethod
    def leave(self, stream_id: str, *, forfeit: bool = False) -> None:
        """End a stream. Other streams get its slots at once. Idempotent.

        The stream can still commit its slots for a while, unless it forfeits them.
        """

    @abstractmethod
    def versions(self, subscription_ids: Sequence[str]) -> Mapping[str, object]:
        """For each subscription a value that differs after every change of cursors or slots. Cheap."""


class SubscriptionStore(ABC):
    """Subscriptions and their cursors. Thread-safe; every method that writes is one transaction.

    A cursor moves forward only, with two exceptions. `skip` may move it back when the log has lost its newest
    events. `reset` may set it anywhere; it ends all streams and raises the epoch, and a stream of an older epoch
    cannot commit any more.
    """

    leases: StreamLeases

    @abstractmethod
    def create(self, subscription: Subscription, shares: Sequence[Share]) -> Subscription | None:
        """Add a subscription with its initial cursors, if any; None if one with the same key exists."""

    @abstractmethod
    def find(self, subscription: Subscription) -> Subscription | None:
        """The subscription with the same owner, event types and group."""

    @abstractmethod
    def get(self, subscription_id: str) -> Stored | None:
        """The subscription of that id, and its epoch."""

    @abstractmethod
    def search(
        self, owner: str | None = None, event_types: Sequence[str] = (), *, limit: int = 1000, offset: int = 0
    ) -> list[Subscription]:
        """The subscriptions of the owner that read all of the event types, newest first."""

    @abstractmethod
    def update(self, subscription: Subscription) -> None:
        """Replace the definition of the subscription of that id. NotFound if it does not exist."""

    @abstractmethod
    def delete(self, subscription_id: str) -> None:
        """Delete a subscription with its cursors and end its streams. NotFound if it does not exist."""

    @abstractmethod
    def layout(self, subscription_id: str) -> tuple[list[Share], list[Member]]:
        """All slots by event type and partition, and the open streams in the order in which they began."""

    @abstractmethod
    def initialise(self, subscription_id: str, shares: Sequence[Share]) -> None:
        """Add cursors for slots without one; existing cursors are not changed."""

    @abstractmethod
    def skip(self, subscription_id: str, before: Share, after: Position, skipped: int) -> bool:
        """Move a cursor that is no longer available and count the skipped events.

        False, with nothing changed, if the cursor is not the one in `before` any more.
        """

    @abstractmethod
    def commit(self, subscription_id: str, stream_id: str, commits: Sequence[Commit]) -> list[Verdict]:
        """Move cursors forward, independently; a position that is not ahead of its cursor is outdated.

        Conflict if the cursors were reset after the stream began. Invalid, with nothing moved, if the stream is
        unknown or ended long ago, if a cursor would move in a slot that is not the stream's, or if the
        subscription has no cursor for a partition.
        """

    @abstractmethod
    def reset(self, subscription_id: str, shares: Sequence[Share]) -> None:
        """Set the cursors to the shares, end all streams and raise the epoch.

        A share replaces the cursor of any incarnation of its event type and partition.
        """
