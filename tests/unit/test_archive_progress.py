"""How fast the archive is, as it tells people."""

from __future__ import annotations

from strandline.archive.archiver import Report
from strandline.archive.progress import Meter, parse


def test_a_rate_is_that_of_a_second_or_more():
    """Steps may follow each other within milliseconds; the rate stays what it was until there is a new one."""
    now = 100.0
    meter = Meter(lambda: now)
    rates = []
    for seconds, rows in [(0, 50), (0.5, 450), (0.5, 1_050), (0.1, 9_999), (1.9, 1_050)]:
        now += seconds
        rates.append(meter.measured(Report("orders", rows, {0: 7}, 3, 3_600_000)).rows_per_second)
    assert rates == [0, 0, 1_000, 1_000, 0]


def test_others_read_what_was_told():
    """Of every event type the latest, but for those that went to another process."""
    meter = Meter()
    for name in ("a", "b", "c"):
        told = meter.measured(Report(name, 1, {0: 0, 1: 5}, 1, -1))
    meter.forget("b")
    found = parse(meter.text)
    assert [one.event_type for one in found] == ["a", "c"]
    assert found[1] == told
    assert (told.lag, told.last_flag) == ({"0": 0, "1": 5}, None)
    assert parse("") == []
