"""Flags of hours and days for several event types."""

from __future__ import annotations

import pytest
from archive_place import GRACE, NOON, ArchivePlace

from strandline.archive.model import DAY_MS, HOUR_MS
from strandline.clock import parse_rfc3339

ONE = NOON + HOUR_MS
MIDNIGHT = parse_rfc3339("2024-05-02T00:00:00Z")


def live(place: ArchivePlace, *names: str, until_ms: int) -> None:
    """Archive in steps of half an hour until that time."""
    archivers = [place.archiver(name) for name in names]
    while place.clock.now_ms() < until_ms:
        step_ms = min(until_ms - place.clock.now_ms(), HOUR_MS // 2)
        place.clock.advance(step_ms)
        for archiver in archivers:
            place.step(archiver)
    for archiver in archivers:
        archiver.abort()


def test_an_hour_is_flagged_when_all_its_event_types_are(both: ArchivePlace):
    """The flag of an hour lists the revisions of all its event types."""
    live(both, "orders", until_ms=ONE + GRACE)
    assert both.propagate() == 0
    assert both.period("2024-05-01/12") is None
    live(both, "clicks", until_ms=ONE + GRACE + 1)
    assert both.propagate() == 13
    flag = both.period("2024-05-01/12")
    assert (flag["path"], flag["start"], flag["revision"]) == ("2024-05-01/12", "2024-05-01T12:00:00.000Z", 1)
    assert flag["children"] == {"2024-05-01/12/clicks": 1, "2024-05-01/12/orders": 1}
    assert both.propagate() == 0


def test_an_event_type_without_a_directory_blocks(both: ArchivePlace):
    """A configured event type is required even if it does not exist."""
    both.configure("ghosts")
    live(both, "orders", "clicks", until_ms=ONE + GRACE)
    assert both.propagate() == 0
    assert [*both.root.glob("*/*/_READY")] == []
    both.ledger.close_term("ghosts", NOON)
    both.propagate()
    assert [both.period(f"2024-05-01/{hour}") is not None for hour in ("11", "12")] == [False, True]


def test_a_day_is_flagged_with_its_last_hour(both: ArchivePlace):
    """One run flags the last hour and then the day, after the day has ended."""
    live(both, "orders", "clicks", until_ms=MIDNIGHT - HOUR_MS + GRACE)
    assert both.propagate() == 23
    assert both.period("2024-05-01") is None
    live(both, "orders", "clicks", until_ms=MIDNIGHT + GRACE)
    assert both.propagate() == 2
    flag = both.period("2024-05-01")
    assert flag["children"] == {f"2024-05-01/{hour:02d}": 1 for hour in range(24)}
    assert both.ledger.periods.unsettled() == {}


def test_the_day_of_the_first_start_is_not_complete(make):
    """A day whose first hours were not archived is settled without a flag."""
    place = make(look_back_hours=2)
    place.create()
    live(place, "orders", until_ms=MIDNIGHT + GRACE)
    place.propagate()
    assert (place.root / "2024-05-01/23/_READY").exists()
    assert place.period("2024-05-01") is None
    assert place.ledger.periods.unsettled() == {}


def test_late_events_raise_the_parents_too(both: ArchivePlace):
    """Late events raise the revisions of the hour and the day."""
    live(both, "orders", "clicks", until_ms=MIDNIGHT + GRACE)
    both.propagate()
    both.publish(NOON + 5)
    live(both, "orders", until_ms=MIDNIGHT + HOUR_MS + GRACE)
    assert both.flag(NOON)["revision"] == 2
    assert both.propagate() == 2
    assert both.period("2024-05-01/12")["revision"] == 2
    assert both.period("2024-05-01/12")["children"] == {"2024-05-01/12/clicks": 1, "2024-05-01/12/orders": 2}
    assert both.period("2024-05-01")["children"]["2024-05-01/12"] == 2
    assert both.period("2024-05-01")["revision"] == 2
    assert both.period("2024-05-01/11")["revision"] == 1


def test_missing_flags_are_repaired(both: ArchivePlace):
    """Missing flags of hours and days are written from the ledger; existing flags are not written again."""
    live(both, "orders", "clicks", until_ms=MIDNIGHT + GRACE)
    both.propagate()
    lost = [both.root / "2024-05-01/_READY", both.root / "2024-05-01/12/_READY"]
    kept = both.root / "2024-05-01/13/_READY"
    contents, before = [path.read_bytes() for path in lost], kept.stat().st_mtime_ns
    for path in lost:
        path.unlink()
    assert both.propagate(repair=True) == 0
    assert [path.read_bytes() for path in lost] == contents
    assert kept.stat().st_mtime_ns == before


def test_a_flag_that_was_decided_and_not_written_is_written(both: ArchivePlace, monkeypatch):
    """The next run writes a flag after a crash between decision and write."""
    live(both, "orders", "clicks", until_ms=ONE + GRACE)

    def crash(*_):
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(both.files, "replace", crash)
        with pytest.raises(RuntimeError, match="crash"):
            both.propagate()
    assert [*both.root.glob("*/*/_READY")] == []
    both.propagate()
    assert len([*both.root.glob("*/*/_READY")]) == 13


def test_whoever_comes_with_older_revisions_changes_nothing(both: ArchivePlace):
    """A run with older revisions of the children changes nothing."""
    live(both, "orders", "clicks", until_ms=ONE + GRACE)
    both.propagate()
    children = {"2024-05-01/12/clicks": 3, "2024-05-01/12/orders": 1}
    both.ledger.periods.confirm(both.ledger.periods.flag("2024-05-01/12", NOON, children))
    database = both.platform.databases.get("", "archive.db")
    database.transaction(lambda session: session.execute("UPDATE archive_hours SET settled = 0"))
    assert both.propagate() == 0
    assert [(one.revision, one.children) for one in both.ledger.periods.between(NOON, NOON + 1)] == [(2, children)]


def test_event_types_with_templates_of_their_own_have_parents_of_their_own(make):
    """An event type above the date has its own days, and its directory is that of the hour."""
    place = make(look_back_hours=12, template="%Y-%m-%d/%H/{event_type},clicks={event_type}/%Y-%m-%d/%H")
    place.create("orders")
    place.create("clicks")
    live(place, "clicks", until_ms=MIDNIGHT + GRACE)
    assert place.propagate() == 1
    assert place.period("clicks/2024-05-01")["children"]["clicks/2024-05-01/07"] == 1
    assert place.flag(NOON, "clicks")["revision"] == 1
    assert not (place.root / "2024-05-01").exists()


def test_an_hour_that_became_configured_meanwhile_waits_for_the_next_pass(both: ArchivePlace):
    """A pass with terms that were read before the hour got data does not settle it without the flag above."""
    place = both
    stale = place.terms
    archiver = place.working("orders")
    place.publish(NOON - 5 * DAY_MS)
    place.live_through(archiver, NOON + HOUR_MS + GRACE, every_ms=HOUR_MS // 4)
    place.propagator.run(stale)
    assert place.period("2024-04-26/12") is None
    place.propagate()
    assert [*place.period("2024-04-26/12")["children"]] == ["2024-04-26/12/orders"]
    waiting = place.ledger.periods.unsettled()  # for the other event type
    assert all(path.startswith("2024-05-01") for path in waiting)
