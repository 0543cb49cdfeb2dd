"""When hour and day directories are complete."""

from __future__ import annotations

from strandline.archive import propagation
from strandline.archive.model import DAY_MS, HOUR_MS, Term

DAY = 20_000 * DAY_MS
SEVEN = DAY + 7 * HOUR_MS
TERMS = [Term("a", DAY), Term("b", SEVEN, SEVEN + HOUR_MS)]


def test_an_hour_needs_every_event_type_that_was_configured_for_it():
    """No more and no fewer."""
    now_ms = DAY + DAY_MS
    assert propagation.hour_children(SEVEN, now_ms, TERMS, {"a": 1}) is None
    assert propagation.hour_children(SEVEN, now_ms, TERMS, {"a": 1, "b": 0}) is None
    assert propagation.hour_children(SEVEN, now_ms, TERMS, {"a": 1, "b": 3, "c": 1}) == {"a": 1, "b": 3}
    for hour_ms in (SEVEN - HOUR_MS, SEVEN + HOUR_MS):
        assert propagation.hour_children(hour_ms, now_ms, TERMS, {"a": 2}) == {"a": 2}


def test_an_hour_of_nobody_is_not_complete():
    """Nothing says so."""
    assert propagation.hour_children(DAY - HOUR_MS, DAY, TERMS, {"a": 1}) is None


def test_no_period_is_complete_before_its_end():
    """Not by a millisecond, whatever its children say."""
    end_ms = SEVEN + HOUR_MS
    assert propagation.hour_children(SEVEN, end_ms - 1, TERMS, {"a": 1, "b": 1}) is None
    assert propagation.hour_children(SEVEN, end_ms, TERMS, {"a": 1, "b": 1}) is not None
    hours = dict.fromkeys(range(DAY, DAY + DAY_MS, HOUR_MS), 1)
    assert propagation.day_children(DAY, DAY + DAY_MS - 1, hours) is None
    assert propagation.day_children(DAY, DAY + DAY_MS, hours) == {f"{hour:02d}": 1 for hour in range(24)}


def test_a_day_needs_all_of_its_hours():
    """Any one that is missing blocks."""
    hours = dict.fromkeys(range(DAY, DAY + DAY_MS, HOUR_MS), 1)
    for missing in hours:
        assert propagation.day_children(DAY, DAY + DAY_MS, {**hours, missing: 0}) is None
