"""Records that expire before they are archived: the hours that lack them say so, or are held back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from archive_place import GRACE, NOON, ArchivePlace
from files_reader import check_files

from strandline.archive.hours import HourGrid
from strandline.archive.model import HOUR_MS, hour_name
from strandline.archive.options import ArchiveOptions
from strandline.archive.settings import ArchiveSettings
from strandline.errors import Invalid
from strandline.log.model import Options

ONE = NOON + HOUR_MS
LATER = NOON + 3 * HOUR_MS


def grid(place: ArchivePlace) -> HourGrid:
    terms = [term for term in place.terms if term.event_type == "orders"]
    return HourGrid(ArchiveOptions.of(place.settings, "orders"), terms, place.ledger, place.source)


def lose(place: ArchivePlace, *, archived_before: bool) -> list[str]:
    """Publish two events that expire while no archive runs, and one later; returns the ids of the last one."""
    place.create(options=Options(retention_time=HOUR_MS))
    if archived_before:
        archiver = place.working()
        place.publish(NOON + 1)
        archiver.stop(place.terms)
    place.publish(NOON + 2, NOON + 3)
    place.clock.advance(LATER - place.clock.now_ms())
    kept = place.publish(LATER)
    place.platform.log.upkeep.purge()
    return kept


@pytest.mark.parametrize("archived_before", [True, False])
def test_a_manifest_names_what_expired(make, archived_before):
    """Every hour that may lack expired events lists their range in `skipped`; a later hour does not."""
    place = make(retention_waits=False)
    kept = lose(place, archived_before=archived_before)
    place.live_through(place.archiver(), LATER + 2 * HOUR_MS + GRACE)
    count = 2
    after = "001-0001-000000000000000000" if archived_before else "BEGIN"
    last = f"001-0001-{1 + archived_before:018d}"
    gap = {"partition": "0", "after_cursor": after, "last_cursor": last, "events": count}
    first = NOON if archived_before else NOON - 2 * HOUR_MS
    for hour_ms in range(first, LATER + HOUR_MS, HOUR_MS):
        assert place.flag(hour_ms)["skipped"] == [gap], hour_name(hour_ms)
    assert place.flag(LATER + HOUR_MS)["skipped"] == []
    assert place.counts().skipped == count
    assert place.ids_in(LATER) == dict.fromkeys(kept, 1)


def test_hours_that_lack_events_can_be_held_back(make):
    """With `hold` they get no flag and are shown with the reason; later hours and other types do not wait."""
    place = make(retention_waits=False, on_gap="hold")
    kept = lose(place, archived_before=True)
    later = place.publish(LATER + HOUR_MS)
    archiver = place.archiver()
    place.live_through(archiver, LATER + 2 * HOUR_MS + GRACE, every_ms=HOUR_MS // 4)
    held = ["01/12", "01/13", "01/14", "01/15"]
    assert not {*held} & {*place.flagged()}
    assert "01/16" in place.flagged()
    found = {one.hour: one for one in grid(place).between(NOON, LATER + HOUR_MS)}
    assert {one.state for one in found.values()} == {"due"}
    assert all("2 events expired before they were archived" in one.reason for one in found.values())
    assert grid(place).summary().due_hours == len(held)
    place.propagate()
    assert place.period("2024-05-01/13") is None
    assert place.period("2024-05-01/16") is not None
    read = check_files(place.root)
    assert (*read.flagged,) == (*later,)
    assert read.open.keys() >= {*kept}
    # The hours are flagged without their events when somebody decides so.
    place.settings = replace(place.settings, on_gap="flag")
    place.live_through(place.archiver(), LATER + 3 * HOUR_MS + GRACE, every_ms=HOUR_MS // 4)
    assert {*held} <= {*place.flagged()}
    assert [one["events"] for one in place.flag(NOON)["skipped"]] == [2]
    assert grid(place).summary().due_hours == 0


def test_a_flag_keeps_its_text_when_a_later_gap_is_found(make):
    """Hours that were flagged before are not about a later gap, whichever process writes their flags again."""
    place = make(retention_waits=False, look_back_hours=12)
    place.create(options=Options(retention_time=HOUR_MS))
    archiver = place.working()
    place.publish(NOON + 1)
    place.live_through(archiver, ONE + GRACE)
    before = place.flag(NOON)
    archiver.stop(place.terms)
    place.publish(ONE + 1)
    place.clock.advance(3 * HOUR_MS)
    place.platform.log.upkeep.purge()
    place.archiver().stop(place.terms)
    place.archiver()
    assert place.flag(NOON) == before
    for path in place.layout("orders").flags(NOON):
        (place.root / path).unlink()
    place.archiver()
    assert place.flag(NOON) == before
    assert [one["events"] for one in place.flag(ONE)["skipped"]] == [1]


def test_an_old_log_has_no_gap_in_its_first_hours(make):
    """What expired long before the first configured hour was never to be archived."""
    place = make(retention_waits=False)
    place.create(options=Options(retention_time=HOUR_MS))
    place.publish(NOON)
    place.clock.advance(2 * HOUR_MS)
    place.publish(NOON + 2 * HOUR_MS)
    place.platform.log.upkeep.purge()
    place.ledger.close_term("orders", 0)
    place.clock.advance(HOUR_MS // 2)
    place.ledger.open_term("orders", NOON + 3 * HOUR_MS)
    place.live_through(place.archiver(), NOON + 4 * HOUR_MS + GRACE)
    assert place.flag(NOON + 3 * HOUR_MS)["skipped"] == []
    assert place.counts().skipped == 0


def test_the_policy_is_checked():
    """A misspelled policy is refused with the choices."""
    with pytest.raises(Invalid, match=r"archive\.on_gap must be one of flag, hold"):
        ArchiveOptions.of(replace(ArchiveSettings(), on_gap="wait"), "orders")
