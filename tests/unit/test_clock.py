"""Times as text and as milliseconds, and the clocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import (
    FastClock,
    ManualClock,
    SystemClock,
    check_rfc3339,
    parse_rfc3339,
    system_clock,
    to_rfc3339,
)

# From year 1 to year 9999.
ANY_MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)


@given(ANY_MS)
def test_every_millisecond_survives_its_text_form(ms):
    """Formatting and parsing return the same millisecond, also before 1970."""
    text = to_rfc3339(ms)
    assert len(text) == len("2023-11-14T22:13:20.123Z")
    assert parse_rfc3339(text) == ms


@given(st.datetimes(timezones=st.timezones()))
def test_parsing_agrees_with_the_standard_library(moment):
    """Both parse any time in any zone with whole minutes to the same millisecond."""
    seconds = moment.utcoffset().total_seconds()
    if seconds % 60:
        moment = moment.astimezone(UTC) if moment.year > 1 else moment.replace(tzinfo=UTC)
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (datetime.resolution * 1000)
    assert parse_rfc3339(moment.isoformat()) == expected


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01t00:00:00.1z", 100),
        ("1970-01-01 00:00:00.12Z", 120),
        ("1970-01-01T00:00:00.123456789Z", 123),
        ("1970-01-01T00:00:00.999999999Z", 999),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T19:30:00-04:30", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2016-12-31T23:59:60.500Z", 1_483_228_800_500),
        ("2017-01-01T01:59:60+02:00", 1_483_228_800_000),
        ("2024-02-29T12:00:00Z", 1_709_208_000_000),
    ],
)
def test_times_are_understood_as_they_come(text, ms):
    """Up to nine digits, positive and negative offsets, small letters, a space and leap seconds are valid."""
    assert parse_rfc3339(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2024-05-01",
        "2024-05-01T12:00Z",
        "2024-05-01T12:00:00",
        "2024-05-01T12:00:00.Z",
        "2024-05-01T12:00:00.1234567890Z",
        "2024-05-01T12:00:00+02",
        "2024-05-01T12:00:00+0200",
        "2024-05-01T12:00:00 +02:00",
        "2024-05-01T12:00:00+02:60",
        "2024-05-01T12:00:00+00:99",
        "2024-05-01T12:00:00+24:00",
        "2024-05-01T12:00:61Z",
        "2024-05-01T12:00:75Z",
        "2024-05-01T12:60:00Z",
        "2024-05-01T24:00:00Z",
        "2024-13-01T12:00:00Z",
        "2024-00-01T12:00:00Z",
        "2023-02-29T12:00:00Z",
        "2024-04-31T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "24-05-01T12:00:00Z",
        "2024-5-1T12:00:00Z",
        "+2024-05-01T12:00:00Z",
        " 2024-05-01T12:00:00Z",
        "2024-05-01T12:00:00Z\n",
        "2024\u201305-01T12:00:00Z",
        "\u0662\u0660\u0662\u0664-05-01T12:00:00Z",
        "1714564800000",
    ],
)
def test_what_is_not_a_time_is_refused(text):
    """Missing parts, impossible dates and offsets, and non-ASCII digits raise ValueError."""
    with pytest.raises(ValueError):
        parse_rfc3339(text)


def test_a_manual_clock_moves_only_when_told():
    """The time changes only when a test calls `advance`."""
    clock = ManualClock(5)
    assert (clock.now_ms(), clock.now_ms()) == (5, 5)
    clock.advance(10)
    assert (clock.now_ms(), clock.steady_ms()) == (15, 15)


def test_the_test_hook_makes_the_clock_fast(monkeypatch):
    """`STRANDLINE_TEST_CLOCK=<start_ms>,<speed>` sets the start and the speed of the clock."""
    monkeypatch.setenv("STRANDLINE_TEST_CLOCK", "1000000,1e9")
    clock = system_clock()
    assert isinstance(clock, FastClock)
    assert 1_000_000 <= clock.now_ms() < clock.now_ms()
    assert clock.steady_ms() <= clock.steady_ms()


@pytest.mark.parametrize("ahead_ms", [500, -500])
def test_a_start_with_a_sign_is_relative_to_the_real_time(monkeypatch, ahead_ms):
    """The clock is that far off, however long the process takes to start."""
    monkeypatch.setenv("STRANDLINE_TEST_CLOCK", f"{ahead_ms:+},1")
    before_ms = SystemClock().now_ms()
    found_ms = system_clock().now_ms()
    assert before_ms + ahead_ms - 1 <= found_ms <= SystemClock().now_ms() + ahead_ms


@pytest.mark.parametrize("hook", ["", None])
def test_without_the_hook_the_clock_is_the_real_one(monkeypatch, hook):
    """An empty variable counts as unset."""
    monkeypatch.delenv("STRANDLINE_TEST_CLOCK", raising=False)
    if hook is not None:
        monkeypatch.setenv("STRANDLINE_TEST_CLOCK", hook)
    clock = system_clock()
    assert isinstance(clock, SystemClock)
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.steady_ms() <= clock.steady_ms()


_DATES = [f"{y}-{m:02d}-{d:02d}" for y in ("2023", "2024", "0000") for m in range(14) for d in range(33)]
_CLOCKS = [f"{h:02d}:{m:02d}:{s:02d}" for h, m, s in [*((h, 5, 5) for h in range(26)), (5, 59, 59), (5, 60, 0)]]
_CLOCKS += ["05:05:60", "05:05:61", "05:05", "5:05:05", "05:05:\u0665\u0665"]
_ZONES = ["Z", "z", "+00:00", "-23:59", "+24:00", "+02:60", "+0200", "+02", "", "Z\n", " Z"]
_FRACTIONS = ["", ".1", ".123456789", ".1234567890", ".", ",1"]


@pytest.mark.parametrize(
    "texts",
    [
        [f"{date}T05:05:05Z" for date in _DATES],
        [f"2024-05-01{between}{clock}Z" for clock in _CLOCKS for between in ("T", "t", " ", "_", "")],
        [f"2024-05-01T05:05:05{fraction}{zone}" for fraction in _FRACTIONS for zone in _ZONES],
        ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "", "now", "02024-05-01T05:05:05Z"],
    ],
    ids=["dates", "clocks", "zones", "others"],
)
def test_a_check_refuses_exactly_what_cannot_be_parsed(texts):
    """The check and the parser accept the same texts and raise the same errors."""
    checked = [error(lambda text: check_rfc3339([text]), text) for text in texts]
    assert checked == [error(parse_rfc3339, text) for text in texts]


def test_many_times_are_checked_at_once():
    """The first error is raised. A line break in a text does not make it two texts."""
    good = "2024-05-01T12:00:00Z"
    check_rfc3339([])
    check_rfc3339([good] * 3)
    check_rfc3339([good, "2016-12-31T23:59:60Z"])
    for bad in ("now", f"{good}\n{good}", "", "\n"):
        with pytest.raises(ValueError, match="is not a time like"):
            check_rfc3339([good, bad, good])


def error(parse: Callable[[str], object], text: str) -> str | None:
    try:
        parse(text)
    except ValueError as refused:
        return str(refused)
    return None
