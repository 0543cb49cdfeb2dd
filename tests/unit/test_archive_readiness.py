"""Which hours are due, and what blocks an hour from being ready."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.archive import readiness
from strandline.archive.model import HOUR_MS, Barrier, StoredPartition, Term
from strandline.archive.readiness import PartitionStates
from strandline.log.cursors import Position

NOON = 12 * HOUR_MS
GRACE = 30_000
AT = Position(1, 9)


def stored(max_timestamp_ms: int, end_ms: int = -1, position: Position = AT) -> StoredPartition:
    return StoredPartition(position, max_timestamp_ms, 1, 0, end_ms)


def progress(*partitions: StoredPartition | None, read_ms: int = 0) -> PartitionStates:
    found = {number: one for number, one in enumerate(partitions) if one is not None}
    return PartitionStates(len(partitions), found, read_ms)


def barrier(*ends: Position) -> Barrier:
    return Barrier(NOON + HOUR_MS + GRACE, dict(enumerate(ends)))


# -- due


def test_hours_are_due_oldest_first_without_the_current_one():
    """Due hours range from the first configured hour to the hour before the current one."""
    found = readiness.due_hours([Term("a", NOON - 3 * HOUR_MS)], -1, NOON + 5)
    assert found == [NOON - 3 * HOUR_MS, NOON - 2 * HOUR_MS, NOON - HOUR_MS]


def test_flagged_hours_are_not_due_any_more():
    """Only hours after the newest flagged hour are due."""
    found = readiness.due_hours([Term("a", 0)], NOON - 2 * HOUR_MS, NOON + HOUR_MS - 1)
    assert found == [NOON - HOUR_MS]


def test_hours_between_two_terms_are_not_due():
    """A retired event type has no due hours after its term. The hour in which the term ends is excluded."""
    terms = [Term("a", 0, HOUR_MS), Term("a", NOON - HOUR_MS)]
    assert readiness.due_hours(terms, -1, NOON) == [0, NOON - HOUR_MS]


def test_a_term_does_not_reach_into_the_future():
    """Future hours of a term are not due yet, whether the term has begun or not."""
    assert readiness.due_hours([Term("a", NOON, NOON + 9 * HOUR_MS)], -1, NOON + HOUR_MS) == [NOON]
    assert readiness.due_hours([Term("a", NOON)], -1, NOON) == []


def test_the_first_start_looks_back():
    """The look-back does not reach before the creation of the event type or into an earlier term."""
    assert readiness.first_hour(NOON + 5, 2, 0) == NOON - 2 * HOUR_MS
    assert readiness.first_hour(NOON + 5, 24, NOON - HOUR_MS + 7) == NOON - HOUR_MS
    assert readiness.first_hour(NOON + 5, 24, 0, NOON) == NOON


def test_a_barrier_is_never_read_before_the_grace_is_over():
    """A barrier may be read from the exact end of the grace period on, at any later time."""
    end_ms = NOON + HOUR_MS + GRACE
    assert not readiness.barrier_due(NOON, end_ms - 1, GRACE)
    assert readiness.barrier_due(NOON, end_ms, GRACE)
    assert readiness.barrier_due(NOON, end_ms + 100 * HOUR_MS, GRACE)


# -- ready


@pytest.mark.parametrize(("stamp", "ready"), [(NOON - 1, False), (NOON, False), (NOON + 1, True)])
def test_the_comparison_is_strict(stamp, ready):
    """A timestamp exactly at the start of the hour is not past it."""
    seed = readiness.blocked_by(NOON, progress(stored(stamp)), None, "timestamps")
    assert (seed is None) is ready
    ours = readiness.blocked_by(NOON, progress(stored(stamp)), barrier(AT), "barrier")
    assert (ours is None) is ready


def test_the_slowest_partition_decides():
    """One partition that is behind blocks the hour, and the message names the partition."""
    slow = progress(stored(NOON + 9), stored(NOON), stored(NOON + 9))
    assert "partition 1" in readiness.blocked_by(NOON, slow, None, "timestamps")


def test_old_events_block_only_without_the_barrier():
    """With the barrier, the end of the last finished shift also counts as a timestamp."""
    old = progress(stored(NOON - 5 * HOUR_MS, NOON + HOUR_MS))
    assert "no event time past the start" in readiness.blocked_by(NOON, old, None, "timestamps")
    assert readiness.blocked_by(NOON, old, barrier(AT), "barrier") is None


def test_every_partition_must_have_reached_the_barrier():
    """A partition at the barrier has reached it; a partition one record before it has not."""
    far = progress(stored(NOON + 1), stored(NOON + 1))
    assert readiness.blocked_by(NOON, far, barrier(AT, AT), "barrier") is None
    beyond = barrier(AT, Position(1, 10))
    assert "partition 1 is not archived up to the barrier" in readiness.blocked_by(NOON, far, beyond, "barrier")
    assert readiness.blocked_by(NOON, far, beyond, "timestamps") is None


def test_without_a_barrier_nothing_is_ready():
    """The barrier must be read before an hour can be ready."""
    assert "not read yet" in readiness.blocked_by(NOON, progress(stored(NOON + 1)), None, "barrier")


@pytest.mark.parametrize("rule", ["timestamps", "barrier"])
def test_a_partition_without_a_stored_position_blocks(rule):
    """The partition does not block hours that ended before the partition was created."""
    both = (stored(NOON + 1), None)
    new = progress(*both, read_ms=NOON + HOUR_MS - 1)
    assert "partition 1 has no" in readiness.blocked_by(NOON, new, barrier(AT), rule)
    newer = progress(*both, read_ms=NOON + HOUR_MS)
    assert readiness.blocked_by(NOON, newer, barrier(AT), rule) is None


def test_before_the_first_decision_everything_blocks():
    """Before the first decision, a partition without a stored position blocks every hour."""
    assert readiness.blocked_by(0, progress(None, read_ms=-1), None, "timestamps") is not None


def test_a_position_without_a_finished_shift_blocks():
    """A position without timestamps does not make an hour ready."""
    assert readiness.blocked_by(0, progress(StoredPartition(AT)), barrier(AT), "barrier") is not None


moments = st.integers(NOON - 3 * HOUR_MS, NOON + 3 * HOUR_MS)
states = st.lists(
    st.none() | st.builds(stored, moments, moments, st.sampled_from([Position(1, 1), AT])), min_size=1, max_size=3
)


@given(states, moments, st.sampled_from(["timestamps", "barrier"]), st.booleans())
def test_an_hour_is_never_ready_before_the_one_that_precedes_it(partitions, read_ms, rule, shared):
    """A later barrier is never behind an earlier one, so storing the newest flagged hour is enough."""
    now = progress(*partitions, read_ms=read_ms)
    first = barrier(*[Position(1, 1)] * len(partitions))
    second = first if shared else barrier(*[AT] * len(partitions))
    if readiness.blocked_by(NOON, now, second, rule) is None:
        assert readiness.blocked_by(NOON - HOUR_MS, now, first, rule) is None
