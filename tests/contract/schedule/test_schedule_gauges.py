"""The gauges of a node: due messages, measured for a part of the schedules at a time, and clocks."""

from __future__ import annotations

import pytest
from schedule_place import made

from strandline.clock import SystemClock
from strandline.schedule import gauges
from strandline.schedule.clocks import NodeClocks
from strandline.schedule.gauges import ScheduleGauges
from strandline.schedule.model import Body, Moment, NewMessage
from strandline.schedule.storage import ScheduleStore


def due(shown: ScheduleGauges) -> dict[str, float]:
    (found,) = [values for metric, values in shown.values().items() if metric.name == "strandline_schedule_due"]
    return {**found}


def test_schedules_are_measured_in_turns(store: ScheduleStore, monkeypatch: pytest.MonkeyPatch):
    """Without time for all, every call measures the next one. A deleted schedule is not shown."""
    monkeypatch.setattr(gauges, "_BUDGET_SECONDS", -1)
    made(store, "t")
    for name, count in (("s", 1), ("t", 2)):
        store.messages.create(name, [NewMessage(f"{n}", "g", Body(b""), Moment(n)) for n in range(count)])
    clocks = NodeClocks("node", store, SystemClock(), 500)
    clocks.measure()
    shown = ScheduleGauges(store, clocks)
    seen = []
    for _ in range(3):
        shown.measure()
        seen.append(due(shown))
    assert seen == [{"s": 1}, {"s": 1, "t": 2}, {"s": 1, "t": 2}]
    store.delete("s")
    shown.measure()
    assert due(shown) == {"t": 2}
