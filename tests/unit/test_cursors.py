"""Cursor arithmetic, compared with a flat list of all records for every small list of timelines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidCursor
from strandline.log import cursors
from strandline.log.cursors import Position, Span

Spans = list[Span]


def layout(sizes: Sequence[int], removed: int) -> Spans:
    """Timelines of these sizes without their oldest `removed` records; the last timeline is open."""
    spans = []
    for order, size in enumerate(sizes, 1):
        gone = min(removed, size)
        removed -= gone
        spans.append(Span(order, gone, size - 1, closed=order < len(sizes)))
    return spans


def small_layouts() -> Iterator[tuple[Spans, int]]:
    for count in range(1, 5):
        for sizes in itertools.product(range(4), repeat=count):
            for removed in range(sum(sizes) + 1):
                yield layout(sizes, removed), removed


SMALL = list(small_layouts())


class Oracle:
    """A flat list of all records ever written. The index of a position is the number of records before it."""

    def __init__(self, spans: Spans, removed: int) -> None:
        self.records = [Position(span.order, offset) for span in spans for offset in range(span.size)]
        self.removed = removed
        self.spellings: dict[Position, int] = {}
        before = 0
        for span in spans:
            for offset in range(-1, span.size):
                self.spellings[Position(span.order, offset)] = before + offset + 1
            before += span.size

    @property
    def available(self) -> dict[Position, int]:
        return {position: index for position, index in self.spellings.items() if index >= self.removed}


def checked() -> Iterator[tuple[Spans, Oracle]]:
    for spans, removed in SMALL:
        yield spans, Oracle(spans, removed)


@st.composite
def long_layouts(draw: st.DrawFn) -> tuple[Spans, Oracle]:
    sizes = draw(st.lists(st.one_of(st.just(0), st.integers(0, 12)), min_size=1, max_size=30))
    removed = draw(st.integers(0, sum(sizes)))
    spans = layout(sizes, removed)
    return spans, Oracle(spans, removed)


def refused(reason: str) -> pytest.RaisesExc[InvalidCursor]:
    return pytest.raises(InvalidCursor, check=lambda error: error.reason == reason)


def read_all(spans: Spans, position: Position) -> list[Position]:
    """The records that a reader gets if it calls `read_next` after every record."""
    seen = []
    while (place := cursors.read_next(spans, position)) is not None:
        position = Position(place[0].order, place[1])
        seen.append(position)
        assert len(seen) < 1_000, "the reader does not reach the end"
    return seen


# -- text forms


@given(st.integers(0, 0xFFFF) | st.integers(0, 0xFFFFFFF), st.integers(-1, 10**18 - 1))
def test_every_position_survives_its_text_form(order, offset):
    """Formatting and parsing return the same position, also in upper case."""
    position = Position(order, offset)
    text = str(position)
    assert re.fullmatch(r"001-[0-9a-f]{4,7}-([0-9]{18}|-1)", text)
    assert cursors.parse(text) == position
    assert cursors.parse(text.upper()) == position


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("001-000f-000000000000000012", Position(15, 12)),
        ("001-000F-000000000000000012", Position(15, 12)),
        ("001-0001--1", Position(1, -1)),
        ("001-ffff-999999999999999999", Position(65535, 10**18 - 1)),
        ("001-10000-000000000000000012", Position(65536, 12)),
        ("0", Position(1, 0)),
        ("12", Position(1, 12)),
        ("000000000000000012", Position(1, 12)),
        ("999999999999999999", Position(1, 10**18 - 1)),
        ("-1", Position(1, -1)),
        ("BEGIN", None),
        ("begin", None),
    ],
)
def test_all_text_forms_are_understood(text, position):
    """The long form in either case, plain decimals of timeline 1, and BEGIN are valid."""
    assert cursors.parse(text) == position


BROKEN = [
    "",
    " ",
    "END",
    "Begin",
    "beg\u0131n",
    "BEGIN ",
    " BEGIN",
    "begin\n",
    "-2",
    "-01",
    "+1",
    "--1",
    "1.0",
    "1e3",
    "0x10",
    " 12",
    "12 ",
    "12\n",
    "1_000",
    "\u0661\u0662",
    "\uff11\uff12",
    "1234567890123456789",
    "9" * 100_000,
    "001-0001",
    "001-0001-",
    "001-0001-12",
    "001-0001-00000000000000012",
    "001-0001-0000000000000000012",
    "001-0001--2",
    "001-0001-+00000000000000012",
    "001-0001- 00000000000000012",
    "001-0001-00000000000000001\u0662",
    "001-000\u0661-000000000000000012",
    "001-001-000000000000000012",
    "001-00001-000000000000000012",
    "001-000g-000000000000000012",
    "001-0001-000000000000000012\n",
    " 001-0001-000000000000000012",
    "002-0001-000000000000000012",
    "1-0001-000000000000000012",
    "001_0001_000000000000000012",
    "001-0001-000000000000000012-",
    "\ud800",
    "\0",
]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: ascii(text)[:40])
def test_broken_texts_are_refused(text):
    """Any other text is INVALID_FORMAT. The message is short and shows the right form."""
    with refused("INVALID_FORMAT") as caught:
        cursors.parse(text)
    assert "001-0001-000000000000000012" in caught.value.detail
    assert len(caught.value.detail) < 300


@given(st.text(max_size=40))
def test_parsing_never_fails_in_another_way(text):
    """Any text is a position, BEGIN or INVALID_FORMAT. A parsed position formats to a text that parses to it."""
    with suppress(InvalidCursor):
        position = cursors.parse(text)
        if position is None:
            assert text in {"BEGIN", "begin"}
        else:
            assert cursors.parse(str(position)) == position


# -- indexes and spelling


def test_every_spelling_has_the_index_of_the_flat_list():
    """The index of a position is the number of records before it."""
    for spans, oracle in checked():
        for position, index in oracle.spellings.items():
            assert cursors.index_of(spans, position) == index, (spans, position)
        assert cursors.end_index(spans) == len(oracle.records)


def test_begin_is_where_the_removed_prefix_ends():
    """The begin index is the number of removed records."""
    for spans, oracle in checked():
        assert cursors.begin_index(spans) == oracle.removed, spans


def canonical(spans: Sequence[Span], position: Position) -> Position:
    return cursors.at_index(spans, cursors.index_of(spans, position))


def test_the_canonical_spelling_names_the_record_just_before():
    """Equal positions have equal texts: the record before them, or −1 of the first timeline."""
    for spans, oracle in checked():
        for position, index in oracle.spellings.items():
            expected = oracle.records[index - 1] if index else Position(1, -1)
            assert canonical(spans, position) == expected, (spans, position)
            assert cursors.at_index(spans, index) == expected, (spans, index)


def test_a_position_newer_than_the_timelines_is_at_their_end():
    """A reader whose timelines are older than its position has nothing to read."""
    spans = [Span(1, 0, 9), Span(2, 0, 4)]
    assert cursors.index_after(spans, Position(1, 3)) == 4
    assert cursors.index_after(spans, Position(2, 4)) == cursors.index_after(spans, Position(2, 9)) == 15
    assert cursors.index_after(spans, Position(3, 0)) == 15


def test_the_end_of_a_timeline_equals_the_start_of_the_next():
    """`last of n` equals `−1 of n+1`, also across empty timelines."""
    for spans, _ in checked():
        for left, right in itertools.combinations(spans, 2):
            between = spans[left.order : right.order - 1]
            same = all(span.size == 0 for span in between)
            end, start = Position(left.order, left.last), Position(right.order, -1)
            assert (cursors.distance(spans, start, end) == 0) == same, (spans, end, start)
            assert (canonical(spans, end) == canonical(spans, start)) == same


def test_order_and_distance_are_those_of_the_flat_list():
    """Both are antisymmetric and equal the number of records between, for every pair of positions."""
    for spans, oracle in checked():
        for (left, i), (right, j) in itertools.product(oracle.spellings.items(), repeat=2):
            assert cursors.distance(spans, left, right) == j - i
            assert cursors.distance(spans, right, left) == i - j
            compared = cursors.distance(spans, right, left)
            assert (compared > 0, compared < 0) == (i > j, i < j)


@given(long_layouts(), st.data())
def test_distances_add_up(made, data):
    """The distances from a to b and from b to c add up to the distance from a to c."""
    spans, oracle = made
    a, b, c = (data.draw(st.sampled_from(sorted(oracle.spellings))) for _ in range(3))
    assert cursors.distance(spans, a, b) + cursors.distance(spans, b, c) == cursors.distance(spans, a, c)


# -- availability


def test_exactly_the_positions_with_everything_after_them_are_available():
    """An available position is returned unchanged. Any other is UNAVAILABLE, and the error has the range."""
    for spans, oracle in checked():
        for position, index in oracle.spellings.items():
            if index >= oracle.removed:
                assert cursors.available(spans, position) == position
                continue
            with refused("UNAVAILABLE") as caught:
                cursors.available(spans, position)
            assert caught.value.info["oldest_available_offset"] == cursors.oldest_text(spans)
            assert caught.value.info["newest_available_offset"] == cursors.newest_text(spans)
            assert cursors.oldest_text(spans) in caught.value.detail
            assert cursors.newest_text(spans) in caught.value.detail


def test_begin_is_the_oldest_available_position():
    """BEGIN becomes the canonical spelling of the begin index, which is available."""
    for spans, oracle in checked():
        begin = cursors.available(spans, None)
        assert cursors.index_of(spans, begin) == oracle.removed
        assert begin == canonical(spans, begin)
        assert cursors.available(spans, begin) == begin


def test_offsets_past_the_end_are_refused():
    """An offset past a closed timeline is INVALID_OFFSET; an offset past the open one is UNAVAILABLE."""
    for spans, _ in checked():
        for span in spans:
            reason = "INVALID_OFFSET" if span.closed else "UNAVAILABLE"
            for offset in (span.last + 1, span.last + 2, 10**18 - 1):
                with refused(reason):
                    cursors.index_of(spans, Position(span.order, offset))
                with refused(reason) as caught:
                    cursors.available(spans, Position(span.order, offset))
                assert caught.value.info["newest_available_offset"] == cursors.newest_text(spans)


@pytest.mark.parametrize("order", [0, 5, 0xFFFF])
def test_an_unknown_timeline_is_named_by_arithmetic_and_unavailable_to_readers(order):
    """Distances raise TIMELINE_NOT_FOUND; readers get UNAVAILABLE with the range."""
    spans = layout([2, 1], 1)
    position = Position(order, -1)
    with refused("TIMELINE_NOT_FOUND"):
        cursors.distance(spans, position, Position(1, 0))
    with refused("TIMELINE_NOT_FOUND"):
        cursors.distance(spans, Position(1, 0), position)
    with refused("TIMELINE_NOT_FOUND"):
        canonical(spans, position)
    with refused("UNAVAILABLE") as caught:
        cursors.available(spans, position)
    assert caught.value.info["oldest_available_offset"] == "001-0001-000000000000000001"
    assert caught.value.info["newest_available_offset"] == "001-0002-000000000000000000"


def test_a_timeline_before_the_first_one_was_of_another_event_type():
    """Positions of a deleted event type of the same name are unavailable, and the error says why."""
    spans = [Span(3, 0, 4, closed=False)]
    for text in ("001-0002-000000000000000001", "001-0002--1", "001-0001--1", "1", "-1"):
        with refused("UNAVAILABLE") as caught:
            cursors.available(spans, cursors.parse(text))
        assert "belonged to an event type of the same name that was deleted" in caught.value.detail
    with refused("TIMELINE_NOT_FOUND"):
        cursors.distance(spans, Position(2, 1), Position(3, 1))
    resumed = cursors.resume(spans, Position(2, 1), "earliest")
    assert (resumed.position, resumed.index) == (Position(3, -1), 0)


def test_plain_offsets_go_away_with_timeline_1():
    """A plain decimal never means a record of a later timeline."""
    spans = layout([3, 5], 4)
    for offset in range(2):
        with refused("UNAVAILABLE"):
            cursors.available(spans, cursors.parse(str(offset)))
    with refused("INVALID_OFFSET"):
        cursors.available(spans, cursors.parse("4"))


def test_a_cursor_at_the_end_of_a_removed_timeline_still_works():
    """Such a cursor equals the start of the next timeline."""
    spans = layout([3, 0, 5], 3)
    assert read_all(spans, cursors.available(spans, Position(1, 2))) == [Position(3, n) for n in range(5)]


def test_the_oldest_text_is_the_first_record_that_can_be_read():
    """Without records it is the position of the next record in the open timeline."""
    for spans, oracle in checked():
        left = oracle.records[oracle.removed :]
        expected = left[0] if left else Position(spans[-1].order, spans[-1].size)
        assert cursors.oldest_text(spans) == str(expected), spans


def test_the_newest_text_is_the_last_record_ever_written():
    """It is a cursor at the end. Before the first record it is −1 of the first timeline."""
    for spans, oracle in checked():
        expected = oracle.records[-1] if oracle.records else Position(1, -1)
        assert cursors.newest_text(spans) == str(expected), spans


# -- shift and lag


def test_shifting_moves_over_the_flat_list_and_stops_at_its_ends():
    """A shift in either direction gives a canonical position; one past either end is UNAVAILABLE."""
    for spans, oracle in checked():
        end = len(oracle.records)
        for position, index in oracle.available.items():
            for by in range(oracle.removed - index - 1, end - index + 2):
                if oracle.removed <= index + by <= end:
                    moved = cursors.shift(spans, position, by)
                    assert moved == cursors.at_index(spans, index + by)
                    assert cursors.distance(spans, position, moved) == by
                else:
                    with refused("UNAVAILABLE"):
                        cursors.shift(spans, position, by)


@pytest.mark.parametrize("by", [-(2**63), 2**63 - 1])
def test_shifting_by_huge_numbers_is_refused(by):
    """A shift by any 64-bit number is UNAVAILABLE, and the message names the number."""
    with refused("UNAVAILABLE") as caught:
        cursors.shift(layout([2, 2], 1), Position(1, 1), by)
    assert str(by) in caught.value.detail


def test_shifting_starts_at_an_available_position():
    """An expired position cannot be shifted, even if the target is available."""
    spans = layout([3, 3], 2)
    with refused("UNAVAILABLE"):
        cursors.shift(spans, Position(1, -1), 3)
    assert cursors.shift(spans, None, 2) == Position(2, 0)


def test_lag_counts_the_records_that_follow():
    """The lag is defined for BEGIN and every available position; other positions are refused."""
    for spans, oracle in checked():
        for position, index in oracle.spellings.items():
            if index >= oracle.removed:
                assert cursors.lag(spans, position) == len(oracle.records) - index
            else:
                with refused("UNAVAILABLE"):
                    cursors.lag(spans, position)
        assert cursors.lag(spans, None) == len(oracle.records) - oracle.removed


# -- reading


def test_a_reader_sees_exactly_the_rest_from_every_available_position():
    """A reader gets every remaining record once and in order, from every spelling of a position."""
    for spans, oracle in checked():
        for position, index in oracle.available.items():
            assert read_all(spans, position) == oracle.records[index:], (spans, position)


@given(long_layouts(), st.data())
def test_a_reader_sees_exactly_the_rest_of_many_timelines(made, data):
    """The same is true for up to thirty timelines, many of them empty."""
    spans, oracle = made
    position = data.draw(st.sampled_from(sorted(oracle.available)))
    index = oracle.spellings[position]
    assert read_all(spans, position) == oracle.records[index:]
    assert cursors.index_of(spans, position) == index
    assert cursors.lag(spans, position) == len(oracle.records) - index
    target = data.draw(st.integers(oracle.removed, len(oracle.records)))
    moved = cursors.shift(spans, position, target - index)
    assert read_all(spans, moved) == oracle.records[target:]
    assert cursors.shift(spans, moved, index - target) == canonical(spans, position)


# -- later changes


def later(spans: Spans, appended: int, next_sizes: Sequence[int], removed: int) -> Spans:
    """The same timelines after appends, switches and expiry."""
    sizes = [span.size for span in spans]
    sizes[-1] += appended
    return layout([*sizes, *next_sizes], removed)


def test_the_canonical_spelling_outlives_appends_switches_and_removal():
    """A stored canonical cursor stays canonical after later changes of the timelines."""
    for spans, oracle in checked():
        for appended, next_sizes in itertools.product((0, 2), ([], [0], [2], [0, 1])):
            for removed in (oracle.removed, len(oracle.records)):
                changed = later(spans, appended, next_sizes, removed)
                for position, index in oracle.spellings.items():
                    spelling = canonical(spans, position)
                    assert canonical(changed, spelling) == spelling
                    assert cursors.index_of(changed, spelling) == index


@given(long_layouts(), st.integers(0, 5), st.lists(st.integers(0, 3), max_size=5), st.data())
def test_a_resumed_reader_sees_the_rest_and_what_came_later(made, appended, next_sizes, data):
    """A reader that resumes from a cursor from before a switch gets exactly the records it has not read."""
    spans, oracle = made
    position = data.draw(st.sampled_from(sorted(oracle.available)))
    given_out = canonical(spans, position)
    index = oracle.spellings[position]
    changed = later(spans, appended, next_sizes, data.draw(st.integers(oracle.removed, index)))
    everything = Oracle(changed, 0).records
    assert read_all(changed, cursors.available(changed, given_out)) == everything[index:]


def test_removing_a_timeline_changes_no_index():
    """A cleaned-up timeline keeps its size, so distances across it do not change."""
    spans = layout([3, 0, 2, 4], 0)
    gone = [replace(span, first=span.last + 1) if span.order < 4 else span for span in spans]
    for position, index in Oracle(spans, 0).spellings.items():
        assert cursors.index_of(gone, position) == index
    assert cursors.begin_index(gone) == 5
