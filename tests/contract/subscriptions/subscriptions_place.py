"""A store of subscriptions that several processes can open, and test data for it."""

from __future__ import annotations

import itertools
import uuid

from databases import open_database
from strandline.engine.database import Database
from strandline.log.cursors import Position
from strandline.log.subscriptions.model import Member, Share, Slot, Subscription, complete
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.subscriptions.sql import SqlSubscriptions

LEASE_MS = 6_000
_numbers = itertools.count(1)


class SubscriptionsPlace:
    """`now_ms` is the clock of the leases; tests advance it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.now_ms = 1_000_000
        self._opened: list[Database] = []

    def open(self) -> SubscriptionStore:
        self._opened.append(open_database(self.address))
        return SqlSubscriptions(self._opened[-1], lease_ms=LEASE_MS, now=lambda: self.now_ms)

    def close(self) -> None:
        for database in self._opened:
            database.close()


def subscription(*event_types: str, owner: str = "app", group: str | None = None) -> Subscription:
    """A subscription that no other test uses."""
    asked = Subscription(owner, event_types or ("orders",), group or f"group-{next(_numbers)}")
    return complete(asked, str(uuid.uuid4()), "2024-05-01T12:00:00.000Z")


def share(partition: int, offset: int = -1, *, timeline: int = 1, name: str = "orders", of: str = "et-1") -> Share:
    return Share(Slot(of, partition), name, Position(timeline, offset))


def made(store: SubscriptionStore, partitions: int = 2) -> str:
    """Create a subscription with its cursors before the first record of each partition; return its id."""
    created = store.create(subscription(), [share(p) for p in range(partitions)])
    assert created is not None
    return str(created.id)


def join(store: SubscriptionStore, subscription_id: str, node: str = "node-1", *direct: int) -> str:
    """Join with a new stream; return its id."""
    member = Member(str(uuid.uuid4()), frozenset(Slot("et-1", p) for p in direct) or None)
    store.leases.join(subscription_id, member, node)
    return member.id


def held(store: SubscriptionStore, stream_id: str) -> list[int]:
    return [one.slot.partition for one in store.leases.held(stream_id) or []]


def cursors(store: SubscriptionStore, subscription_id: str) -> list[tuple[int, int]]:
    return [tuple(one.position) for one in store.layout(subscription_id)[0]]
