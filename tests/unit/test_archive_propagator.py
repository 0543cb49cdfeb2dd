"""When the directories of hours and days are complete."""

from __future__ import annotations

from strandline.archive import propagator
from strandline.archive.layout import Layout
from strandline.archive.model import HOUR_MS, Term
from strandline.clock import parse_rfc3339

DAY = parse_rfc3339("2024-05-01T00:00:00Z")
SEVEN = DAY + 7 * HOUR_MS
TERMS = [Term("a", DAY), Term("b", SEVEN, SEVEN + HOUR_MS)]


def usual(event_type: str) -> Layout:
    return Layout("%Y-%m-%d/%H/{event_type}", event_type)


def of_its_own(event_type: str) -> Layout:
    return Layout("{event_type}/%Y-%m-%d/%H", event_type)


def test_an_hour_needs_every_event_type_that_was_configured_for_it():
    """An hour needs exactly these event types, including those without a directory."""
    assert propagator.hour_needs(SEVEN, TERMS, usual) == {"2024-05-01/07": {"2024-05-01/07/a", "2024-05-01/07/b"}}
    assert propagator.hour_needs(SEVEN + HOUR_MS, TERMS, usual) == {"2024-05-01/08": {"2024-05-01/08/a"}}
    assert propagator.hour_needs(DAY - HOUR_MS, TERMS, usual) == {}


def test_a_day_needs_all_of_its_hours():
    """A day needs its hours in one directory for all event types, or in one directory for each."""
    hours = {f"2024-05-01/{hour:02d}" for hour in range(24)}
    assert propagator.day_needs(DAY, TERMS, usual) == {"2024-05-01": hours}
    assert propagator.day_needs(DAY, TERMS, of_its_own) == {"a/2024-05-01": {f"a/{hour}" for hour in hours}}


def test_a_day_with_hours_of_nobody_is_never_complete():
    """A day that has an hour without event types is never flagged, such as the day of the first start."""
    assert propagator.day_needs(DAY, [Term("a", DAY + HOUR_MS)], usual) == {}


def test_event_types_with_other_templates_have_other_parents():
    """Event types whose templates have a common parent share it."""
    layouts = {
        "a": usual("a"),
        "b": Layout("shop/%Y-%m-%d/%H/{event_type}", "b"),
        "c": Layout("shop/%Y-%m-%d/%H/x/{event_type}", "c"),
        "d": of_its_own("d"),
        "e": Layout("%Y-%m-%dT%H/{event_type}", "e"),
    }
    terms = [Term(name, DAY) for name in layouts]
    assert propagator.hour_needs(SEVEN, terms, layouts.__getitem__) == {
        "2024-05-01/07": {"2024-05-01/07/a"},
        "shop/2024-05-01/07": {"shop/2024-05-01/07/b", "shop/2024-05-01/07/x/c"},
        "2024-05-01T07": {"2024-05-01T07/e"},
    }
    days = propagator.day_needs(DAY, terms, layouts.__getitem__)
    assert sorted(days) == ["2024-05-01", "d/2024-05-01", "shop/2024-05-01"]
    assert len(days["shop/2024-05-01"]) == 24


def test_a_period_is_complete_when_all_it_needs_has_a_flag():
    """The children of a period are the directories that it needs. Other directories are ignored."""
    assert propagator.children(["x", "y"], {"x": 1}) is None
    assert propagator.children(["x", "y"], {"x": 1, "y": 0}) is None
    assert propagator.children(["y", "x"], {"x": 1, "y": 3, "z": 1}) == {"x": 1, "y": 3}
