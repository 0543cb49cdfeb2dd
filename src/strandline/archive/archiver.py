"""The archive of one event type: a loop of steps over batch reads, from where the ledger says.

Timer, once and stop are the same steps. A step that fails leaves nothing half-done. Before its decision it can
be tried again; after that, start again: what was decided is published, what was not is thrown away and read again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from strandline import failpoints
from strandline.archive import flags, readiness, shifts
from strandline.archive.collector import Collection, Collector
from strandline.archive.files import Files
from strandline.archive.ledger import Ledger
from strandline.archive.model import HOUR_MS, Barrier, Claim, Hour, Standing, Stored, Term
from strandline.archive.options import Options
from strandline.archive.publication import Publication
from strandline.archive.readiness import Progress
from strandline.archive.source import Reading, Source
from strandline.archive.tasks import Runner
from strandline.errors import Conflict, StrandlineError
from strandline.logging_setup import fields

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """Where an event type is after a step: records not collected yet by partition, shift, newest flagged hour."""

    event_type: str
    rows: int
    lag: Mapping[int, int]
    shift: int
    flagged_ms: int

    @property
    def caught_up(self) -> bool:
        return not any(self.lag.values())


@dataclass(frozen=True)
class _Desk:
    """What an archiver knows while it has a claim."""

    claim: Claim
    standing: Standing
    collection: Collection
    entry_id: str

    @property
    def stored(self) -> Mapping[int, Stored]:
        return self.standing.partitions


class Archiver:
    def __init__(self, options: Options, source: Source, ledger: Ledger, files: Files, runner: Runner) -> None:
        self._name = options.event_type
        self._options = options
        self._source = source
        self._ledger = ledger
        self._files = files
        self._collector = Collector(source, files, runner, options)
        self._publication = Publication(ledger, files, runner, options)
        self._claim: Claim | None = None
        self._desk: _Desk | None = None

    @property
    def started(self) -> bool:
        """Whether steps can be made: not before the start, nor after a decision that failed."""
        return self._desk is not None

    # -- the loop

    def start(self) -> None:
        """Claim the event type, finish what was decided before, throw away what was not."""
        self._desk = None
        reading = self._look()
        self._claim = claim = self._ledger.claim(self._name, reading.entry_id)
        failpoints.hit("archive.claim")
        self._publication.roll_forward(claim)
        self._publication.sweep(claim)
        desk = _Desk(claim, self._standing(), Collection(), reading.entry_id)
        self._write_flags(desk, repair=True)
        self._desk = desk
        log.info("archiving", extra=fields(event_type=self._name, epoch=claim.epoch))

    def step(self, terms: Sequence[Term], *, everything: bool = False) -> Report:
        """Do what is to be done now; with `everything`, collect also what could wait."""
        reading, due = self._begin(terms)
        collecting = everything or self._worth_collecting(reading, due)
        if collecting:
            self._collect(reading)
        desk = self._open_desk
        self._desk = desk = _with(desk, self._collector.rotated(desk.collection, reading.read_ms))
        lag = self._lag(reading)
        finishing = {p for p in desk.collection.workers if self._can_finish(reading, p, caught_up=not lag[p])}
        behind = any(not self._reached(hour.barrier) for hour in due if hour.barrier)
        # A backlog is published while it is read, so that a crash costs one round of it.
        lagging = collecting and any(lag.values()) and bool(desk.collection.files)
        deciding = bool(finishing) or behind or lagging
        if deciding:
            self._decide(reading, finishing)
        self._flag(reading, due, decided=deciding)
        return self._report(lag)

    def stop(self, terms: Sequence[Term]) -> Report:
        """Finish both shifts in one decision: what was published up to now is archived."""
        reading, due = self._begin(terms)
        self._collect(reading)
        lag = self._lag(reading)
        stored = {
            p: shifts.stopped(worker, self._open_desk.stored.get(p), reading.read_ms, caught_up=not lag[p])
            for p, worker in self._open_desk.collection.workers.items()
        }
        self._publish(reading, stored)
        self._flag(reading, due, decided=True)
        report = self._report(lag)
        self._desk = self._claim = None
        return report

    def abort(self) -> None:
        """Remove what is not decided, as far as that is possible now; what is stored stays."""
        claim, self._desk, self._claim = self._claim, None, None
        if claim is not None:
            with suppress(StrandlineError):  # the next start does it
                self._publication.sweep(claim)

    # -- its parts

    @property
    def _open_desk(self) -> _Desk:
        if self._desk is None:
            raise Conflict(f"the archive of {self._name!r} is not started")
        return self._desk

    def _look(self) -> Reading:
        # The time first: the ends are those of that moment or a later one.
        return self._source.look(self._name, self._ledger.now_ms())

    def _standing(self) -> Standing:
        standing = self._ledger.standing(self._name)
        if standing is None:
            raise Conflict(f"the ledger has lost {self._name!r}")
        return standing

    def _begin(self, terms: Sequence[Term]) -> tuple[Reading, list[Hour]]:
        """The log as it is, every partition with its worker, and the due hours with their barriers."""
        reading = self._look()
        desk = self._open_desk
        if reading.entry_id != desk.entry_id:
            self.start()
            desk = self._open_desk
        self._desk = _with(desk, self._collector.resumed(desk.collection, reading, desk.stored))
        return reading, self._due(reading, terms)

    def _due(self, reading: Reading, terms: Sequence[Term]) -> list[Hour]:
        desk = self._open_desk
        own = [term for term in terms if term.event_type == self._name]
        hours = readiness.due_hours(own, desk.standing.flagged_ms, reading.read_ms)
        if not hours:
            return []
        known = self._known(hours)
        grace_ms = self._options.settings.grace_ms
        without = [
            hour
            for hour in hours
            if known[hour].barrier is None and readiness.barrier_due(hour, reading.read_ms, grace_ms)
        ]
        if without and self._options.ready_rule == "barrier":
            failpoints.hit("archive.barrier")
            barrier = Barrier(reading.read_ms, reading.ends)
            self._ledger.hours.set_barrier(desk.claim, without, barrier, grace_ms)
            known = self._known(hours)
        return [known[hour] for hour in hours]

    def _known(self, hours: Sequence[int]) -> dict[int, Hour]:
        found = self._ledger.hours.between(hours[0], hours[-1] + HOUR_MS, self._name)
        return {hour: Hour(self._name, hour) for hour in hours} | {hour.hour_ms: hour for hour in found}

    def _worth_collecting(self, reading: Reading, due: Sequence[Hour]) -> bool:
        settings, workers = self._options.settings, self._open_desk.collection.workers.values()
        return (
            sum(self._lag(reading).values()) >= settings.min_records
            or any(worker.current.is_over(reading.read_ms) for worker in workers)
            or any(
                worker.previous and worker.previous.is_time_to_finish(reading.read_ms, settings.grace_ms)
                for worker in workers
            )
            or any(not self._reached(hour.barrier) for hour in due if hour.barrier)
        )

    def _collect(self, reading: Reading) -> None:
        desk = self._open_desk
        directory = self._publication.new_directory(desk.claim)
        self._desk = _with(desk, self._collector.collected(desk.collection, reading, directory))
        failpoints.hit("archive.collected")

    def _lag(self, reading: Reading) -> dict[int, int]:
        workers = self._open_desk.collection.workers
        return {p: reading.pending(p, worker.cursor) for p, worker in workers.items()}

    def _can_finish(self, reading: Reading, partition: int, *, caught_up: bool) -> bool:
        worker = self._open_desk.collection.workers[partition]
        return shifts.can_finish(worker, reading.read_ms, self._options.settings.grace_ms, caught_up=caught_up)

    def _reached(self, barrier: Barrier) -> bool:
        stored = self._open_desk.stored
        return all(p in stored and stored[p].position >= end for p, end in barrier.ends.items())

    def _decide(self, reading: Reading, finishing: set[int]) -> None:
        """Publish everything collected. Some shifts are finished with it; the others are cut."""
        desk = self._open_desk
        stored: dict[int, Stored] = {}
        workers = dict(desk.collection.workers)
        for partition, worker in desk.collection.workers.items():
            before = desk.stored.get(partition)
            if partition in finishing:
                workers[partition], stored[partition] = shifts.finished(worker, before)
            else:
                stored[partition] = shifts.cut(worker, before)
        self._publish(reading, stored)
        self._desk = _with(self._open_desk, Collection(workers))

    def _publish(self, reading: Reading, stored: Mapping[int, Stored]) -> None:
        # Without a desk until it is certain what became of the decision.
        desk, self._desk = self._open_desk, None
        self._publication.decide(desk.claim, desk.collection, desk.stored, stored, reading.read_ms)
        self._publication.sweep(desk.claim)
        self._desk = _Desk(desk.claim, self._standing(), Collection(desk.collection.workers), desk.entry_id)

    # -- flags

    def _flag(self, reading: Reading, due: Sequence[Hour], *, decided: bool) -> None:
        """Flag every hour that is ready now, oldest first, and anew what late files made stale."""
        desk = self._open_desk
        progress = Progress(len(reading.spans), desk.stored, desk.standing.read_ms)
        ready = [hour.hour_ms for hour in due if not self._blocked(hour, progress)]
        for hour_ms in ready:
            self._flag_hour(desk.claim, hour_ms)
        if decided or ready:
            self._write_flags(desk, repair=bool(ready))
            self._desk = _Desk(desk.claim, self._standing(), desk.collection, desk.entry_id)

    def _blocked(self, hour: Hour, progress: Progress) -> str | None:
        return readiness.blocked_by(hour.hour_ms, progress, hour.barrier, self._options.ready_rule)

    def _flag_hour(self, claim: Claim, hour_ms: int) -> None:
        failpoints.hit("archive.flag")
        hour = self._ledger.hours.flag(claim, hour_ms, self._options.layout.directory(hour_ms))
        failpoints.hit("archive.flagged")
        self._write(hour)
        failpoints.hit("archive.confirm")
        self._ledger.hours.confirm(claim, hour_ms, hour.revision)
        log.info("hour is ready", extra=fields(event_type=self._name, hour_ms=hour_ms, revision=hour.revision))

    def _write_flags(self, desk: _Desk, *, repair: bool) -> None:
        """Those that are decided but not written, or not decided since late files came; and missing ones."""
        for hour in self._ledger.hours.unwritten(self._name):
            self._flag_hour(desk.claim, hour.hour_ms)
        if repair:
            now_ms = self._ledger.now_ms()
            back_ms = max(1, self._options.settings.look_back_hours) * HOUR_MS
            for hour in self._ledger.hours.between(now_ms - back_ms - HOUR_MS, now_ms, self._name):
                if hour.revision and not hour.stale:
                    self._write(hour)

    def _write(self, hour: Hour) -> None:
        listed = self._ledger.files(self._name, hour.hour_ms)
        flags.write_hour(self._files, self._options.layout, hour, listed)

    def _report(self, lag: Mapping[int, int]) -> Report:
        desk = self._open_desk
        shift = max((worker.current.number for worker in desk.collection.workers.values()), default=0)
        return Report(
            self._name, desk.standing.counts.read + desk.collection.rows, lag, shift, desk.standing.flagged_ms
        )


def _with(desk: _Desk, collection: Collection) -> _Desk:
    return _Desk(desk.claim, desk.standing, collection, desk.entry_id)
