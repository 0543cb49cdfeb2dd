"""Converts subscriptions to rows and back, in the same form for every database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from strandline.errors import NotFound
from strandline.log.cursors import Position
from strandline.log.subscriptions import rules
from strandline.log.subscriptions.model import Member, Share, Slot, Subscription

_slots = msgspec.json.Decoder(list[tuple[str, int]])

#: Decodes a definition.
to_subscription = msgspec.json.Decoder(Subscription).decode


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def key(subscription: Subscription) -> str:
    """Equal for subscriptions with the same owner, event types and group."""
    return text(rules.key(subscription))


def of_slot(slot: Slot) -> dict[str, object]:
    return {"event_type_id": slot.event_type_id, "partition": slot.partition}


def of_share(subscription_id: str, share: Share) -> dict[str, object]:
    timeline, position = share.position
    where = {"subscription_id": subscription_id, "event_type": share.event_type, **of_slot(share.slot)}
    return {**where, "timeline": timeline, "position": position}


def of_assignment(subscription_id: str, slot: Slot, owner: str | None, heir: str | None) -> dict[str, object]:
    return {"subscription_id": subscription_id, **of_slot(slot), "owner": owner, "heir": heir}


def to_shares(found: Iterable[tuple[Any, ...]]) -> list[Share]:
    """From rows of event type id, partition, event type, timeline, position, skipped events, owner and heir."""
    return [
        Share(Slot(event_type_id, partition), event_type, Position(timeline, offset), *rest)
        for event_type_id, partition, event_type, timeline, offset, *rest in found
    ]


def to_members(found: Iterable[tuple[Any, ...]]) -> list[Member]:
    return [Member(stream, None if direct is None else to_slots(direct)) for stream, direct in found]


def to_slots(stored: str | None) -> frozenset[Slot]:
    return frozenset(Slot(*slot) for slot in _slots.decode(stored or "[]"))


def missing(subscription_id: str) -> NotFound:
    return NotFound(f"subscription {subscription_id!r} does not exist; list the subscriptions to find it")
