"""When a leaser works next. The times are arguments."""

from __future__ import annotations

import pytest

from strandline.schedule.agenda import NEVER_MS, Agenda

NOON = 1_714_564_800_000


@pytest.fixture
def agenda():
    return Agenda(due_ms=NOON + 3_600_000, refresh_at=1000.0)


def test_a_message_that_is_due_in_an_hour_costs_nothing_until_then(agenda):
    agenda.refresh_at = 1e9
    assert agenda.seconds_left(500.0, NOON) == 3600.0
    assert agenda.seconds_left(4100.0, NOON + 3_600_000) == 0.0
    assert not agenda.begin(NOON + 3_599_999)
    assert agenda.begin(NOON + 3_600_000)


@pytest.mark.parametrize("what", ["lease", "look"])
def test_a_change_is_handled_at_once_and_once(agenda, what):
    setattr(agenda, what, True)
    assert agenda.seconds_left(500.0, NOON) == 0.0
    assert agenda.begin(NOON) == (what == "lease")
    assert agenda.seconds_left(500.0, NOON) == 500.0


def test_an_earlier_message_moves_the_time(agenda):
    assert agenda.expect(NOON + 50)
    assert not agenda.expect(NOON + 60)
    assert agenda.seconds_left(500.0, NOON) == 0.05


@pytest.mark.parametrize("look", [False, True])
def test_messages_that_become_due_one_after_the_other_are_leased_together(agenda, look):
    """Also if other processes change messages all the time."""
    agenda.leased_at = 500.0
    agenda.wait_for(0)
    agenda.look = look
    assert agenda.seconds_left(500.001, NOON) == pytest.approx(0.004)
    assert agenda.seconds_left(500.005, NOON) == pytest.approx(0)


def test_a_look_and_a_refresh_have_their_times(agenda):
    agenda.wait_for(NEVER_MS, look_at=500.2)
    assert agenda.seconds_left(500.0, NOON) == pytest.approx(0.2)
    agenda.wait_for(NEVER_MS)
    assert agenda.seconds_left(500.0, NOON) == 500.0


def test_after_a_failure_there_is_a_pause(agenda):
    agenda.lease = True
    agenda.not_before = 500.1
    assert agenda.seconds_left(500.0, NOON) == pytest.approx(0.1)
    assert agenda.seconds_left(500.2, NOON) == 0.0
