"""Subscriptions: cursors and partition leases that the platform keeps for groups of readers."""

from strandline.log.subscriptions.model import (
    CommitResult,
    DeliveredBatch,
    EventTypePartition,
    EventTypeStats,
    PartitionStats,
    StreamParameters,
    Subscription,
    SubscriptionCursor,
)
from strandline.log.subscriptions.room import Consumer, Subscriptions

__all__ = [
    "CommitResult",
    "Consumer",
    "DeliveredBatch",
    "EventTypePartition",
    "EventTypeStats",
    "PartitionStats",
    "StreamParameters",
    "Subscription",
    "SubscriptionCursor",
    "Subscriptions",
]
