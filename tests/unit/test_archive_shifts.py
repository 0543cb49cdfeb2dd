"""When a shift begins, is over, is finished, is cut or is stopped, and what is stored each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.archive import shifts
from strandline.archive.model import HOUR_MS, StoredPartition
from strandline.archive.shifts import Shift, Worker
from strandline.errors import Invalid
from strandline.log.cursors import Position

FIVE = 17 * HOUR_MS
GRACE = 30_000
START, HERE, THERE = Position(1, -1), Position(1, 41), Position(2, 7)


def minutes(number: float) -> int:
    return int(number * 60_000)


def working(now_ms: int = FIVE, stored: StoredPartition | None = None) -> Worker:
    """A worker without an unfinished shift of an earlier run."""
    return shifts.started(stored or StoredPartition(START, end_ms=FIVE), START, now_ms, HOUR_MS)


def after_hours(worker: Worker) -> Worker:
    """The worker after its shift is over."""
    return shifts.rotated(worker, worker.current.end_ms, HOUR_MS)


@given(st.integers(0, 2**41), st.integers(1, 2**33))
def test_a_shift_holds_the_present(now_ms, duration_ms):
    """The start of a shift is a multiple of any duration, and the shift contains the current time."""
    shift = shifts.begin(now_ms, duration_ms)
    assert shift.start_ms % duration_ms == 0
    assert shift.start_ms <= now_ms < shift.end_ms
    assert shift.end_ms - shift.start_ms == duration_ms


def test_a_grace_as_long_as_the_shifts_is_refused():
    """With such a grace period, the previous shift could not be finished before the next one is over."""
    shifts.check(HOUR_MS, HOUR_MS - 1)
    with pytest.raises(Invalid, match="must be shorter"):
        shifts.check(HOUR_MS, HOUR_MS)


def test_shifts_that_nobody_worked_are_one_without_records():
    """After a stop of several hours, the shift before the current one exists, is idle and can be finished."""
    last = StoredPartition(HERE, FIVE - 1, 3, FIVE - 2 * HOUR_MS, FIVE - HOUR_MS)
    worker = shifts.started(last, HERE, FIVE + minutes(10), HOUR_MS)
    assert worker.previous == Shift(0, FIVE - HOUR_MS, FIVE)
    assert worker.current.number == 1
    _, stored = shifts.finished(worker, last)
    assert stored.max_timestamp_ms == FIVE


@pytest.mark.parametrize("end_ms", [FIVE, FIVE + minutes(52)])
def test_a_restart_within_the_hour_has_nothing_to_make_up_for(end_ms):
    """There is no previous shift, neither after a finished shift nor after a stop in the current shift."""
    assert shifts.started(StoredPartition(HERE, end_ms=end_ms), HERE, FIVE + minutes(55), HOUR_MS).previous is None


def test_the_first_start_makes_up_for_the_past():
    """The first start has a previous shift, also if a position was stored without a finished shift."""
    for stored in (None, StoredPartition(HERE)):
        assert shifts.started(stored, START, FIVE, HOUR_MS).previous == Shift(0, FIVE - HOUR_MS, FIVE)


def test_a_worker_that_slept_leaves_shifts_out():
    """The next shift is the one at the current time, and its number is the next number."""
    late = shifts.rotated(working(), FIVE + 3 * HOUR_MS + minutes(1), HOUR_MS)
    assert late.previous == Shift(1, FIVE, FIVE + HOUR_MS)
    assert (late.current.number, late.current.start_ms) == (2, FIVE + 3 * HOUR_MS)


def test_nothing_rotates_before_the_end():
    """The last millisecond belongs to the shift."""
    worker = working()
    assert shifts.rotated(worker, FIVE + HOUR_MS - 1, HOUR_MS) is worker


def test_a_shift_that_still_waits_goes_on_as_part_of_the_next():
    """The shift after it keeps its own number and the newest timestamp of both."""
    worker = after_hours(shifts.consumed(working(), HERE, FIVE + 5))
    worker = after_hours(shifts.consumed(worker, THERE, FIVE + 3))
    assert worker.previous == Shift(2, FIVE + HOUR_MS, FIVE + 2 * HOUR_MS, FIVE + 5)
    assert worker.current.number == 3


def test_that_nothing_came_is_only_known_once_caught_up():
    """A partition with a backlog is not idle. A shift that has read records can finish before it has caught up."""
    now_ms = FIVE + HOUR_MS + GRACE
    idle = after_hours(working())
    assert not shifts.can_finish(idle, now_ms, GRACE, caught_up=False)
    assert shifts.can_finish(idle, now_ms, GRACE, caught_up=True)
    busy = after_hours(shifts.consumed(working(), HERE, FIVE))
    assert shifts.can_finish(busy, now_ms, GRACE, caught_up=False)
    assert not shifts.can_finish(busy, now_ms - 1, GRACE, caught_up=True)
    assert not shifts.can_finish(working(), now_ms, GRACE, caught_up=True)


def test_finishing_cuts_the_present_shift_at_that_moment():
    """The records of the current shift are published too. The shift keeps its timestamp and its number."""
    worker = after_hours(shifts.consumed(working(), HERE, FIVE + 7))
    worker = shifts.consumed(worker, THERE, FIVE + HOUR_MS + 9)
    rest, stored = shifts.finished(worker, None)
    assert stored == StoredPartition(THERE, FIVE + 7, 1, FIVE, FIVE + HOUR_MS)
    assert rest == Worker(THERE, worker.current)
    assert rest.current == Shift(2, FIVE + HOUR_MS, FIVE + 2 * HOUR_MS, FIVE + HOUR_MS + 9)


def test_finishing_without_a_previous_shift_is_a_mistake():
    """Finishing raises ValueError, because there is nothing to store."""
    with pytest.raises(ValueError, match="no shift"):
        shifts.finished(working(), None)


def test_a_cut_moves_the_position_and_nothing_else():
    """A cut finishes no shift, so timestamps do not change."""
    before = StoredPartition(START, FIVE, 3, 1, 2)
    assert shifts.cut(shifts.consumed(working(), HERE, FIVE + 9), before) == StoredPartition(HERE, FIVE, 3, 1, 2)
    assert shifts.cut(working(), None) == StoredPartition(START)


def test_a_stop_stores_the_present_shift():
    """The timestamp of the previous shift is not stored, and the stored end is not in the future."""
    worker = after_hours(shifts.consumed(working(), HERE, FIVE + 7))
    worker = shifts.consumed(worker, THERE, FIVE + HOUR_MS + 9)
    now_ms = FIVE + HOUR_MS + minutes(20)
    stored = shifts.stopped(worker, None, now_ms, caught_up=True)
    assert stored == StoredPartition(THERE, FIVE + HOUR_MS + 9, 2, FIVE + HOUR_MS, now_ms)


def test_an_idle_shift_that_is_stopped_early_stores_the_present():
    """The end of the shift is not stored, because it is in the future."""
    now_ms = FIVE + minutes(20)
    assert shifts.stopped(working(), None, now_ms, caught_up=True).max_timestamp_ms == now_ms


def test_an_idle_shift_that_is_stopped_late_stores_its_end():
    """The stored values are those of a shift that was finished on time."""
    stored = shifts.stopped(working(), None, FIVE + 5 * HOUR_MS, caught_up=True)
    assert (stored.max_timestamp_ms, stored.end_ms) == (FIVE + HOUR_MS, FIVE + HOUR_MS)


def test_a_stop_with_a_backlog_claims_nothing():
    """No timestamp is stored, because unread records may be older than the current time."""
    assert shifts.stopped(working(), None, FIVE + 9, caught_up=False).max_timestamp_ms == -1


@given(st.integers(-1, 2 * FIVE), st.integers(-1, 2 * FIVE), st.integers(0, 2 * HOUR_MS), st.booleans())
def test_the_stored_timestamp_never_goes_back(before_ms, seen_ms, passed_ms, caught_up):
    """Finish, cut and stop never lower the stored timestamp or the stored end."""
    stored = StoredPartition(START, before_ms, 9, 0, before_ms)
    worker = after_hours(shifts.consumed(shifts.started(stored, START, FIVE, HOUR_MS), HERE, seen_ms))
    now_ms = FIVE + HOUR_MS + passed_ms
    kept = [
        shifts.finished(worker, stored)[1],
        shifts.cut(worker, stored),
        shifts.stopped(worker, stored, now_ms, caught_up=caught_up),
    ]
    assert all(one.max_timestamp_ms >= before_ms for one in kept)
    assert all(one.end_ms >= before_ms for one in kept)
    assert {one.position for one in kept} == {HERE}
