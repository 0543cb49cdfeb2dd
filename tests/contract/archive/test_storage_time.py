"""A driver whose clock is ahead flags no hour that has not ended by the clock of the storages."""

from __future__ import annotations

import pytest
from archive_place import GRACE, NOON, ArchivePlace
from files_reader import check_files

from strandline.archive.archiver import Archiver
from strandline.archive.files.local import LocalFiles
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.model import DAY_MS, HOUR_MS, parse_hour
from strandline.archive.options import ArchiveOptions
from strandline.archive.settings import ArchiveSettings
from strandline.archive.storage_time import StorageTime
from strandline.clock import ManualClock, system_clock
from strandline.log import EventType
from strandline.platform import Platform
from strandline.settings import Settings

ONE = NOON + HOUR_MS


class TimedFiles(LocalFiles):
    """A file system with the clock of the test; `behind_ms` if its clock is behind."""

    def __init__(self, place: ArchivePlace, *, known: bool = True) -> None:
        super().__init__(str(place.root))
        self.place = place
        self.known = known
        self.behind_ms = 0

    def modified_ms(self, path: str) -> int | None:
        assert (self.place.root / path).exists()
        return self.place.clock.now_ms() - self.behind_ms if self.known else None


def ahead(place: ArchivePlace, files: TimedFiles, *, by_ms: int = DAY_MS) -> Archiver:
    """An archiver whose clock is ahead of the clock with which events are published."""
    database = place.platform.databases.get("", "archive.db")
    ledger = SqlLedger(database, lease_ms=6_000, now=lambda: place.clock.now_ms() + by_ms)
    options = ArchiveOptions.of(place.settings, "orders")
    time = StorageTime(files, lambda: place.clock.now_ms() / 1000)
    archiver = Archiver(options, place.source, ledger, files, place.runner, time)
    archiver.start()
    return archiver


def test_a_clock_a_day_ahead_flags_nothing_in_the_future(place: ArchivePlace, caplog):
    """Nor does it make events late that are published in time; the log says what is wrong, once."""
    archiver = ahead(place, TimedFiles(place))
    ids = place.publish(NOON + 1)
    place.live_through(archiver, NOON + HOUR_MS // 2, every_ms=60_000)
    assert place.flagged() == ["01/10", "01/11"]
    ids += place.publish(NOON + HOUR_MS // 2, partition=1)
    place.live_through(archiver, ONE + GRACE, every_ms=10_000)
    assert place.flagged() == ["01/10", "01/11", "01/12"]
    assert check_files(place.root).flagged == dict.fromkeys(ids, 1)
    assert place.flag(NOON)["revision"] == 1
    assert caplog.text.count("the clock of the archive's ledger is 86400 s ahead") == 1
    archiver.stop(place.terms)
    # With the right clock the archive goes on.
    later = place.publish(ONE + 1)
    place.live_through(place.archiver(), ONE + HOUR_MS + GRACE)
    assert place.ids_in(ONE) == dict.fromkeys(later, 1)
    assert place.counts().late == 0


@pytest.mark.parametrize("reason", ["no clock", "behind"])
def test_a_file_system_without_a_right_clock_limits_nothing(place: ArchivePlace, reason):
    """It may tell no times, or be behind: then records are newer than its clock."""
    files = TimedFiles(place, known=reason != "no clock")
    files.behind_ms = DAY_MS
    archiver = ahead(place, files, by_ms=0)
    place.publish(NOON)
    place.live_through(archiver, ONE + GRACE, every_ms=60_000)
    assert place.flagged() == ["01/10", "01/11", "01/12"]


def test_the_clock_of_the_files_is_read_once(place: ArchivePlace, monkeypatch):
    """A right clock costs no request per step, and leaves no file."""
    files = TimedFiles(place)
    read: list[str] = []
    monkeypatch.setattr(files, "create", lambda path, make=files.create: read.append(path) or make(path))
    archiver = ahead(place, files, by_ms=GRACE)
    place.live_through(archiver, ONE + GRACE, every_ms=60_000)
    assert len([path for path in read if "clock" in path]) == 1
    assert place.staged() == []


def test_a_process_whose_clock_is_ahead_flags_only_what_has_ended(tmp_path):
    """With the real clocks of the file system and of the publisher, in the directory that all of them share."""
    with Platform(tmp_path, Settings(), system_clock()) as log:
        log.log.create(EventType("orders"))
        log.log.publish("orders", [{"n": 1}]).raise_for_failed()
    now_ms = system_clock().now_ms()
    settings = Settings(archive=ArchiveSettings(look_back_hours=30))
    with Platform(tmp_path, settings, ManualClock(now_ms + DAY_MS)) as driver:
        driver.archive.process().once()
        states = {parse_hour(one.hour): one.state for one in driver.archive.hours("orders")}
    flagged = [hour_ms for hour_ms, state in states.items() if state == "ready"]
    assert all(hour_ms + HOUR_MS <= system_clock().now_ms() for hour_ms in flagged)
    assert len([*(tmp_path / "archive").rglob("*.parquet")]) == 1
