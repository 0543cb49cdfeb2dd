"""The state of a subscription: which stream has which partition, and how many events are unread."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from strandline.errors import InvalidCursor
from strandline.log import cursors, expiry
from strandline.log.event_types import EventTypes
from strandline.log.model import Timeline
from strandline.log.reading import View
from strandline.log.subscriptions import places, rules
from strandline.log.subscriptions.model import AssignmentType, EventTypeStats, Member, PartitionStats, Share
from strandline.log.subscriptions.port import SubscriptionStore

_PAGE = 1000


def status(shares: Sequence[Share], members: Sequence[Member]) -> list[EventTypeStats]:
    """The stream of every partition that has a cursor."""
    names = dict.fromkeys(share.event_type for share in shares)
    return [
        EventTypeStats(name, [_assignment(share, members) for share in shares if share.event_type == name])
        for name in names
    ]


def of_event_type(
    event_types: EventTypes, name: str, shares: Sequence[Share], members: Sequence[Member], now_ms: int | None
) -> EventTypeStats:
    """Streams and unread events of every partition; with `now_ms`, also the age of the oldest unread event."""
    try:
        view = places.view_of(event_types, name, shares[0].slot.event_type_id if shares else None)
    except InvalidCursor:
        found = [_assignment(share, members) for share in shares]
        return EventTypeStats(name, [msgspec.structs.replace(one, unavailable=True) for one in found])
    if not shares:
        count = view.entry.event_type.partition_count
        return EventTypeStats(name, [PartitionStats(str(p), "unassigned", "") for p in range(count)])
    return EventTypeStats(name, [_measured(view, share, members, now_ms) for share in shares])


def unread(store: SubscriptionStore, event_type_id: str, timeline: Timeline) -> dict[str, int]:
    """How many events of a closed timeline each subscription has not read, for those that have not read all."""
    found = {}
    for subscription_id in _readers_of(store, timeline.event_type):
        shares, _ = store.layout(subscription_id)
        own = {
            share.slot.partition: share.position for share in shares if share.slot.event_type_id == event_type_id
        }
        if count := expiry.unread(timeline, own):
            found[subscription_id] = count
    return found


def _readers_of(store: SubscriptionStore, event_type: str) -> Iterator[str]:
    for page in itertools.count():
        subscriptions = store.search(None, [event_type], limit=_PAGE, offset=page * _PAGE)
        yield from (str(subscription.id) for subscription in subscriptions)
        if len(subscriptions) < _PAGE:
            return


def _assignment(share: Share, members: Sequence[Member]) -> PartitionStats:
    owner = next((member for member in members if member.id == share.owner), None)
    kind: AssignmentType | None = None
    if owner is not None:
        kind = "direct" if share.slot in (owner.direct or ()) else "auto"
    return PartitionStats(
        str(share.slot.partition), rules.state(share), share.owner or "", kind, skipped_events=share.skipped
    )


def _measured(view: View, share: Share, members: Sequence[Member], now_ms: int | None) -> PartitionStats:
    spans = view.spans()[share.slot.partition]
    resumed = places.resumed(spans, share.position)
    age_s = None if now_ms is None else _age_s(view, share.slot.partition, resumed.position, now_ms)
    return msgspec.structs.replace(
        _assignment(share, members),
        unconsumed_events=cursors.end_index(spans) - resumed.index,
        consumer_lag_seconds=age_s,
        skipped_events=share.skipped + resumed.skipped,
    )


def _age_s(view: View, partition: int, position: cursors.Position, now_ms: int) -> int:
    """The age of the first event after a position in seconds; 0 if there is none."""
    place = cursors.read_next(view.spans()[partition], position)
    if place is None:
        return 0
    records = view.read(partition, *place, max_records=1, max_bytes=1)
    return max(now_ms - records["timestamp"][0].as_py(), 0) // 1000 if records.num_rows else 0
