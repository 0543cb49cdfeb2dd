"""Tests the rules against every sentence of the seed about shifts, what they store, and shutdown.

Sentences about files, flags and their propagation are tested in `tests/contract/archive/test_seed_flags.py`.
"""

from __future__ import annotations

import pytest

from strandline.archive import readiness, shifts
from strandline.archive.model import HOUR_MS, StoredPartition, Term
from strandline.archive.readiness import PartitionStates
from strandline.archive.settings import ArchiveSettings
from strandline.archive.shifts import Shift, Worker
from strandline.clock import parse_rfc3339
from strandline.log.cursors import Position

FIVE = parse_rfc3339("2024-05-01T17:00:00Z")
SIX = FIVE + HOUR_MS
QUARTER_PAST = FIVE + 15 * 60_000
GRACE = 30_000
START, NEXT = Position(1, -1), Position(1, 41)


def worker(now_ms: int = FIVE) -> Worker:
    return shifts.started(StoredPartition(START, end_ms=FIVE), START, now_ms, HOUR_MS)


# -- starting their shifts


def test_a_worker_starts_a_shift_when_it_begins_work_on_a_partition():
    """The seed: “When a worker is first created and begins work on a particular partition it starts a shift”."""
    assert worker(QUARTER_PAST).current == Shift(1, FIVE, SIX)


def test_shifts_keep_track_of_offset_and_maximum_timestamp():
    """The seed: “Shift's keep track of … their currentOffset and the maximum observed timestamp of a message”."""
    after = shifts.consumed(worker(), NEXT, FIVE + 7)
    assert (after.cursor, after.current.max_timestamp_ms) == (NEXT, FIVE + 7)


def test_the_maximum_timestamp_starts_with_minus_one():
    """The seed: “The maxTimestamp of each shift starts with maxTimestamp = -1”."""
    first = shifts.consumed(worker(), NEXT, FIVE + 7)
    assert worker().current.max_timestamp_ms == -1
    assert shifts.rotated(first, SIX, HOUR_MS).current.max_timestamp_ms == -1


def test_start_and_end_are_those_of_a_shift_that_started_on_time():
    """The seed: “At 5:52pm … the start time would have been 5:00pm and the end time … 6:00pm”."""
    shift = shifts.begin(FIVE + 52 * 60_000, HOUR_MS)
    assert (shift.start_ms, shift.end_ms) == (FIVE, SIX)


def test_the_equation_of_the_start():
    """The seed: “Actual equation is ts - ts % duration”."""
    for duration_ms in (1_000, 900_000, HOUR_MS, 7 * HOUR_MS):
        assert shifts.begin(QUARTER_PAST + 7, duration_ms).start_ms == (
            QUARTER_PAST + 7 - (QUARTER_PAST + 7) % duration_ms
        )


def test_the_first_shift_is_number_one_and_the_next_one_more():
    """The seed: “The first shift of a worker is #1 and each subsequent shift … increments that counter by 1”."""
    now = worker()
    for number in (1, 2, 3):
        assert now.current.number == number
        now = shifts.rotated(now, now.current.end_ms, HOUR_MS)


# -- the message consume loop


def test_a_greater_timestamp_becomes_the_maximum():
    """The seed: “If it's greater, then maxTimestamp is set to the timestamp of the current message”."""
    now = shifts.consumed(worker(), NEXT, FIVE + 7)
    assert shifts.consumed(now, NEXT, FIVE + 9).current.max_timestamp_ms == FIVE + 9
    assert shifts.consumed(now, NEXT, FIVE + 3).current.max_timestamp_ms == FIVE + 7


def test_a_shift_that_is_over_becomes_the_previous_one():
    """The seed: “It assigns currentShift to previousShift and then sets currentShift to a new shift created with a
    starting offset of previousShift.getOffset() and a shift number of previousShift.shiftNumber + 1”.
    """
    before = shifts.consumed(worker(), NEXT, FIVE + 7)
    after = shifts.rotated(before, SIX, HOUR_MS)
    assert after.previous == before.current
    assert (after.cursor, after.current.number) == (NEXT, 2)


def test_a_shift_finishes_when_its_grace_is_over():
    """The seed: “It's time to finish when the shift's end time is greater than … fileCloseGraceTimeAfterExpiredMs
    (default: 30000)”.
    """
    assert ArchiveSettings().grace_ms == GRACE
    waiting = shifts.rotated(worker(), SIX, HOUR_MS)
    assert not shifts.can_finish(waiting, SIX + GRACE - 1, GRACE, caught_up=True)
    assert shifts.can_finish(waiting, SIX + GRACE, GRACE, caught_up=True)


def test_after_finishing_the_current_shift_is_the_only_one():
    """The seed: “The worker sets previousShift = null, making the current shift the only shift object”."""
    waiting = shifts.rotated(worker(), SIX, HOUR_MS)
    after, _ = shifts.finished(waiting, None)
    assert after == Worker(START, waiting.current, None)


# -- persisting metadata


def test_the_stored_offset_is_the_next_one_to_consume():
    """The seed: “The offset is always the next offset that the Worker is going to attempt to consume”."""
    waiting = shifts.rotated(shifts.consumed(worker(), NEXT, FIVE), SIX, HOUR_MS)
    assert shifts.finished(waiting, None)[1].position == NEXT


def test_a_shift_without_messages_stores_its_end():
    """The seed: “If maxTimestamp == -1 then the timestamp that gets stored is sprint.endTime”."""
    idle = shifts.rotated(worker(), SIX, HOUR_MS)
    assert shifts.finished(idle, None)[1].max_timestamp_ms == SIX


def test_an_idle_partition_does_not_hold_the_hour_back():
    """The seed: “KaBoom will be able to reliably indicate that the hour's boom files are ready”."""
    _, stored = shifts.finished(shifts.rotated(worker(), SIX, HOUR_MS), None)
    assert readiness.blocked_by(FIVE, PartitionStates(1, {0: stored}, 0), None, "timestamps") is None


# -- shutting down


def test_a_graceful_shutdown_stores_the_current_shift_only():
    """The seed: “The previousShift shouldn't persist its metadata … It then calls currentShift.finish(true)”."""
    waiting = shifts.rotated(shifts.consumed(worker(), START, FIVE + 50), SIX, HOUR_MS)
    stored = shifts.stopped(shifts.consumed(waiting, NEXT, FIVE + 3), None, SIX + 9, caught_up=True)
    assert (stored.position, stored.shift, stored.max_timestamp_ms) == (NEXT, 2, FIVE + 3)


# -- the ready flag writer's conditions


def test_hours_before_the_current_one_are_checked():
    """The seed: “Starts at the beginning of the top of the previous hour”, so never at the current one."""
    assert readiness.due_hours([Term("a", FIVE)], -1, SIX + 5) == [FIVE]


def test_an_hour_with_a_flag_is_not_checked_again():
    """The seed: “A) There's a _READY flag in that hour already”."""
    assert readiness.due_hours([Term("a", FIVE)], FIVE, SIX + 5) == []


@pytest.mark.parametrize(("stamps", "ready"), [((FIVE + 1, FIVE + 9), True), ((FIVE, FIVE + 9), False)])
def test_the_top_of_the_hour_is_before_the_earliest_stored_timestamp(stamps, ready):
    """The seed: “B) That the timestamp of the top of the hour is < earliestMaxTimestamp”."""
    stored = {number: StoredPartition(NEXT, stamp) for number, stamp in enumerate(stamps)}
    assert (readiness.blocked_by(FIVE, PartitionStates(2, stored, 0), None, "timestamps") is None) is ready
