"""A reader that knows only the files finds every event once, whatever happened to the archive.

Platforms are opened as a user does: with settings, on one data directory. Events are read from the Parquet files
that the flags list, never from the ledger.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from archive_place import NOON
from files_reader import check_files

from strandline.archive.model import DAY_MS, HOUR_MS, hour_name
from strandline.archive.settings import ArchiveSettings
from strandline.clock import ManualClock, to_rfc3339
from strandline.errors import Conflict
from strandline.log import EventType
from strandline.platform import Platform
from strandline.settings import Settings


class Company:
    """A data directory, the events that were published into it, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "data" / "archive"
        self.clock = ManualClock(NOON)
        self.published: Counter[str] = Counter()
        self.settings = ArchiveSettings(look_back_hours=2)
        self.platform = self._open()

    def _open(self) -> Platform:
        return Platform(self.folder / "data", Settings(archive=self.settings), self.clock)

    def restart(self, **archive: Any) -> None:
        """Open the platform again, with changed settings."""
        self.platform.close()
        self.settings = replace(self.settings, **archive)
        self.platform = self._open()

    def create(self, *names: str) -> None:
        for name in names:
            self.platform.log.create(EventType(name, category="business", partitions=2))

    def publish(self, name: str, *times_ms: int) -> None:
        ids = [str(uuid.uuid4()) for _ in times_ms]
        events = [
            {"metadata": {"eid": eid, "occurred_at": to_rfc3339(time_ms)}}
            for eid, time_ms in zip(ids, times_ms, strict=True)
        ]
        self.platform.log.publish(name, events).raise_for_failed()
        self.published.update(ids)

    def archive(self, hours: int = 0) -> None:
        """Live for some hours, then archive once."""
        self.clock.advance(hours * HOUR_MS)
        self.platform.archive.process().once()

    def check(self, *, open_hours: int = 0) -> None:
        """Every event is once in a flagged hour, or in an hour that `status` shows as due or open."""
        found = check_files(self.root)
        assert found.all == self.published
        unflagged = {str(one.parent.parent.relative_to(self.root)) for one in self.root.rglob("data/*.parquet")}
        unflagged -= {str(one.parent.parent.relative_to(self.root)) for one in self.root.rglob("data/_READY")}
        shown = {
            f"{hour.hour[:10]}/{hour.hour[11:]}/{one.event_type}"
            for one in self.platform.archive.status()
            for hour in self.platform.archive.hours(one.event_type)
            if hour.state != "ready"
        }
        assert unflagged <= shown
        assert len(unflagged) == open_hours
        self.check_flags_above()

    def check_flags_above(self) -> None:
        """The flag of an hour lists each event type with data in that hour, at its newest revision."""
        for flag in self.root.glob("????-??-??/??/_READY"):
            listed = msgspec.json.decode(flag.read_bytes())["children"]
            own = {str(one.parent.relative_to(self.root)): one for one in flag.parent.glob("*/_READY")}
            revisions = {path: msgspec.json.decode(one.read_bytes())["revision"] for path, one in own.items()}
            assert listed == revisions, flag
        for hour in {one.parent.parent for one in self.root.glob("????-??-??/??/*/_READY")}:
            complete = all((one / "_READY").exists() for one in hour.iterdir() if one.is_dir())
            assert complete == (hour / "_READY").exists(), hour


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    made = Company(tmp_path)
    made.create("orders", "clicks")
    made.publish("orders", NOON, NOON + 1)
    made.publish("clicks", NOON)
    made.archive(hours=2)
    yield made
    made.platform.close()


def test_after_a_start(company: Company):
    """The simplest archive, and the current hour."""
    company.publish("orders", company.clock.now_ms())
    company.archive()
    company.check(open_hours=1)
    company.archive(hours=2)
    company.check()


def test_after_a_moved_root(company: Company):
    """The new root is refused until everything is there; then the archive goes on in it."""
    new = company.folder / "new"
    company.publish("orders", NOON - 99 * DAY_MS)
    company.archive()
    company.restart(root=str(new))
    with pytest.raises(Conflict, match="strandline archive moved"):
        company.platform.archive.process()
    with pytest.raises(Conflict, match="are missing"):
        company.platform.archive.moved()
    assert not [*new.rglob("_READY")]
    shutil.copytree(company.root, new, dirs_exist_ok=True)
    shutil.move(new / "_quarantine", new / "forgotten")
    with pytest.raises(Conflict, match=r"files of _quarantine/orders/2024-05-01 are missing"):
        company.platform.archive.moved()
    shutil.move(new / "forgotten", new / "_quarantine")
    assert company.platform.archive.moved() > 0
    company.root = new
    company.publish("orders", company.clock.now_ms())
    company.archive(hours=2)
    company.check()


def test_after_a_changed_template(company: Company):
    """It is refused for event types with archived hours, and used for those that are made later."""
    old, new = company.settings.template, "%Y-%m-%d/%H/{event_type}/new"
    company.restart(template=new)
    with pytest.raises(Conflict, match="keep the old one for this event type"):
        company.platform.archive.process()
    company.restart(template=f"{new},orders={old},clicks={old}")
    company.create("visits")
    for name in ("orders", "clicks", "visits"):
        company.publish(name, company.clock.now_ms())
    company.archive(hours=2)
    assert check_files(company.root).flagged == company.published
    assert [*company.root.glob("*/*/visits/new/data/_READY")]


def test_a_template_can_be_changed_before_there_is_an_archive(tmp_path: Path):
    """An archive that ran before there were any data has nothing to keep together."""
    made = Company(tmp_path)
    made.create("orders")
    made.archive()
    assert not [*made.root.rglob("_READY")]
    made.restart(template="date=%Y-%m-%d/hour=%H/{event_type}", root=str(tmp_path / "other"))
    made.publish("orders", NOON)
    made.archive(hours=2)
    made.root = tmp_path / "other"
    assert check_files(made.root).flagged == made.published
    assert (made.root / "date=2024-05-01" / "hour=12" / "_READY").exists()
    made.platform.close()


def test_a_relative_root_is_one_place(tmp_path: Path, monkeypatch):
    """From another working directory the same text is another place, and is refused."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    made = Company(tmp_path)
    made.restart(root="files")
    made.create("orders")
    made.publish("orders", NOON)
    made.archive(hours=2)
    made.root = tmp_path / "a" / "files"
    made.check()
    monkeypatch.chdir(tmp_path)
    made.restart()
    with pytest.raises(Conflict, match="strandline archive moved"):
        made.platform.archive.process()
    assert not (tmp_path / "files").exists()
    made.platform.close()


def test_after_a_type_that_was_made_late(company: Company):
    """Its events of earlier hours are flagged, and the flags above list it."""
    company.create("visits")
    company.publish("visits", NOON - 5 * DAY_MS, NOON, NOON + 1)
    company.archive()
    company.check(open_hours=0)
    flag = msgspec.json.decode((company.root / "2024-05-01" / "12" / "_READY").read_bytes())
    assert (flag["revision"], len(flag["children"])) == (2, 3)


def test_after_a_backfill_of_thirty_days(company: Company):
    """Every hour gets its flag and that of the hour above, in one run."""
    times = range(NOON - 30 * DAY_MS, NOON, 7 * HOUR_MS)
    company.publish("orders", *times)
    company.archive()
    company.archive(hours=2)
    company.check()
    for time_ms in times:
        name = hour_name(time_ms)
        assert (company.root / name[:10] / name[11:] / "_READY").exists(), name


def test_after_a_type_was_retired_and_restored(company: Company):
    """What was published meanwhile is archived into hours of its own."""
    company.restart(event_types="*,-orders")
    company.platform.archive.retire("orders")
    company.archive(hours=2)
    company.publish("orders", company.clock.now_ms())
    company.archive(hours=10)
    company.publish("orders", company.clock.now_ms())
    company.restart(event_types="*")
    company.archive(hours=1)
    company.archive(hours=2)
    company.check()


def test_after_a_type_was_deleted_and_retired(company: Company):
    """Data of an hour that had not ended are shown, or flagged: they are not in silence."""
    company.publish("orders", company.clock.now_ms())
    company.archive()
    company.platform.log.delete("orders")
    company.platform.archive.retire("orders")
    company.archive(hours=3)
    company.check()
