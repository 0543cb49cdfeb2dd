"""Hours before or between the terms of an event type, which get data nevertheless."""

from __future__ import annotations

import pytest
from archive_place import GRACE, NOON, ArchivePlace
from files_reader import check_files

from strandline import failpoints
from strandline.archive.hours import HourGrid
from strandline.archive.model import DAY_MS, HOUR_MS, hour_name
from strandline.archive.options import ArchiveOptions
from strandline.archive.process import ArchiveProcess

ONE = NOON + HOUR_MS
OLD = NOON - 5 * HOUR_MS


def grid(place: ArchivePlace, name: str = "orders") -> HourGrid:
    terms = [term for term in place.terms if term.event_type == name]
    return HourGrid(ArchiveOptions.of(place.settings, name), terms, place.ledger, place.source)


def test_an_hour_before_the_first_term_gets_its_flag(place: ArchivePlace):
    """Events older than the look-back are archived into hours that become due, and are flagged like others."""
    archiver = place.working()
    old = place.publish(OLD, OLD + 1)
    place.live_through(archiver, ONE + GRACE)
    assert place.flagged() == ["01/07", "01/10", "01/11", "01/12"]
    assert place.ids_in(OLD) == dict.fromkeys(old, 1)
    assert [one.state for one in grid(place).between(OLD, OLD + HOUR_MS)] == ["ready"]


def test_an_hour_with_data_is_listed_until_it_is_flagged(place: ArchivePlace):
    """Data that are published without a flag, because the archive stopped there, are shown with the reason."""
    place.publish(OLD, partition=1)
    archiver = place.archiver()
    snapshot, _ = archiver._begin(place.terms)
    archiver._collect(snapshot)
    archiver._decide(snapshot, set())
    assert place.flag(OLD) is None
    (shown,) = grid(place).between(OLD, OLD + HOUR_MS)
    assert (shown.state, bool(shown.reason)) == ("due", True)
    assert hour_name(OLD) in [one.hour for one in grid(place).summary().due]
    place.live_through(place.archiver(), ONE + GRACE)
    assert place.flagged()[0] == "01/07"


def test_the_flags_above_are_written_again(both: ArchivePlace):
    """A type that is made later and gets old events becomes part of the flags of the hour and the day."""
    place = both
    for name in ("orders", "clicks"):
        place.live_through(place.working(name), NOON + DAY_MS + GRACE, every_ms=HOUR_MS // 2)
    place.propagate()
    (before, day) = place.period("2024-05-01/13"), place.period("2024-05-01")
    assert [*before["children"]] == ["2024-05-01/13/clicks", "2024-05-01/13/orders"]
    place.create("later")
    place.ledger.close_term("later", 0)
    place.ledger.open_term("later", NOON + DAY_MS)
    ids = place.publish(ONE + 1, name="later")
    place.live_through(place.archiver("later"), NOON + DAY_MS + HOUR_MS + GRACE, every_ms=HOUR_MS // 2)
    place.propagate()
    after = place.period("2024-05-01/13")
    assert (after["revision"], len(after["children"])) == (before["revision"] + 1, 3)
    assert place.period("2024-05-01")["revision"] == day["revision"] + 1
    assert check_files(place.root).flagged == dict.fromkeys(ids, 1)


@pytest.mark.parametrize(("pieces", "every"), [(2, 12), pytest.param(4, 1, marks=pytest.mark.slow)])
def test_a_backfill_of_thirty_days_ends_in_flags(make, pieces, every):
    """Every hour of a backfill is flagged; a reader of the files finds every event once in a flagged hour."""
    place = make()
    place.create()
    archiver = place.working()
    times = [*range(NOON - 30 * DAY_MS, NOON, every * HOUR_MS // 2)]
    published = []
    for piece in range(pieces):
        published += place.publish(*times[piece::pieces])
        place.live_through(archiver, ONE + piece * HOUR_MS + GRACE, every_ms=HOUR_MS // 2)
    place.live_through(archiver, ONE + (pieces + 1) * HOUR_MS + GRACE, every_ms=HOUR_MS // 2)
    found = check_files(place.root)
    assert found.flagged == dict.fromkeys(published, 1)
    assert grid(place).summary().due_hours == 0


def test_a_retired_type_that_is_restored(place: ArchivePlace):
    """Events of the hours between both terms are in hours of their own, which are flagged."""
    place.live_through(place.working(), ONE + GRACE)
    place.ledger.close_term("orders", ONE)
    gap = place.publish(ONE + 1, ONE + HOUR_MS + 1)
    place.clock.advance(3 * HOUR_MS)
    place.ledger.open_term("orders", NOON + 4 * HOUR_MS)
    place.live_through(place.archiver(), NOON + 5 * HOUR_MS + GRACE, every_ms=HOUR_MS // 2)
    assert place.flagged() == ["01/10", "01/11", "01/12", "01/13", "01/14", "01/16"]
    assert check_files(place.root).flagged == dict.fromkeys(gap, 1)


def test_a_retired_type_is_finished_with_its_open_data(place: ArchivePlace):
    """An archive process takes a retired type as long as an hour with data has no flag."""
    process: ArchiveProcess = place.platform.archive.process()
    process._ledger = place.ledger
    archiver = place.working()
    place.publish(OLD)
    place.ledger.close_term("orders", NOON)
    assert not process._is_unfinished("orders", place.terms, place.clock.now_ms())
    snapshot, _ = archiver._begin(place.terms)
    archiver._collect(snapshot)
    archiver._decide(snapshot, set())
    assert process._is_unfinished("orders", place.terms, place.clock.now_ms())


def test_data_stay_due_when_their_event_type_is_created_again(place: ArchivePlace):
    """The hour of a deleted event type keeps its data and is flagged by its successor."""
    archiver = place.working()
    place.publish(OLD)
    snapshot, _ = archiver._begin(place.terms)
    archiver._collect(snapshot)
    archiver._decide(snapshot, set())
    place.platform.log.delete("orders")
    place.create(partitions=2)
    place.live_through(place.archiver(), ONE + GRACE)
    assert "01/07" in place.flagged()


@pytest.mark.parametrize("failpoint", ["archive.flagged", "archive.publish"])
def test_a_retired_type_that_was_killed_at_its_last_flag_is_finished(place: ArchivePlace, monkeypatch, failpoint):
    """What was decided is published and flagged by the next process, although nothing is due any more."""
    archiver = place.working()
    ids = place.publish(NOON, NOON - 99 * DAY_MS)
    place.live_through(archiver, ONE)
    place.ledger.close_term("orders", ONE)

    def crash(name: str) -> None:
        if name == failpoint:
            raise SystemExit(name)

    monkeypatch.setattr(failpoints, "hit", crash)
    with pytest.raises(SystemExit):
        place.live_through(archiver, ONE + GRACE)
    monkeypatch.undo()
    process: ArchiveProcess = place.platform.archive.process()
    process._ledger = place.ledger
    assert process._is_unfinished("orders", place.terms, place.clock.now_ms())
    place.step(place.archiver())
    assert place.flagged()[-1] == "01/12"
    assert check_files(place.root).all == dict.fromkeys(ids, 1)
    assert not process._is_unfinished("orders", place.terms, place.clock.now_ms())
