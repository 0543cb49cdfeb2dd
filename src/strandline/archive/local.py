"""The archive room in this process, over the ledger, the files and the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from strandline.archive import flags, places
from strandline.archive.archiver import Archiver
from strandline.archive.files import Files
from strandline.archive.files.connect import connect as connect_files
from strandline.archive.gauges import MEASURE_INTERVAL_MS, ArchiveGauges
from strandline.archive.history import ArchivedValues
from strandline.archive.hours import HourGrid
from strandline.archive.layout import Layout
from strandline.archive.ledger import Ledger
from strandline.archive.ledger.connect import connect as connect_ledger
from strandline.archive.ledger.connect import is_made
from strandline.archive.model import HOUR_MS, Hour, HourName, Term, hour_name, hour_of, parse_hour
from strandline.archive.options import ArchiveOptions, configured
from strandline.archive.process import ArchiveProcess
from strandline.archive.propagator import Propagator
from strandline.archive.replay import Replayed, replay
from strandline.archive.room import (
    MAX_PERIODS_MS,
    MAX_WAIT_MS,
    Archive,
    ArchiveStatus,
    HourCheck,
    HourReport,
    HourState,
    HourStatus,
    PeriodStatus,
    parse_span,
)
from strandline.archive.settings import ArchiveSections
from strandline.archive.storage_time import StorageTime
from strandline.archive.tasks import InProcess, Runner
from strandline.archive.verify import verify
from strandline.clock import Clock, parse_rfc3339, to_rfc3339
from strandline.engine.connect import Databases
from strandline.engine.private import make_directory, protect
from strandline.errors import Conflict, Invalid, NotFound, Unavailable
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.log.local import LocalLog
from strandline.log.range_source import RangeSource
from strandline.log.retention import Wait
from strandline.room import Chore, GaugeValues, Room

_POLL_SECONDS = 0.5
_CHECK_SECONDS = 5.0


class LocalArchive(Archive, Room):
    """Opens the ledger and the files when they are first needed. Reads do not create a ledger.

    Beyond the contract: `process` archives, `replay` publishes archived events, `retire` ends the archiving of an
    event type.
    """

    def __init__(
        self, log: LocalLog, databases: Databases, data: Path, settings: ArchiveSections, clock: Clock
    ) -> None:
        self._log = log
        self._databases = databases
        self._data = data
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._files: Files | None = None
        self._closed = False
        self._source = RangeSource(log.types, data, settings.log)
        self._gauges = ArchiveGauges(self.status)
        log.upkeep.retention.ask(self._waits)

    @property
    def ledger(self) -> Ledger:
        with self._lock:
            if self._ledger is None:
                self._ledger = connect_ledger(self._settings, self._databases, self._clock)
            return self._ledger

    @property
    def files(self) -> Files:
        with self._lock:
            if self._files is None:
                self._files = connect_files(self._settings.archive.root or self._own_root())
            return self._files

    def _own_root(self) -> str:
        """The directory in the data directory; files in it are as private as the data directory."""
        make_directory(self._data)
        protect(self._data / "archive")
        return str(self._data / "archive")

    def _layout(self, event_type: str) -> Layout:
        return self._options(event_type).layout

    def _options(self, event_type: str) -> ArchiveOptions:
        return ArchiveOptions.of(self._settings.archive, event_type)

    def _all_terms(self) -> list[Term]:
        if self._closed:
            raise Unavailable("the archive is closed; open the platform again")
        return self.ledger.terms() if is_made(self._settings, self._data) else []

    def _terms(self, event_type: str) -> list[Term]:
        terms = [term for term in self._all_terms() if term.event_type == event_type]
        if not terms:
            raise NotFound(
                f"event type {event_type!r} is not archived; archive.event_types must name it, and "
                "`strandline pipeline run archive` must have run since"
            )
        return terms

    # -- for the process that runs the room

    def chores(self) -> list[Chore]:
        return [Chore("measuring the archive", MEASURE_INTERVAL_MS, self._gauges.measure)]

    def gauges(self) -> GaugeValues:
        return self._gauges.values()

    def _waits(self) -> dict[str, Wait]:
        """The event types whose retention waits for the archive, and how far they are archived."""
        settings, found = self._settings.archive, dict[str, Wait]()
        if not settings.retention_waits:
            return found
        for name, own in groupby(self._all_terms(), key=lambda term: term.event_type):
            standing = self.ledger.standing(name)
            flagged_ms = standing.flagged_ms if standing else -1
            # A retired event type waits until its last hour is flagged.
            if any(term.to_ms is None or term.to_ms > flagged_ms + HOUR_MS for term in own):
                positions = {p: one.position for p, one in standing.partitions.items()} if standing else {}
                found[name] = Wait(positions, settings.max_waiting_bytes)
        return found

    # -- the contract

    def status(self) -> list[ArchiveStatus]:
        by_name = groupby(self._all_terms(), key=lambda term: term.event_type)
        return [self._grid(name, [*terms]).summary() for name, terms in by_name]

    def _grid(self, event_type: str, terms: Sequence[Term]) -> HourGrid:
        return HourGrid(self._options(event_type), terms, self.ledger, self._source)

    def hours(
        self,
        event_type: str,
        start: HourName | None = None,
        end: HourName | None = None,
        state: HourState | None = None,
    ) -> Iterator[HourStatus]:
        from_ms, to_ms = parse_span(start, end)
        found = self._grid(event_type, self._terms(event_type)).between(from_ms, to_ms)
        return (hour for hour in found if state in {None, hour.state})

    def hour(self, event_type: str, hour: HourName, wait_ms: int = 0) -> HourReport:
        if not 0 <= wait_ms <= MAX_WAIT_MS:
            raise Invalid(f"wait_ms must be between 0 and {MAX_WAIT_MS}, not {wait_ms}")
        deadline = time.monotonic() + wait_ms / 1000
        while not (known := self._known(event_type, hour)).written and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_POLL_SECONDS, left))
        found = self._grid(event_type, self._terms(event_type)).status_of(known)
        if found.state != "ready":
            return HourReport(found.hour, found.state, reason=found.reason)
        manifest = flags.read(self.files, self._layout(event_type).flags(known.hour_ms)[1])
        if manifest is None:
            reason = "its flag is missing in the files; an archive process writes it again when it starts"
            return HourReport(found.hour, "due", found.revision, reason)
        return HourReport(found.hour, "ready", manifest.revision, manifest=manifest)

    def is_ready(self, event_type: str, hour: HourName) -> bool:
        return self._known(event_type, hour).written > 0

    def _known(self, event_type: str, hour: HourName) -> Hour:
        """What the ledger knows of an hour, for which the event type must be configured."""
        hour_ms = parse_hour(hour)
        terms = self._terms(event_type)
        if not any(term.covers(hour_ms) for term in terms):
            spans = ", ".join(
                f"from {hour_name(term.from_ms)}" + ("" if term.to_ms is None else f" to {hour_name(term.to_ms)}")
                for term in terms
            )
            raise NotFound(f"event type {event_type!r} is not archived for {hour_name(hour_ms)}, only {spans}")
        found = self.ledger.hours.between(hour_ms, hour_ms + 1, event_type)
        return found[0] if found else Hour(event_type, hour_ms)

    def check(self, event_type: str, hour: HourName, after: str = "") -> HourCheck:
        known = self._known(event_type, hour)
        if not known.written:
            raise Conflict(f"hour {hour_name(known.hour_ms)} of event type {event_type!r} is not ready yet")
        return verify(
            self.files, self.ledger, self._layout(event_type), known.hour_ms, after, seconds=_CHECK_SECONDS
        )

    def periods(self, start: HourName, end: HourName) -> Iterator[PeriodStatus]:
        from_ms, to_ms = parse_span(start, end)
        return self._periods(from_ms, to_ms) if is_made(self._settings, self._data) else iter(())

    def _periods(self, from_ms: int, to_ms: int) -> Iterator[PeriodStatus]:
        for start_ms in range(from_ms, to_ms, MAX_PERIODS_MS):
            found = self.ledger.periods.between(start_ms, min(start_ms + MAX_PERIODS_MS, to_ms))
            for one in sorted(found, key=lambda period: (period.start_ms, period.path)):
                yield PeriodStatus(one.path, to_rfc3339(one.start_ms), one.revision)

    def check_ready(self) -> None:
        """Does not open a ledger that was not needed yet."""
        if self._ledger is not None:
            self._ledger.terms()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._files is not None:
                self._files.close()

    # -- beyond the contract: what needs this process

    def process(self, runner: Runner | None = None) -> ArchiveProcess:
        """A process of the archive, not started. Invalid if a setting has a value that cannot work."""
        self._options("any")
        for name in {term.event_type for term in self._all_terms()}:
            if self.ledger.location(name) is not None:
                places.check(self._options(name), self.ledger, self.files)
        propagator = Propagator(self.ledger, self.files, self._layout)
        make = partial(self._archiver, runner=runner or InProcess(), storage_time=StorageTime(self.files))
        return ArchiveProcess(self._settings, self.ledger, propagator, self._configured, make)

    def archiver(self, event_type: str, runner: Runner) -> Archiver:
        return self._archiver(event_type, runner, StorageTime(self.files))

    def _archiver(self, event_type: str, runner: Runner, storage_time: StorageTime) -> Archiver:
        options = self._options(event_type)
        return Archiver(options, self._source, self.ledger, self.files, runner, storage_time)

    def processes(self) -> dict[str, str]:
        """The progress that each running archive process last reported, by the name of the process."""
        return self.ledger.leases.owners() if is_made(self._settings, self._data) else {}

    def _configured(self) -> dict[str, int]:
        """When each configured event type was created; 0 if it does not exist."""
        made = {
            kind.name: parse_rfc3339(kind.created_at or "1970-01-01T00:00:00Z")
            for kind in self._log.event_types()
            if kind.journal is None  # actions are no events, and their times are not event times
        }
        return {name: made.get(name, 0) for name in configured(self._settings.archive.event_types, [*made])}

    def moved(self) -> int:
        """Accept a changed `archive.root`, to which all files were copied; returns the number of flagged hours.

        Conflict if files are missing there.
        """
        by_name = groupby(self._all_terms(), key=lambda term: term.event_type)
        return sum(places.moved(self._options(name), [*terms], self.ledger, self.files) for name, terms in by_name)

    def replay(self, event_type: str, start: HourName, end: HourName, into: str) -> Iterator[Replayed]:
        """Publish the archived events of all configured hours of the span into an event type, hour by hour.

        Conflict if an hour is not ready. A repeated replay publishes the events again; they keep their `eid`.
        """
        terms = self._terms(event_type)
        from_ms, to_ms = parse_span(start, end)
        self._log.get(into)
        span = range(max(from_ms, terms[0].from_ms), min(to_ms, self.ledger.now_ms()), HOUR_MS)
        hours = (hour_ms for hour_ms in span if any(term.covers(hour_ms) for term in terms))
        layout = self._layout(event_type)
        return replay(self.files, layout, hours, lambda events: self._log.publish(into, events).raise_for_failed())

    def values_before(self, event_type: str, ends: Mapping[int, Position]) -> list[ArchivedValues]:
        """The files of ready hours that have records up to these positions, by partition; others may be in them.

        Empty if the event type was never archived.
        """
        try:
            ready = [*self.hours(event_type, state="ready")]
        except NotFound:
            return []
        layout = self._layout(event_type)
        return [
            ArchivedValues(self.files, f"{layout.data(parse_hour(one.hour))}/{file.name}")
            for one in ready
            for file in self.manifest(event_type, one.hour).files
            if (first := cursors.parse(file.first_cursor)) is None or first <= ends.get(int(file.partition), first)
        ]

    def retire(self, event_type: str, at: HourName | None = None) -> None:
        """End the archiving of an event type at that hour; by default at the next one.

        Earlier hours are still flagged. If the event type no longer exists, only hours that are flagged already
        count. Conflict if the settings still name it.
        """
        if event_type in self._configured():
            raise Conflict(
                f"archive.event_types still names {event_type!r}; remove it from the setting first, or add "
                f"-{event_type}"
            )
        self._terms(event_type)
        self.ledger.close_term(event_type, self._retired_from(event_type, at))

    def _retired_from(self, event_type: str, at: HourName | None) -> int:
        try:
            self._log.get(event_type)
        except NotFound:
            standing = self.ledger.standing(event_type)
            return hour_of(standing.flagged_ms + HOUR_MS) if standing else 0
        return hour_of(self.ledger.now_ms()) + HOUR_MS if at is None else parse_hour(at)
