"""Where a reader continues after a restart, for every kind of position and every policy."""

from __future__ import annotations

import itertools

import pytest

from strandline.errors import InvalidCursor, Unavailable
from strandline.log import cursors
from strandline.log.cursors import OnUnavailable, Position, Resumed, Span, resume

POLICIES: tuple[OnUnavailable, ...] = ("fail", "earliest", "latest")
MOVING: tuple[OnUnavailable, ...] = ("earliest", "latest")

#: Timeline 1 has 10 records, of which the first 4 expired; timeline 2 is empty; timeline 3 has 5 and is open.
SPANS = [Span(1, 4, 9), Span(2, 0, -1), Span(3, 0, 4, closed=False)]
BEGIN, END = 4, 15


def moved(spans: list[Span], position: Position, policy: OnUnavailable) -> tuple[int, int]:
    """The index and the number of skipped records of a position that is not available."""
    found = resume(spans, position, policy)
    assert found.problem is not None
    assert str(position) in found.problem
    assert found.position == cursors.at_index(spans, found.index)
    return found.index, found.skipped


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_position_reading_starts_at_the_oldest_record(policy):
    """No policy reports skipped records: a reader that has read nothing has lost nothing."""
    assert resume(SPANS, None, policy) == Resumed(Position(1, 3), BEGIN)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("position", "index"),
    [
        (Position(1, 3), BEGIN),
        (Position(1, 4), 5),
        (Position(1, 9), 10),
        (Position(3, 0), 11),
        (Position(3, 4), END),
    ],
    ids=str,
)
def test_an_available_position_is_kept(policy, position, index):
    """Positions from the oldest record to the end, inclusive, are available."""
    assert resume(SPANS, position, policy) == Resumed(position, index)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spelling", [Position(1, 9), Position(2, -1), Position(3, -1)], ids=str)
def test_all_spellings_of_a_border_between_timelines_are_one_position(policy, spelling):
    """The last record of a timeline equals the start of the next one, also across an empty timeline."""
    assert resume(SPANS, spelling, policy) == Resumed(Position(1, 9), 10)


@pytest.mark.parametrize("position", [Position(1, -1), Position(1, 0), Position(1, 2)], ids=str)
def test_an_expired_position_is_moved_and_the_skipped_records_are_counted(position):
    """The position is moved to the oldest available record or to the end."""
    index = position.offset + 1
    assert moved(SPANS, position, "earliest") == (BEGIN, BEGIN - index)
    assert moved(SPANS, position, "latest") == (END, END - index)
    with pytest.raises(
        InvalidCursor, match="its records have expired; available offsets are 001-0001-000000000000000004 to"
    ):
        resume(SPANS, position, "fail")


@pytest.mark.parametrize("position", [Position(3, 5), Position(3, 10**18 - 1)], ids=str)
def test_a_position_past_the_end_moves_back_to_the_end(position):
    """The newest records were lost. Later records are unread, and no record is read twice."""
    assert moved(SPANS, position, "earliest") == moved(SPANS, position, "latest") == (END, 0)
    with pytest.raises(InvalidCursor, match="the newest offset is 4"):
        resume(SPANS, position, "fail")


@pytest.mark.parametrize(
    ("position", "read"), [(Position(1, 10), 10), (Position(1, 12), 10), (Position(2, 0), 10)], ids=str
)
def test_past_the_end_of_a_closed_timeline_the_next_timeline_is_unread(position, read):
    """`earliest` skips no record of the next timeline."""
    assert moved(SPANS, position, "earliest") == (read, 0)
    assert moved(SPANS, position, "latest") == (END, END - read)
    with pytest.raises(InvalidCursor, match="ended at offset"):
        resume(SPANS, position, "fail")


def test_past_the_end_of_a_closed_timeline_whose_successor_has_expired_records():
    """`earliest` continues at the oldest available record."""
    spans = [Span(1, 10, 9), Span(2, 2, 4, closed=False)]
    assert moved(spans, Position(1, 12), "earliest") == (12, 2)


@pytest.mark.parametrize("offset", [-1, 0, 7])
def test_an_unknown_timeline_is_after_or_before_all_others(offset):
    """A newer timeline was lost; an older timeline has expired."""
    assert moved(SPANS, Position(4, offset), "earliest") == moved(SPANS, Position(4, offset), "latest") == (END, 0)
    assert moved(SPANS, Position(0, offset), "earliest") == (BEGIN, BEGIN)
    assert moved(SPANS, Position(0, offset), "latest") == (END, END)
    for order in (0, 4):
        with pytest.raises(InvalidCursor, match=f"there is no timeline {order}"):
            resume(SPANS, Position(order, offset), "fail")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_end_of_a_removed_timeline_is_still_available(policy):
    """All records after this position are available."""
    spans = [Span(1, 10, 9), Span(2, 0, 4, closed=False)]
    assert resume(spans, Position(1, 9), policy) == Resumed(Position(1, 9), 10)


def test_a_position_within_a_removed_timeline_has_expired():
    """The position moves to the start of the next timeline, which is spelled as the end of the removed one."""
    spans = [Span(1, 10, 9), Span(2, 0, 4, closed=False)]
    assert moved(spans, Position(1, 6), "earliest") == (10, 3)
    assert resume(spans, Position(1, 6), "earliest").position == Position(1, 9)
    assert moved(spans, Position(1, 6), "latest") == (15, 8)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_log_without_records_has_one_position(policy):
    """The start is also the end."""
    spans = [Span(1, 0, -1, closed=False)]
    assert resume(spans, None, policy) == resume(spans, Position(1, -1), policy) == Resumed(Position(1, -1), 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_position_ahead_of_a_closing_timeline_waits_for_the_switch(policy):
    """Another process has read further, so the position is neither moved nor refused."""
    spans = [Span(1, 0, 9), Span(2, 0, 4, closed=False, closing=True)]
    with pytest.raises(Unavailable, match="switch is not decided"):
        resume(spans, Position(2, 5), policy)
    assert resume(spans, Position(2, 4), policy) == Resumed(Position(2, 4), 15)
    assert resume(spans, Position(1, 9), policy) == Resumed(Position(1, 9), 10)
    if policy != "fail":
        assert moved(spans, Position(1, 12), policy)[0] == (10 if policy == "earliest" else 15)
        assert moved(spans, Position(3, 0), policy) == (15, 0)


def test_no_record_is_read_twice_and_earliest_skips_none_that_is_left():
    """The result equals a list of all records, for every position in and around many small logs."""
    for sizes in itertools.product(range(4), repeat=3):
        for removed in range(sum(sizes) + 1):
            spans, records = _laid_out(sizes, removed)
            for position in itertools.starmap(Position, itertools.product(range(5), range(-1, 5))):
                # Timelines are ordered, so records and positions can be compared directly.
                unread = [record for record in records[removed:] if record > position]
                for policy, expected in (("earliest", unread), ("latest", [])):
                    found = resume(spans, position, policy)
                    assert records[found.index :] == (expected if found.problem else unread)
                    assert found.skipped >= 0
                    assert found.index - found.skipped == sum(record <= position for record in records)


def _laid_out(sizes: tuple[int, ...], removed: int) -> tuple[list[Span], list[Position]]:
    """Timelines of these sizes without their oldest `removed` records, and all records ever written."""
    spans, left = [], removed
    for order, size in enumerate(sizes, 1):
        gone = min(left, size)
        left -= gone
        spans.append(Span(order, gone, size - 1, closed=order < len(sizes)))
    return spans, [Position(span.order, offset) for span in spans for offset in range(span.size)]
