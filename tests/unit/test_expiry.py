"""Which timelines may be removed, and how many of their events are unread."""

from __future__ import annotations

import itertools

import pytest

from strandline.clock import to_rfc3339
from strandline.log import cursors, expiry
from strandline.log.cursors import Position, Span
from strandline.log.model import Timeline

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def timeline(
    order: int, age_ms: int | None, *, removed: bool = False, ends: dict[str, int] | None = None
) -> Timeline:
    """A timeline that was closed `age_ms` ago, or an open one."""
    closed_at = None if age_ms is None else to_rfc3339(NOW_MS - age_ms)
    cleaned_up_at = to_rfc3339(NOW_MS) if removed else None
    ends = None if age_ms is None else ends or {"0": 9}
    return Timeline(
        f"t{order}", "a", order, "s", f"a.{order}", to_rfc3339(0), to_rfc3339(0), closed_at, cleaned_up_at, ends
    )


def removable(*timelines: Timeline) -> list[int]:
    return [found.order for found in expiry.removable(timelines, DAY_MS, NOW_MS)]


def test_an_open_timeline_stays():
    """An open timeline is never removed, at any age."""
    assert removable(timeline(1, None)) == []
    assert expiry.removable([timeline(1, None)], 1, NOW_MS * 2) == []


@pytest.mark.parametrize(("age_ms", "expected"), [(0, []), (DAY_MS - 1, []), (DAY_MS, [1]), (2 * DAY_MS, [1])])
def test_a_closed_timeline_stays_for_the_retention_time(age_ms, expected):
    """The retention time starts at the end of the timeline, when its newest record may have been written."""
    assert removable(timeline(1, age_ms), timeline(2, None)) == expected


def test_all_whose_time_is_over_go_oldest_first():
    """Timelines that are already removed are not returned again."""
    timelines = [
        timeline(1, 9 * DAY_MS, removed=True),
        timeline(2, 3 * DAY_MS),
        timeline(3, 2 * DAY_MS),
        timeline(4, 0),
        timeline(5, None),
    ]
    assert removable(*timelines) == [2, 3]


def test_none_goes_before_an_older_one():
    """Removed timelines are always the oldest ones, even if the clocks of two initiators differ."""
    assert removable(timeline(1, DAY_MS - 5), timeline(2, DAY_MS + 5), timeline(3, None)) == []


def test_unread_is_what_lies_between_the_cursor_and_the_end():
    """The result equals the cursor arithmetic for every small pair of timelines and every cursor."""
    for first, second in itertools.product(range(-1, 3), repeat=2):
        spans = [Span(1, 0, first), Span(2, 0, second), Span(3, 0, 5, closed=False)]
        for order, last in ((1, first), (2, second), (3, 5)):
            for offset in range(-1, last + 1):
                position = Position(order, offset)
                for removed, end in ((1, first), (2, second)):
                    found = expiry.unread(timeline(removed, DAY_MS, ends={"0": end}), {0: position})
                    left = cursors.distance(spans, position, Position(removed, end))
                    assert found == min(max(left, 0), end + 1)


def test_unread_is_summed_over_partitions():
    """A partition that the timeline does not have counts as read."""
    closed = timeline(2, DAY_MS, ends={"0": 9, "1": -1, "2": 4})
    positions = {0: Position(2, 7), 1: Position(1, 3), 2: Position(1, 3), 3: Position(3, -1), 4: Position(2, -1)}
    assert expiry.unread(closed, positions) == 2 + 0 + 5 + 0 + 0
    assert expiry.unread(closed, {}) == 0
