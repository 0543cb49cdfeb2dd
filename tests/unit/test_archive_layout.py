"""The paths of archived files, and templates that are refused."""

from __future__ import annotations

import pytest

from strandline.archive.layout import Layout, at, file_name
from strandline.clock import parse_rfc3339
from strandline.errors import Invalid

HOUR = parse_rfc3339("2024-05-01T07:00:00Z")


def test_the_default_layout_is_that_of_the_seed():
    """The path is day, hour, event type, then the files. A flag is written on both levels."""
    layout = Layout("%Y-%m-%d/%H/{event_type}", "orders.placed")
    assert layout.data(HOUR) == "2024-05-01/07/orders.placed/data"
    assert layout.flags(HOUR) == (
        "2024-05-01/07/orders.placed/data/_READY",
        "2024-05-01/07/orders.placed/_READY",
    )
    assert layout.late(HOUR) == "2024-05-01/07/orders.placed/_LATE"
    assert layout.staging("3-ab") == "_staging/orders.placed/3-ab"
    assert layout.staging() == "_staging/orders.placed"
    assert layout.quarantine(HOUR, "x") == "_quarantine/orders.placed/2024-05-01/x"


@pytest.mark.parametrize(
    ("template", "hour", "day"),
    [
        ("%Y-%m-%d/%H/{event_type}", "2024-05-01/07", "2024-05-01"),
        ("logs/%Y/%m/%d/%H/x/{event_type}/y", "logs/2024/05/01/07", "logs/2024/05/01"),
        ("%Y-%m-%dT%H/{event_type}", "2024-05-01T07", None),
        ("{event_type}/%Y-%m-%d/%H", None, "orders/2024-05-01"),
        ("{event_type}/%Y-%m-%d/%H/all", "orders/2024-05-01/07", "orders/2024-05-01"),
        ("date=%Y-%m-%d/hour=%H/type={event_type}", "date=2024-05-01/hour=07", "date=2024-05-01"),
    ],
)
def test_parents_are_the_shortest_paths_that_tell_hours_and_days_apart(template, hour, day):
    """The directory of an event type is not its own parent."""
    layout = Layout(template, "orders")
    assert (layout.hour_template and at(layout.hour_template, HOUR)) == hour
    assert (layout.day_template and at(layout.day_template, HOUR)) == day


@pytest.mark.parametrize(
    "template",
    [
        "%Y-%m-%d/{event_type}",
        "%Y-%m-%d/%H",
        "%Y-%m-%d/%H/%M/{event_type}",
        "%Y-%m-%d/%H/{event_type}/{event_type}",
        "%Y-%m-%d/%H/%%/{event_type}",
        "/%Y-%m-%d/%H/{event_type}",
        "%Y-%m-%d/../%H/{event_type}",
        "%Y-%m-%d/_%H/{event_type}",
        "%Y-%m-%d//%H/{event_type}",
        "",
    ],
)
def test_a_template_that_cannot_work_is_refused(template):
    """A template must separate hours and event types, stay below the root, and use names that readers see."""
    with pytest.raises(Invalid, match=r"archive\.template"):
        Layout(template, "orders")


def test_file_names_tell_where_their_records_are_from():
    """A name has event type, partition, timeline, first and last offset, and marks late files and incarnations."""
    place = (3, 2, 10, 99)
    assert file_name("a.b", 1, "data", place) == "a.b-0003-0002-000000000000000010-000000000000000099.parquet"
    assert file_name("a", 1, "late", place).startswith("late-a-0003-")
    assert file_name("a", 2, "data", place).startswith("a-r2-0003-")
