"""Offsets of clocks, and what happens when the time of a store is set back. The clocks are arguments."""

from __future__ import annotations

import pytest

from strandline.schedule.clocks import ClientSamples, ClockSamples, StoreTime
from strandline.schedule.model import ClockOffset

NOON = 1_714_564_800_000


class Steady:
    now = 1_000_000

    def __call__(self):
        return self.now


def sample(offset_ms, error_ms, measured_ms=NOON):
    return ClockOffset("node", offset_ms, error_ms, measured_ms)


def test_the_measurement_with_the_smallest_error_counts():
    samples = ClockSamples()
    for one in (sample(30, 40), sample(12, 3), sample(-20, 60)):
        samples.add(one)
    assert samples.best == sample(12, 3)


def test_old_measurements_are_forgotten():
    samples = ClockSamples()
    for one in (sample(12, 3), *[sample(n, 20) for n in range(8)]):
        samples.add(one)
    assert samples.best.error_ms == 20


def test_a_clock_that_was_set_is_noticed_at_once():
    samples = ClockSamples()
    samples.add(sample(12, 3))
    samples.add(sample(2000, 50))
    assert samples.best == sample(2000, 50)


def test_the_ping_with_the_shortest_delay_counts():
    """A delay makes the clock of a client look late."""
    samples = ClientSamples("sdk")
    for offset in (-40.0, -5.0, -300.0):
        samples.add(offset, NOON)
    assert (samples.best.offset_ms, samples.best.error_ms) == (-5.0, 295.0)


@pytest.fixture
def steady():
    return Steady()


@pytest.fixture
def time(steady):
    found = StoreTime(steady, 500)
    found.observe(steady.now, NOON, steady.now)
    return found


def test_the_time_is_estimated_without_asking(time, steady):
    steady.now += 70
    assert abs(time.now_ms() - (NOON + 70)) <= 1


def test_a_slow_answer_does_not_spoil_the_estimate(time, steady):
    """The store was asked, and the answer was read 100 ms after it had been sent."""
    steady.now += 100
    time.observe(steady.now - 100, NOON, steady.now)
    assert abs(time.now_ms() - (NOON + 100)) <= 2


def test_a_quick_answer_improves_the_estimate(steady):
    time = StoreTime(steady, 500)
    time.observe(steady.now, NOON + 90, steady.now + 100)
    steady.now += 200
    time.observe(steady.now, NOON + 200, steady.now + 1)
    assert abs(time.now_ms() - (NOON + 200)) <= 2


@pytest.mark.parametrize(("back", "held"), [(500, 0), (501, 501), (2000, 2000)])
def test_time_that_is_set_back_holds_leases_for_as_long(time, steady, back, held):
    steady.now += 1000
    time.observe(steady.now, NOON + 1000 - back, steady.now)
    assert time.held_ms(10_000) == held
    steady.now += max(held - 1, 0)
    assert time.held_ms(10_000) == min(held, 1)
    steady.now += 1
    assert time.held_ms(10_000) == 0


def test_leases_are_held_for_the_longest_lease_at_most(time, steady):
    time.observe(steady.now, NOON - 3_600_000, steady.now)
    assert time.held_ms(300_000) == 300_000
    assert time.held_ms(1_000) == 1_000
    steady.now += 1_000
    assert time.held_ms(1_000) == 0


def test_two_jumps_add_up_to_the_longer_one(time, steady):
    time.observe(steady.now, NOON - 5_000, steady.now)
    steady.now += 1_000
    time.observe(steady.now, NOON - 5_000, steady.now)
    assert time.held_ms(10_000) == 4_000


def test_a_slow_answer_and_a_paused_process_are_no_jump(time, steady):
    """The store's time may be read at any moment between the question and the answer."""
    time.observe(steady.now, NOON + 10, steady.now + 60_000)
    steady.now += 60_000
    time.observe(steady.now - 59_000, NOON + 1_000, steady.now)
    assert time.held_ms(10_000) == 0


def test_time_that_is_set_forward_holds_nothing(time, steady):
    time.observe(steady.now, NOON + 3_600_000, steady.now)
    assert time.held_ms(10_000) == 0
    assert abs(time.now_ms() - (NOON + 3_600_000)) <= 1
