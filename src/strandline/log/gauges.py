"""The gauges of the log: what subscriptions have not read, and the size of topics. Reading them does no I/O."""

from __future__ import annotations

import time

from strandline.errors import InvalidCursor, NotFound
from strandline.log import cursors
from strandline.log.event_types import EventTypes
from strandline.log.open_storages import Storages
from strandline.log.subscriptions import places
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.upkeep import guarded
from strandline.room import GaugeMetric, GaugeValues

#: How often `measure` is to be called.
MEASURE_INTERVAL_MS = 10_000
# With many subscriptions, one call measures a part of them, and the next call continues.
_BUDGET_SECONDS = 0.2
_MOST_SUBSCRIPTIONS = 1_000

_LAG = GaugeMetric(
    "strandline_subscription_lag",
    "Events that a subscription has not committed (the 1000 newest subscriptions).",
    "subscription",
)
_BYTES = GaugeMetric("strandline_topic_bytes", "Bytes of a topic on the disk; not known for Kafka.", "topic")


class LogGauges:
    def __init__(self, types: EventTypes, storages: Storages, store: SubscriptionStore) -> None:
        self._types = types
        self._storages = storages
        self._store = store
        self._lags: dict[str, float] = {}
        self._bytes: dict[str, float] = {}
        self._measured_last = ""

    def values(self) -> GaugeValues:
        return {_LAG: self._lags, _BYTES: self._bytes}

    def measure(self) -> None:
        with guarded("measuring the sizes of topics"):
            self._bytes = dict(self._storages.stored_bytes())
        with guarded("measuring the lag of subscriptions"):
            self._measure_lags()

    def _measure_lags(self) -> None:
        ids = sorted(str(found.id) for found in self._store.search(limit=_MOST_SUBSCRIPTIONS))
        known = {one: lag for one, lag in self._lags.items() if one in ids}
        ends = time.monotonic() + _BUDGET_SECONDS
        later = [one for one in ids if one > self._measured_last]
        for subscription_id in later + ids[: len(ids) - len(later)]:
            self._measured_last = subscription_id
            with guarded(f"measuring the lag of subscription {subscription_id}"):
                known[subscription_id] = self._lag(subscription_id)
            if time.monotonic() > ends:
                break
        self._lags = known

    def _lag(self, subscription_id: str) -> int:
        """The unread events of all event types that still exist."""
        shares, _ = self._store.layout(subscription_id)
        total = 0
        for name in dict.fromkeys(share.event_type for share in shares):
            own = [share for share in shares if share.event_type == name]
            try:
                spans = places.view_of(self._types, name, own[0].slot.event_type_id).spans()
            except (InvalidCursor, NotFound):  # deleted; the statistics of the subscription say so
                continue
            for share in own:
                found = spans[share.slot.partition]
                total += cursors.end_index(found) - places.resumed(found, share.position).index
        return total
