"""Barriers, flags and periods, on every ledger."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger_place import NOON, archived, decision, file

from strandline.archive.ledger import Ledger
from strandline.archive.model import HOUR_MS, Barrier, Claim, Hour, Period, Term
from strandline.errors import Conflict, Invalid, LeaseLost
from strandline.log.cursors import Position

GRACE = 30_000
END = NOON + HOUR_MS


@pytest.fixture
def claim(ledger: Ledger) -> Claim:
    return ledger.claim("orders", "id-1")


def barrier(read_ms: int, offset: int = 9) -> Barrier:
    return Barrier(read_ms, {0: Position(1, offset), 1: Position(2, -1)})


def hour(ledger: Ledger, hour_ms: int = NOON) -> Hour:
    (found,) = ledger.hours.between(hour_ms, hour_ms + 1, "orders")
    return found


# -- hours outside of the terms


def unflagged(ledger: Ledger) -> list[int]:
    return [hour.hour_ms for hour in ledger.hours.with_data("orders")]


def test_an_hour_outside_of_the_terms_becomes_one_with_its_data(ledger, claim):
    """It is unflagged until it is flagged. Data of an hour of a term change nothing."""
    ledger.open_term("orders", NOON)
    early = NOON - 5 * HOUR_MS
    archived(ledger, claim, None, 1, file(0, 0), file(1, 1, hour_ms=early))
    assert ledger.terms() == [Term("orders", early, early + HOUR_MS), Term("orders", NOON)]
    assert unflagged(ledger) == [early, NOON]
    archived(ledger, claim, 1, 2, file(2, 2, hour_ms=early))
    assert len(ledger.terms()) == 2
    ledger.hours.flag(claim, early, "early/orders")
    assert unflagged(ledger) == [NOON]


def test_data_of_an_event_type_that_is_not_configured_are_flagged_too(ledger, claim):
    """A retired event type can still have records that were not archived."""
    archived(ledger, claim, None, 0, file(0, 0))
    assert (ledger.terms(), unflagged(ledger)) == ([Term("orders", NOON, NOON + HOUR_MS)], [NOON])


# -- barriers


def test_the_first_barrier_stays(place, ledger, claim):
    """A later barrier applies only to hours that have none."""
    place.now_ms = END + GRACE + 10
    ledger.hours.set_barrier(claim, [NOON], barrier(END + GRACE), GRACE)
    ledger.hours.set_barrier(claim, [NOON, NOON - HOUR_MS], barrier(END + GRACE + 10, 99), GRACE)
    assert hour(ledger).barrier == barrier(END + GRACE)
    assert hour(ledger, NOON - HOUR_MS).barrier == barrier(END + GRACE + 10, 99)


def test_an_early_barrier_is_refused(place, ledger, claim):
    """A barrier that is too early for one hour is refused for all hours of the call."""
    place.now_ms = END + GRACE
    with pytest.raises(Invalid, match="cannot be the barrier"):
        ledger.hours.set_barrier(claim, [NOON - HOUR_MS, NOON], barrier(END + GRACE - 1), GRACE)
    assert ledger.hours.between(0, 2 * NOON) == []


def test_a_barrier_cannot_be_read_in_the_future(place, ledger, claim):
    """The ledger's clock decides, not the reader's clock."""
    place.now_ms = END + GRACE - 1
    with pytest.raises(Invalid, match="cannot be the barrier"):
        ledger.hours.set_barrier(claim, [NOON], barrier(END + GRACE), GRACE)


def test_whoever_was_replaced_sets_no_barrier(place, ledger, claim):
    """A replaced claim may be from a process that paused after it read the ends."""
    place.now_ms = END + GRACE
    ledger.claim("orders", "id-1")
    with pytest.raises(LeaseLost):
        ledger.hours.set_barrier(claim, [NOON], barrier(END + GRACE), GRACE)


def test_an_event_type_made_anew_forgets_barriers_of_unflagged_hours(place, ledger, claim):
    """The old positions no longer exist; flags are kept."""
    place.now_ms = END + GRACE
    ledger.hours.set_barrier(claim, [NOON, NOON - HOUR_MS], barrier(END + GRACE), GRACE)
    ledger.hours.flag(claim, NOON - HOUR_MS, "p")
    ledger.claim("orders", "id-2")
    assert [one.hour_ms for one in ledger.hours.between(0, 2 * NOON)] == [NOON - HOUR_MS]


# -- flags


def test_a_flag_begins_with_revision_one(place, ledger, claim):
    """`flag` is idempotent: the revision and the time stay the same."""
    archived(ledger, claim, None, 9, file(0, 9))
    place.now_ms = END
    assert ledger.hours.flag(claim, NOON, "p") == Hour("orders", NOON, 1, 0, flagged_ms=END, epoch=1)
    place.now_ms += 5
    assert ledger.hours.flag(claim, NOON, "p") == Hour("orders", NOON, 1, 0, flagged_ms=END, epoch=1)
    assert ledger.standing("orders").flagged_ms == NOON


def test_an_hour_with_unpublished_files_is_not_flagged(ledger, claim):
    """Unpublished files of other hours do not matter."""
    ledger.decide(claim, decision(None, 9, file(0, 9)))
    with pytest.raises(Conflict, match="not all files"):
        ledger.hours.flag(claim, NOON, "p")
    assert ledger.hours.flag(claim, NOON + HOUR_MS, "q").revision == 1


def test_late_files_raise_the_revision(ledger, claim):
    """The revision increases after the late files are published."""
    ledger.hours.flag(claim, NOON, "p")
    ledger.hours.confirm(claim, NOON, 1)
    assert ledger.hours.unwritten("orders") == []
    ledger.decide(claim, decision(None, 9, file(0, 9, kind="late")))
    assert [one.stale for one in ledger.hours.unwritten("orders")] == [True]
    with pytest.raises(Conflict, match="not all files"):
        ledger.hours.flag(claim, NOON, "p")
    ledger.published(claim, [file(0, 9, kind="late").path])
    assert ledger.hours.flag(claim, NOON, "p").revision == 2
    assert ledger.hours.flag(claim, NOON, "p").revision == 2
    assert not hour(ledger).stale


def test_a_flagged_hour_takes_no_more_data_and_another_no_late_files(ledger, claim):
    """A flagged hour accepts only late files, an unflagged hour only data files."""
    ledger.hours.flag(claim, NOON, "p")
    other = NOON + HOUR_MS
    for kind, hour_ms in (("data", NOON), ("late", other)):
        with pytest.raises(Conflict, match="does not fit the flag"):
            ledger.decide(claim, decision(None, 9, file(0, 9, kind=kind, hour_ms=hour_ms)))
    ledger.decide(claim, decision(None, 9, file(0, 9, kind="quarantine", hour_ms=NOON)))
    assert not hour(ledger).stale


def test_flags_are_unwritten_until_they_are_confirmed(ledger, claim):
    """A confirmation of an older or a future revision does not confirm the current one."""
    ledger.hours.flag(claim, NOON, "p")
    ledger.hours.confirm(claim, NOON, 2)
    assert [one.hour_ms for one in ledger.hours.unwritten("orders")] == [NOON]
    archived(ledger, claim, None, 9, file(0, 9, kind="late"))
    ledger.hours.flag(claim, NOON, "p")
    ledger.hours.confirm(claim, NOON, 1)
    assert [(one.revision, one.written) for one in ledger.hours.unwritten("orders")] == [(2, 1)]
    ledger.hours.confirm(claim, NOON, 2)
    ledger.hours.confirm(claim, NOON, 1)
    assert (hour(ledger).written, ledger.hours.unwritten("orders")) == (2, [])


def test_the_newest_flagged_hour_is_known(ledger, claim):
    """An hour with only a barrier is not flagged."""
    assert ledger.standing("orders").flagged_ms == -1
    ledger.hours.flag(claim, NOON - 2 * HOUR_MS, "p")
    ledger.hours.flag(claim, NOON - 3 * HOUR_MS, "q")
    ledger.hours.set_barrier(claim, [NOON - 2 * HOUR_MS], barrier(NOON), GRACE)
    assert ledger.standing("orders").flagged_ms == NOON - 2 * HOUR_MS


def test_hours_are_listed_by_event_type_and_time(ledger, claim):
    """The end of the span is excluded."""
    other = ledger.claim("clicks", "id-2")
    for number in (2, 0, 1):
        ledger.hours.flag(claim, NOON + number * HOUR_MS, f"o{number}")
    ledger.hours.flag(other, NOON, "c0")
    found = ledger.hours.between(NOON, NOON + 2 * HOUR_MS)
    assert [(one.event_type, one.hour_ms) for one in found] == [
        ("clicks", NOON),
        ("orders", NOON),
        ("orders", NOON + HOUR_MS),
    ]
    assert [one.event_type for one in ledger.hours.between(0, 2 * NOON, "clicks")] == ["clicks"]


# -- periods


def flagged(ledger: Ledger, claim: Claim, hour_ms: int, path: str) -> None:
    revision = ledger.hours.flag(claim, hour_ms, path).revision
    ledger.hours.confirm(claim, hour_ms, revision)


def test_flags_are_unsettled_until_they_are_in_the_flag_above(ledger, claim):
    """Only confirmed flags are unsettled; a new revision is unsettled again."""
    ledger.hours.flag(claim, NOON, "d/12/orders")
    assert ledger.periods.unsettled() == {}
    flagged(ledger, claim, NOON, "d/12/orders")
    assert ledger.periods.unsettled() == {"d/12/orders": NOON}
    ledger.periods.settle({"d/12/orders": 1})
    assert ledger.periods.unsettled() == {}
    archived(ledger, claim, None, 9, file(0, 9, kind="late"))
    flagged(ledger, claim, NOON, "d/12/orders")
    ledger.periods.settle({"d/12/orders": 1})
    assert ledger.periods.unsettled() == {"d/12/orders": NOON}


def test_a_period_grows_with_its_children(ledger):
    """A period gets a new revision only if its children change."""
    first = ledger.periods.flag("d/12", NOON, {"a": 1})
    assert first == Period("d/12", NOON, 1, 0, {"a": 1})
    assert ledger.periods.flag("d/12", NOON, {"a": 1}) == first
    assert ledger.periods.flag("d/12", NOON, {"a": 2, "b": 1}).revision == 2


def test_a_period_does_not_go_back(ledger):
    """An older revision of a child is a Conflict; a child that is no longer configured may be left out."""
    ledger.periods.flag("d/12", NOON, {"a": 2, "b": 1})
    with pytest.raises(Conflict, match="a has revision 2 already"):
        ledger.periods.flag("d/12", NOON, {"a": 1, "b": 5})
    assert ledger.periods.flag("d/12", NOON, {"a": 2}).revision == 2


def test_periods_are_unwritten_until_they_are_confirmed(ledger):
    """A confirmed period is unsettled until the flag above includes it."""
    first = ledger.periods.flag("d/12", NOON, {"a": 1})
    assert (ledger.periods.unwritten(), ledger.periods.unsettled()) == ([first], {})
    second = ledger.periods.flag("d/12", NOON, {"a": 2})
    ledger.periods.confirm(first)
    assert [(one.revision, one.written) for one in ledger.periods.unwritten()] == [(2, 1)]
    ledger.periods.confirm(second)
    ledger.periods.confirm(first)
    assert ledger.periods.unwritten() == []
    assert ledger.periods.unsettled() == {"d/12": NOON}
    ledger.periods.settle({"d/12": 2})
    assert ledger.periods.unsettled() == {}
    assert ledger.periods.between(NOON, NOON + 1) == [Period("d/12", NOON, 2, 2, {"a": 2})]


def test_revisions_are_those_in_the_files(ledger, claim):
    """Only confirmed revisions are returned, for hours and periods."""
    ledger.hours.flag(claim, NOON, "d/12/orders")
    flagged(ledger, claim, NOON + HOUR_MS, "d/13/orders")
    ledger.periods.confirm(ledger.periods.flag("d/13", NOON, {"d/13/orders": 1}))
    ledger.periods.flag("d", NOON, {"d/13": 1})
    asked = ["d", "d/13", "d/12/orders", "d/13/orders", "none"]
    assert ledger.periods.revisions(asked) == {"d/13": 1, "d/13/orders": 1}


def test_many_that_flag_a_period_agree(place):
    """Concurrent flags with the same children get the same revision."""
    ledgers = [place.open() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = [*pool.map(lambda one: one.periods.flag("d", NOON, {"a": 1}).revision, ledgers * 4)]
    assert made == [1] * 16
