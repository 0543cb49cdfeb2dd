"""The subscriptions port: definitions and cursors, and the leases that streams have on partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from strandline.log.cursors import Position
from strandline.log.subscriptions.model import Member, Share, Slot, Stored, Subscription, Verdict

#: Event type, partition and how far it was read.
Commit = tuple[str, int, Position]


class StreamLeases(ABC):
    """Which open stream has which partitions, over all nodes. Thread-safe; every method is one transaction.

    A slot has at most one owner. A stream that its node does not renew in time is over, and what it had goes to
    others; a node that dies therefore holds up its partitions for no longer than a lease.
    """

    @abstractmethod
    def join(self, subscription_id: str, member: Member, node: str) -> None:
        """Begin a stream and spread the slots anew. Conflict if there is nothing for it to read."""

    @abstractmethod
    def held(self, stream_id: str) -> list[Share] | None:
        """The slots that a stream owns now, with their cursors; None once it is over, for whatever reason."""

    @abstractmethod
    def renew(self, node: str, stream_ids: Sequence[str]) -> None:
        """Keep those of the node's streams for another lease, and end all whose lease ran out, whoever had them.

        What is not named runs out: a stream that could not be ended, or whose beginning got no answer.
        """

    @abstractmethod
    def release(self, stream_id: str, slots: Sequence[Slot]) -> None:
        """Hand on those of the slots that the stream owns and another is waiting for."""

    @abstractmethod
    def leave(self, stream_id: str) -> None:
        """End a stream; its slots go to others at once, its commits are taken for a while. Again is harmless."""

    @abstractmethod
    def versions(self, subscription_ids: Sequence[str]) -> Mapping[str, object]:
        """For each subscription something that is different after every change of cursors or slots. Cheap."""


class SubscriptionStore(ABC):
    """Subscriptions and their cursors. Thread-safe; every method is one transaction.

    A cursor moves forward only, with two exceptions. `skip` may move it back when the log has lost its newest
    events. `reset` may put it anywhere; it ends all streams and raises the epoch, and a stream of an older epoch
    cannot commit any more.
    """

    leases: StreamLeases

    @abstractmethod
    def create(self, subscription: Subscription, shares: Sequence[Share]) -> Subscription | None:
        """Record a new subscription with its first cursors, if it has any; None if there is one with its key."""

    @abstractmethod
    def find(self, subscription: Subscription) -> Subscription | None:
        """The one with the same owner, event types and group."""

    @abstractmethod
    def get(self, subscription_id: str) -> Stored | None:
        """The subscription of that id, and the epoch it is in."""

    @abstractmethod
    def search(
        self, owner: str | None = None, event_types: Sequence[str] = (), *, limit: int = 1000, offset: int = 0
    ) -> list[Subscription]:
        """Newest first: those of the owner that have all of the event types."""

    @abstractmethod
    def update(self, subscription: Subscription) -> None:
        """Replace the definition of the subscription of that id. NotFound if it is gone."""

    @abstractmethod
    def delete(self, subscription_id: str) -> None:
        """Forget a subscription with its cursors and end its streams. NotFound if it is gone."""

    @abstractmethod
    def layout(self, subscription_id: str) -> tuple[list[Share], list[Member]]:
        """All slots by event type and partition, and the open streams in the order they came."""

    @abstractmethod
    def initialise(self, subscription_id: str, shares: Sequence[Share]) -> None:
        """Add the cursors of slots that have none yet; others stay as they are."""

    @abstractmethod
    def skip(self, subscription_id: str, before: Share, after: Position, skipped: int) -> bool:
        """Move a cursor that is no longer available and count the skipped events.

        False, with nothing changed, if the cursor is not the one in `before` any more.
        """

    @abstractmethod
    def commit(self, subscription_id: str, stream_id: str, commits: Sequence[Commit]) -> list[Verdict]:
        """Move cursors forward, each by itself; what is not ahead of its cursor is outdated.

        Conflict if the cursors were reset after the stream began. Invalid, with nothing moved, if the stream is
        unknown or long over or a partition is not the subscription's.
        """

    @abstractmethod
    def reset(self, subscription_id: str, shares: Sequence[Share]) -> None:
        """Put cursors wherever the shares say, end all streams, raise the epoch.

        A share replaces the cursor of any incarnation of its event type and partition.
        """
