"""The archive room in this process, over the ledger, the files and the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from strandline.archive import readiness
from strandline.archive.archiver import Archiver
from strandline.archive.files import Files
from strandline.archive.files.connect import connect as connect_files
from strandline.archive.layout import Layout
from strandline.archive.ledger import Ledger
from strandline.archive.ledger.connect import connect as connect_ledger
from strandline.archive.model import HOUR_MS, Counts, Hour, Standing, Term, hour_of
from strandline.archive.options import ArchiveOptions
from strandline.archive.process import ArchivePlan, ArchiveProcess
from strandline.archive.propagator import Propagator
from strandline.archive.readiness import PartitionStates
from strandline.archive.replay import Replayed, replay
from strandline.archive.room import (
    Archive,
    ArchiveStatus,
    HourStatus,
    PartitionStatus,
    PeriodStatus,
    configured,
)
from strandline.archive.source import LogSnapshot, Source
from strandline.archive.tasks import InProcess, Runner
from strandline.archive.verify import HourCheck, verify
from strandline.clock import Clock, parse_rfc3339, to_rfc3339
from strandline.config import Settings
from strandline.errors import Conflict, InvalidCursor, NotFound
from strandline.log.local import LocalLog


class LocalArchive(Archive):
    """Ledger and files are opened when first needed."""

    def __init__(self, log: LocalLog, data: Path, settings: Settings, clock: Clock) -> None:
        self._log = log
        self._data = data
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._files: Files | None = None
        self._source = Source(log, data, settings.log)

    @property
    def ledger(self) -> Ledger:
        with self._lock:
            if self._ledger is None:
                self._ledger = connect_ledger(self._settings, self._data, self._clock)
            return self._ledger

    @property
    def files(self) -> Files:
        with self._lock:
            if self._files is None:
                root = self._settings.archive.root or str(self._data / "archive")
                self._files = connect_files(root)
            return self._files

    def _layout(self, event_type: str) -> Layout:
        return self._options(event_type).layout

    def _options(self, event_type: str) -> ArchiveOptions:
        return ArchiveOptions.of(self._settings.archive, event_type)

    # -- for whoever archives

    def process(self, runner: Runner | None = None) -> ArchiveProcess:
        """A process of the archive; Invalid if a setting cannot be meant."""
        settings = self._settings.archive
        self._options("any")
        plan = ArchivePlan(
            self._configured,
            lambda name: self.archiver(name, runner or InProcess()),
            settings.look_back_hours,
            settings.interval_ms,
            self._settings.coordination.session_timeout_ms,
        )
        return ArchiveProcess(plan, self.ledger, Propagator(self.ledger, self.files, self._layout))

    def archiver(self, event_type: str, runner: Runner) -> Archiver:
        return Archiver(self._options(event_type), self._source, self.ledger, self.files, runner)

    def _configured(self) -> dict[str, int]:
        """When each of the configured event types was made; 0 if it is not there."""
        made = {
            kind.name: parse_rfc3339(kind.created_at or "1970-01-01T00:00:00Z") for kind in self._log.event_types()
        }
        return {name: made.get(name, 0) for name in configured(self._settings.archive.event_types, [*made])}

    # -- the room

    def status(self, from_ms: int, to_ms: int) -> list[ArchiveStatus]:
        terms = self.ledger.terms()
        hours = {(hour.event_type, hour.hour_ms): hour for hour in self.ledger.hours.between(from_ms, to_ms)}
        names = sorted({term.event_type for term in terms if _hours([term], from_ms, to_ms)})
        return [
            self._status(name, [term for term in terms if term.event_type == name], hours, from_ms, to_ms)
            for name in names
        ]

    def _status(
        self, name: str, terms: Sequence[Term], known: dict[tuple[str, int], Hour], from_ms: int, to_ms: int
    ) -> ArchiveStatus:
        standing = self.ledger.standing(name) or Standing(0, 1, -1, -1, {}, Counts())
        now_ms = self.ledger.now_ms()
        try:
            snapshot: LogSnapshot | None = self._source.look(name, now_ms)
        except NotFound:
            snapshot = None
        cells = [
            self._cell(known.get((name, hour_ms)) or Hour(name, hour_ms), standing, snapshot, now_ms)
            for hour_ms in _hours(terms, from_ms, to_ms)
        ]
        retired = all(term.to_ms is not None for term in terms)
        partitions = tuple(_partition(number, standing, snapshot) for number in sorted(standing.partitions))
        return ArchiveStatus(name, standing.epoch, retired, tuple(cells), partitions, standing.counts)

    def _cell(self, hour: Hour, standing: Standing, snapshot: LogSnapshot | None, now_ms: int) -> HourStatus:
        text = to_rfc3339(hour.hour_ms)
        if hour.revision:
            return HourStatus(text, "ready", hour.revision)
        if hour.hour_ms + HOUR_MS > now_ms:
            return HourStatus(text, "open")
        if snapshot is None:
            return HourStatus(text, "due", reason="the event type does not exist")
        states = PartitionStates(len(snapshot.spans), standing.partitions, standing.read_ms)
        rule = self._options(hour.event_type).ready_rule
        reason = readiness.blocked_by(hour.hour_ms, states, hour.barrier, rule)
        return HourStatus(text, "due", reason=reason or "its flag is the next thing to be written")

    def periods(self, from_ms: int, to_ms: int) -> list[PeriodStatus]:
        found = self.ledger.periods.between(from_ms, to_ms)
        return [PeriodStatus(one.path, to_rfc3339(one.start_ms), one.revision) for one in found]

    def verify(self, event_type: str, from_ms: int, to_ms: int) -> Iterator[HourCheck]:
        for hour in self.ledger.hours.between(from_ms, to_ms, event_type):
            if hour.revision:
                yield verify(self.files, self.ledger, self._layout(event_type), hour.hour_ms)

    def replay(self, event_type: str, from_ms: int, to_ms: int, into: str) -> Iterator[Replayed]:
        terms = [term for term in self.ledger.terms() if term.event_type == event_type]
        if not terms:
            raise NotFound(f"event type {event_type!r} is not archived")
        self._log.get(into)
        hours = _hours(terms, from_ms, to_ms)
        return replay(self.files, self._layout(event_type), hours, lambda events: self._publish(into, events))

    def _publish(self, into: str, events: Sequence[bytes]) -> None:
        self._log.publish(into, events).raise_for_failed()

    def retire(self, event_type: str, to_ms: int | None = None) -> None:
        if event_type in self._configured():
            raise Conflict(
                f"archive.event_types still names {event_type!r}; take it out first, or write -{event_type}"
            )
        if to_ms is None:
            to_ms = self.ledger.now_ms() + HOUR_MS
        try:
            self._log.get(event_type)
        except NotFound:
            standing = self.ledger.standing(event_type)
            to_ms = standing.flagged_ms + HOUR_MS if standing else 0
        self.ledger.close_term(event_type, hour_of(to_ms))

    def close(self) -> None:
        with self._lock:
            for opened in (self._ledger, self._files):
                if opened is not None:
                    opened.close()


def _hours(terms: Sequence[Term], from_ms: int, to_ms: int) -> list[int]:
    """The configured hours of a span."""
    span = range(-(-from_ms // HOUR_MS) * HOUR_MS, to_ms, HOUR_MS)
    return [hour_ms for hour_ms in span if any(term.covers(hour_ms) for term in terms)]


def _partition(number: int, standing: Standing, snapshot: LogSnapshot | None) -> PartitionStatus:
    stored = standing.partitions[number]
    newest = to_rfc3339(stored.max_timestamp_ms) if stored.max_timestamp_ms >= 0 else None
    try:
        behind = snapshot.pending(number, stored.position) if snapshot else None
    except (InvalidCursor, IndexError):  # of an event type that was made anew since
        behind = None
    return PartitionStatus(str(number), str(stored.position), newest, stored.shift, behind)
