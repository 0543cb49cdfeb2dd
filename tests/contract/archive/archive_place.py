"""An archive on a real log, ledger and directory, with a clock that tests advance, and readers of its files."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from strandline.archive import readiness
from strandline.archive.archiver import Archiver, Report
from strandline.archive.files import Files
from strandline.archive.files.local import LocalFiles
from strandline.archive.layout import Layout, at
from strandline.archive.ledger import Ledger
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.model import HOUR_MS, Counts, Term
from strandline.archive.options import ArchiveOptions
from strandline.archive.propagator import Propagator
from strandline.archive.settings import ArchiveSettings
from strandline.archive.tasks import InProcess, Runner
from strandline.clock import ManualClock, parse_rfc3339, to_rfc3339
from strandline.log import EventType
from strandline.log.range_source import RangeSource
from strandline.platform import Platform
from strandline.settings import Settings

NOON = parse_rfc3339("2024-05-01T12:00:00Z")
GRACE = 30_000
MINUTE = 60_000


class ArchivePlace:
    """`settings` may be changed before an archiver is created."""

    def __init__(self, folder: Path, now_ms: int = NOON, ledger_url: str = "", **settings: Any) -> None:
        """The ledger is a file, or in PostgreSQL if `ledger_url` is given."""
        self.clock = ManualClock(now_ms)
        self.settings = replace(ArchiveSettings(look_back_hours=2), **settings)
        self.platform = Platform(folder / "data", Settings(archive=self.settings), self.clock)
        database = self.platform.databases.get(ledger_url, "archive.db")
        self.ledger: Ledger = SqlLedger(database, lease_ms=6_000, now=self.clock.now_ms)
        self.root = folder / "archive"
        self.files: Files = LocalFiles(str(self.root))
        self.source = RangeSource(self.platform.log.types, folder / "data", self.platform.settings.log)
        self.runner: Runner = InProcess()
        self.propagator = Propagator(self.ledger, self.files, self.layout)

    def close(self) -> None:
        self.platform.close()

    # -- the log

    def create(self, name: str = "orders", partitions: int = 1, **definition: Any) -> None:
        """An event type whose events name their partition, configured for the archive."""
        kind = EventType(
            name, category="business", partitions=partitions, partition_strategy="user_defined", **definition
        )
        self.platform.log.create(kind)
        self.configure(name)

    def configure(self, name: str) -> None:
        first = readiness.first_hour(self.clock.now_ms(), self.settings.look_back_hours, 0)
        self.ledger.open_term(name, first)

    def publish(self, *times_ms: int, name: str = "orders", partition: int = 0) -> list[str]:
        """Publish events with these times; return their ids."""
        ids = [str(uuid.uuid4()) for _ in times_ms]
        events = [
            {"metadata": {"eid": eid, "occurred_at": to_rfc3339(time_ms), "partition": str(partition)}}
            for eid, time_ms in zip(ids, times_ms, strict=True)
        ]
        self.platform.log.publish(name, events).raise_for_failed()
        return ids

    # -- the archive

    @property
    def terms(self) -> list[Term]:
        return self.ledger.terms()

    def layout(self, name: str) -> Layout:
        return ArchiveOptions.of(self.settings, name).layout

    def archiver(self, name: str = "orders", *, started: bool = True) -> Archiver:
        made = Archiver(ArchiveOptions.of(self.settings, name), self.source, self.ledger, self.files, self.runner)
        if started:
            made.start()
        return made

    def working(self, name: str = "orders") -> Archiver:
        """An archiver in the middle of its shift; earlier hours are flagged."""
        made = self.archiver(name)
        self.step(made, max(NOON + GRACE, self.clock.now_ms()))
        return made

    def step(self, archiver: Archiver, now_ms: int | None = None) -> Report:
        """Make a step at that time."""
        if now_ms is not None:
            self.clock.advance(now_ms - self.clock.now_ms())
        return archiver.step(self.terms)

    def live_through(self, archiver: Archiver, until_ms: int, every_ms: int = 10_000) -> None:
        """Make steps as the timer does."""
        while self.clock.now_ms() < until_ms:
            self.clock.advance(min(every_ms, until_ms - self.clock.now_ms()))
            archiver.step(self.terms)

    def propagate(self, *, repair: bool = False) -> int:
        return self.propagator.run(self.terms, repair=repair)

    # -- the results

    def stored(self, name: str = "orders") -> dict[int, Any]:
        standing = self.ledger.standing(name)
        assert standing is not None
        return dict(standing.partitions)

    def counts(self, name: str = "orders") -> Counts:
        standing = self.ledger.standing(name)
        assert standing is not None
        return standing.counts

    def flag(self, hour_ms: int, name: str = "orders", *, beside_files: bool = False) -> dict[str, Any] | None:
        """The content of an event type's flag."""
        path = self.root / self.layout(name).flags(hour_ms)[0 if beside_files else 1]
        return msgspec.json.decode(path.read_bytes()) if path.exists() else None

    def period(self, path: str) -> dict[str, Any] | None:
        file = self.root / path / "_READY"
        return msgspec.json.decode(file.read_bytes()) if file.exists() else None

    def flagged(self, name: str = "orders") -> list[str]:
        """The hours that have a flag in both directories; no hour may have only one."""
        found = []
        for hour_ms in self._hours():
            here, above = self.flag(hour_ms, name), self.flag(hour_ms, name, beside_files=True)
            assert (here is None) == (above is None), hour_ms
            if here is not None:
                assert here == above
                found.append(at("%d/%H", hour_ms))
        return found

    def _hours(self) -> Iterable[int]:
        now_ms = self.clock.now_ms()
        return range(now_ms - now_ms % HOUR_MS - 80 * HOUR_MS, now_ms + HOUR_MS, HOUR_MS)

    def data_files(self) -> list[Path]:
        """The files that a reader without a ledger treats as data."""
        found = self.root.rglob("*.parquet")
        return sorted(path for path in found if not path.relative_to(self.root).parts[0].startswith("_"))

    def rows(self, paths: Iterable[Path] | None = None) -> list[dict[str, Any]]:
        files = self.data_files() if paths is None else paths
        return [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]

    def ids(self) -> Counter[str]:
        """How often each event is in the published files."""
        return Counter(msgspec.json.decode(row["value"])["metadata"]["eid"] for row in self.rows())

    def ids_in(self, hour_ms: int, name: str = "orders") -> Counter[str]:
        """The events in the files that an hour's flag lists."""
        flag = self.flag(hour_ms, name)
        assert flag is not None
        folder = self.root / self.layout(name).data(hour_ms)
        rows = self.rows(folder / file["name"] for file in flag["files"])
        return Counter(msgspec.json.decode(row["value"])["metadata"]["eid"] for row in rows)

    def quarantined(self) -> list[dict[str, Any]]:
        return self.rows(sorted((self.root / "_quarantine").rglob("*.quarantined")))

    def staged(self) -> list[Path]:
        return sorted(path for path in (self.root / "_staging").rglob("*") if path.is_file())


def reasons(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(row["reason"] for row in rows)
