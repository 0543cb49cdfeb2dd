"""Events of archived event types expire only after they are archived, up to a limit."""

from __future__ import annotations

import pytest
from archive_place import GRACE, NOON, ArchivePlace
from files_reader import check_files

from strandline.archive.model import HOUR_MS
from strandline.errors import Unavailable
from strandline.log.model import Options, StorageInfo
from strandline.log.storage.registry import SqliteConfiguration

LATER = NOON + 3 * HOUR_MS


def stored(place: ArchivePlace) -> int:
    """How many events the log still has."""
    return sum(len(batch) for batch in place.platform.log.read("orders"))


def kept_bytes(place: ArchivePlace) -> float | None:
    (values,) = (
        by_type
        for metric, by_type in place.platform.log.gauges().items()
        if metric.name == "strandline_unarchived_expired_bytes"
    )
    return values.get("orders")


def expired(place: ArchivePlace, partitions: int = 1) -> list[str]:
    """Archive an event, then publish two per partition that expire while no archive runs; returns all ids."""
    place.create(partitions=partitions, options=Options(retention_time=HOUR_MS))
    archiver = place.working()
    found = place.publish(NOON + 1)
    archiver.stop(place.terms)
    for partition in range(partitions):
        found += place.publish(NOON + 2, partition=partition) + place.publish(NOON + 3, partition=partition)
    place.clock.advance(LATER - place.clock.now_ms())
    return found


def test_expired_events_are_kept_until_they_are_archived(make):
    """The archive finds them after a long stop, and the next round of the upkeep removes them."""
    place = make()
    ids = expired(place, partitions=2)
    place.platform.log.upkeep.run()
    assert stored(place) == 4
    assert kept_bytes(place) > 100
    place.live_through(place.archiver(), LATER + GRACE, every_ms=GRACE)
    found = check_files(place.root)
    assert found.flagged == dict.fromkeys(ids, 1)
    assert place.flag(NOON)["skipped"] == []
    assert place.counts().skipped == 0
    place.platform.log.upkeep.run()
    assert stored(place) == 0
    assert kept_bytes(place) == 0


@pytest.mark.parametrize("settings", [{"retention_waits": False}, {"max_waiting_bytes": 100}], ids=str)
def test_retention_does_not_wait(make, settings, caplog):
    """If the setting is off, or if too many bytes wait; the log says that once, and the manifest what expired."""
    place = make(**settings)
    expired(place)
    for _ in range(2):
        place.platform.log.upkeep.run()
    assert stored(place) == 0
    assert caplog.text.count("more than archive.max_waiting_bytes") == ("max_waiting_bytes" in settings)
    place.live_through(place.archiver(), LATER + GRACE, every_ms=GRACE)
    assert [one["events"] for one in place.flag(NOON)["skipped"]] == [2]


def test_event_types_that_are_not_archived_do_not_wait(make):
    """Neither those that never were, nor a retired one whose hours are all flagged."""
    place = make()
    place.create("orders", options=Options(retention_time=HOUR_MS))
    place.ledger.close_term("orders", 0)
    place.publish(NOON)
    place.clock.advance(2 * HOUR_MS)
    place.platform.log.upkeep.run()
    assert stored(place) == 0
    place.configure("orders")
    place.live_through(place.archiver(), LATER + GRACE, every_ms=GRACE)
    place.ledger.close_term("orders", LATER)
    place.publish(LATER)
    place.clock.advance(2 * HOUR_MS)
    place.platform.log.upkeep.run()
    assert stored(place) == 0


def test_a_closed_timeline_waits(make):
    """A timeline that was closed by a switch is removed when all its events are archived."""
    place = make()
    ids = expired(place)
    place.platform.log.admin.add_storage(
        StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second"))
    )
    place.platform.log.admin.switch("orders", "second")
    place.clock.advance(2 * HOUR_MS)
    assert place.platform.log.upkeep.run() == []
    place.live_through(place.archiver(), place.clock.now_ms() + HOUR_MS + GRACE, every_ms=HOUR_MS // 4)
    assert check_files(place.root).flagged == dict.fromkeys(ids, 1)
    assert [one.timeline.order for one in place.platform.log.upkeep.run()] == [1]


def test_nothing_expires_while_it_is_unknown_what_is_archived(make, monkeypatch, caplog):
    """If the ledger does not answer, a round of the upkeep removes nothing and says why."""
    place = make()
    expired(place)

    def broken() -> None:
        raise Unavailable("the ledger does not answer")

    monkeypatch.setattr(place.platform.archive.ledger, "terms", broken)
    place.platform.log.upkeep.run()
    assert "asking what is archived failed; the next round retries it: the ledger does not answer" in caplog.text
    monkeypatch.undo()
    assert stored(place) == 3
