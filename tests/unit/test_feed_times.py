"""Operation times rise on a server, whatever its clock does."""

from __future__ import annotations

import pytest

from strandline.clock import ManualClock
from strandline.errors import Invalid
from strandline.feeds import times
from strandline.feeds.model import MAX_TIME


def test_times_strictly_rise_within_a_millisecond():
    clock = times.OperationClock(ManualClock(1_700_000_000_000))
    given = [clock.next() for _ in range(5000)]
    assert given == sorted(set(given))
    assert times.to_ms(given[0]) == 1_700_000_000_000


def test_times_rise_when_the_clock_is_set_back():
    manual = ManualClock(1_700_000_000_000)
    clock = times.OperationClock(manual)
    before = clock.next()
    manual.advance(-60_000)
    assert clock.next() > before


def test_a_time_has_the_milliseconds_of_the_clock_and_the_node():
    manual = ManualClock(1_700_000_000_000)
    clock = times.OperationClock(manual, node=1023)
    manual.advance(5)
    assert clock.next() == (1_700_000_000_005 << 20) + (1023 << 10)
    assert clock.next() == (1_700_000_000_005 << 20) + (1023 << 10) + 1


def test_nodes_give_different_times():
    manual = ManualClock(1_700_000_000_000)
    one, other = (times.OperationClock(manual, node) for node in (1, 2))
    assert {one.next() for _ in range(1024)}.isdisjoint({other.next() for _ in range(1024)})


def test_a_given_millisecond_always_has_the_same_time():
    """A replay that knows only milliseconds repeats identical operations."""
    assert times.of_ms(1_700_000_000_000) == 1_700_000_000_000 << 20
    assert times.of_ms(0) == 0


def test_no_node_gives_a_later_time_in_a_millisecond():
    assert times.last_of_ms(5) == times.of_ms(6) - 1
    clock = times.OperationClock(ManualClock(5), node=1023)
    assert max(clock.next() for _ in range(1024)) == times.last_of_ms(5)
    assert times.last_of_ms(2**43 - 1) == MAX_TIME


@pytest.mark.parametrize("ms", [-1, 2**43, 2**70])
def test_milliseconds_out_of_range_are_refused(ms):
    with pytest.raises(Invalid, match="operation_ms"):
        times.of_ms(ms)


@pytest.mark.parametrize("time", [-1, MAX_TIME + 1])
def test_times_out_of_range_are_refused(time):
    with pytest.raises(Invalid, match="operation_time"):
        times.checked(time)
    assert times.checked(MAX_TIME) == MAX_TIME
