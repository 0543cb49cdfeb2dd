"""The gauges of a node: how many messages are due, and how far clocks are off. Reading them asks no database."""

from __future__ import annotations

import time
from collections.abc import Iterable

from strandline.errors import NotFound
from strandline.room import GaugeMetric, GaugeValues
from strandline.schedule.clocks import NodeClocks
from strandline.schedule.model import ClockOffset
from strandline.schedule.storage import ScheduleStore

#: How often `measure` is to be called.
MEASURE_INTERVAL_MS = 2_000
# With thousands of schedules, one call measures a part of them, and the next call continues.
_BUDGET_SECONDS = 0.2
# The clock of a client that has not sent a ping for this long is not shown.
_CLIENT_MS = 60_000

_DUE = GaugeMetric("strandline_schedule_due", "Messages that are available: due, and not leased.", "schedule")
_NODES = GaugeMetric(
    "strandline_schedule_node_clock_offset_seconds",
    "How far the clocks of this node and its peers are ahead of the database's.",
    "node",
)
_CLIENTS = GaugeMetric(
    "strandline_schedule_client_clock_offset_seconds",
    "How far the clocks of clients are ahead of the database's.",
    "consumer",
)


class ScheduleGauges:
    def __init__(self, store: ScheduleStore, clocks: NodeClocks) -> None:
        self._store = store
        self._clocks = clocks
        self._due: dict[str, int] = {}
        self._measured_last = ""

    def measure(self) -> None:
        """Count the due messages of the schedules, of as many as there is time for."""
        names = [schedule.name for schedule in self._store.all()]
        known = {name: count for name, count in self._due.items() if name in names}
        ends = time.monotonic() + _BUDGET_SECONDS
        later = [name for name in names if name > self._measured_last]
        for name in later + names[: len(names) - len(later)]:
            self._measured_last = name
            try:
                known[name] = self._store.messages.counts(name, 0, self._clocks.now_ms() + 1).available
            except NotFound:  # deleted in between
                known.pop(name, None)
            if time.monotonic() > ends:
                break
        self._due = known

    def values(self) -> GaugeValues:
        report = self._clocks.report(degraded=None)
        now_ms = self._clocks.now_ms()
        clients = [client for client in report.clients if client.measured_ms > now_ms - _CLIENT_MS]
        return {_DUE: self._due, _NODES: _seconds([report.node, *report.peers]), _CLIENTS: _seconds(clients)}


def _seconds(offsets: Iterable[ClockOffset]) -> dict[str, float]:
    return {one.name: one.offset_ms / 1000 for one in offsets}
