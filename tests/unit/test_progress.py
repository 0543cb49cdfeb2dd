"""The progress of jobs: how rates are measured, and what another process reads."""

from __future__ import annotations

import json

import pytest

from strandline.progress import JobProgress, Meter, parse


def test_a_rate_is_that_of_a_second_or_more():
    """The rate changes at most once a second, even if steps take milliseconds."""
    now = 100.0
    meter = Meter(lambda: now)
    rates = []
    for seconds, rows in [(0, 50), (0.5, 450), (0.5, 1_050), (0.1, 9_999), (1.9, 1_050)]:
        now += seconds
        rates.append(meter.measure("orders", rows, {0: 7}).rows_per_second)
    assert rates == [0, 0, 1_000, 1_000, 0]


def test_another_process_reads_the_latest_progress():
    """There is one entry for every event type that this process still works on."""
    meter = Meter()
    for name in ("a", "b", "c"):
        latest = meter.measure(name, 1, {0: 0, 1: 5}, shift=1, last_flag=None)
    meter.forget("b")
    found = parse(meter.text)
    assert [one.event_type for one in found] == ["a", "c"]
    assert found[1] == latest
    assert (latest.lag, latest.details) == ({"0": 0, "1": 5}, {"shift": 1, "last_flag": None})


def test_a_step_that_failed_is_no_work():
    """The progress keeps the time of the last step that succeeded."""
    now_ms = 0
    meter = Meter(now_ms=lambda: now_ms)
    assert meter.measure("a", 1, {}, worked=False).worked_at == ""
    done = meter.measure("a", 1, {}).worked_at
    now_ms = 60_000
    assert meter.measure("a", 1, {}, worked=False).worked_at == done == "1970-01-01T00:00:00.000Z"
    assert meter.measure("a", 1, {}).worked_at == "1970-01-01T00:01:00.000Z"


def test_details_stand_beside_the_common_fields():
    """Readers of the JSON do not have to know which fields all jobs have."""
    fields = JobProgress("orders", 2, 1, {"0": 3}, {"shift": 4}, "T").fields()
    assert fields == {
        "event_type": "orders",
        "rows": 2,
        "rows_per_second": 1,
        "lag": {"0": 3},
        "worked_at": "T",
        "shift": 4,
    }


def test_the_text_of_another_version_is_read_as_far_as_it_is_known():
    """Unknown fields are details, because a process may be older or newer than `status`."""
    stored = {
        "event_type": "a",
        "rows": 1,
        "rows_per_second": 2,
        "lag": {},
        "shift": 3,
        "last_flag": "T",
        "new": [1],
    }
    (found,) = parse(json.dumps([stored]))
    assert found.details == {"shift": 3, "last_flag": "T", "new": [1]}
    assert found.fields() == {**stored, "worked_at": ""}


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"event_type": "a"}', '[{"event_type": "a"}]', "[1]"])
def test_a_text_that_cannot_be_read_is_no_progress(text):
    """The process still counts as running."""
    assert parse(text) == []
