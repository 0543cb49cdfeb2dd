"""Archives one event type: a loop of steps over batch reads, from the positions that the ledger stores.

A step that fails before its decision can be retried. After the decision the archiver must be started again: the
start publishes what was decided and deletes everything else in staging, which is then read again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from strandline import failpoints
from strandline.archive import flags, places, readiness, shifts
from strandline.archive.collector import Collection, Collector
from strandline.archive.file_publisher import FilePublisher
from strandline.archive.files import Files
from strandline.archive.ledger import Ledger
from strandline.archive.model import HOUR_MS, Barrier, Claim, ExpiredRange, Hour, Standing, StoredPartition, Term
from strandline.archive.options import ArchiveOptions
from strandline.archive.readiness import PartitionStates
from strandline.archive.shifts import Worker
from strandline.archive.storage_time import StorageTime
from strandline.archive.tasks import Runner
from strandline.errors import Conflict, StrandlineError
from strandline.log.range_source import LogSnapshot, RangeSource
from strandline.logging_setup import fields

log = logging.getLogger(__name__)

# No event type has this id.
_DELETED = ""


@dataclass(frozen=True)
class Report:
    """The progress of an event type after a step; `lag` counts uncollected records by partition."""

    event_type: str
    rows: int
    lag: Mapping[int, int]
    shift: int
    flagged_ms: int

    @property
    def caught_up(self) -> bool:
        return not any(self.lag.values())


@dataclass(frozen=True)
class ClaimState:
    """The state of an archiver that holds a claim."""

    claim: Claim
    standing: Standing
    collection: Collection
    entry_id: str

    @property
    def stored(self) -> Mapping[int, StoredPartition]:
        return self.standing.partitions

    @property
    def workers(self) -> Mapping[int, Worker]:
        return self.collection.workers

    def reached(self, barrier: Barrier | None) -> bool:
        """Whether everything before the barrier is archived; true if there is no barrier yet."""
        ends = barrier.ends if barrier else {}
        return all(p in self.stored and self.stored[p].position >= end for p, end in ends.items())


class Archiver:
    def __init__(
        self,
        options: ArchiveOptions,
        source: RangeSource,
        ledger: Ledger,
        files: Files,
        runner: Runner,
        storage_time: StorageTime | None = None,
    ) -> None:
        """Archivers of one process share their `storage_time`."""
        self._name = options.event_type
        self._options = options
        self._source = source
        self._ledger = ledger
        self._files = files
        self._collector = Collector(source, files, runner, options)
        self._publisher = FilePublisher(ledger, files, runner, options)
        self._storage_time = storage_time or StorageTime(files)
        self._claim: Claim | None = None
        self._state: ClaimState | None = None

    @property
    def started(self) -> bool:
        """Whether steps are possible: false before the start and after a failed decision."""
        return self._state is not None

    # -- the loop

    def start(self) -> None:
        """Claim the event type, publish what was decided before, and delete everything else in staging."""
        self._state = None
        snapshot = self._source.look(self._name, self._ledger.now_ms())
        places.check(self._options, self._ledger, self._files)
        self._claim = claim = self._ledger.claim(self._name, snapshot.entry_id)
        failpoints.hit("archive.claim")
        self._publisher.roll_forward(claim)
        self._publisher.sweep(claim)
        state = ClaimState(claim, self._standing(), Collection(), snapshot.entry_id)
        self._write_flags(state, repair=True)
        self._state = state
        log.info("archiving", extra=fields(event_type=self._name, epoch=claim.epoch))

    def finish(self) -> None:
        """Flag the hours that have data of an event type that was deleted and retired: no more will come."""
        places.check(self._options, self._ledger, self._files)
        claim = self._ledger.claim(self._name, _DELETED)
        self._publisher.roll_forward(claim)
        self._publisher.sweep(claim)
        now_ms = self._ledger.now_ms()
        ended = [hour for hour in self._ledger.hours.with_data(self._name) if hour.hour_ms + HOUR_MS <= now_ms]
        held = self._held(ended)
        for hour in ended:
            if not readiness.lacking(hour.hour_ms, held):
                self._flag_hour(claim, hour.hour_ms)
        for hour in self._ledger.hours.unwritten(self._name):
            self._flag_hour(claim, hour.hour_ms)

    def step(self, terms: Sequence[Term], *, everything: bool = False) -> Report:
        """Collect, publish and flag what is due now; with `everything`, also collect records that could wait."""
        snapshot, due = self._begin(terms)
        collecting = everything or self._should_collect(snapshot, due)
        if collecting:
            self._collect(snapshot)
        self._state = state = self._with(self._collector.rotated(self._claimed.collection, snapshot.read_ms))
        lag = self._lag(snapshot)
        now_ms, grace_ms = snapshot.read_ms, self._options.settings.grace_ms
        workers = state.workers.items()
        finishing = {p for p, one in workers if shifts.can_finish(one, now_ms, grace_ms, caught_up=not lag[p])}
        behind = not all(state.reached(hour.barrier) for hour in due)
        # A backlog is published while it is read, so that a crash repeats one round at most.
        lagging = collecting and any(lag.values()) and bool(state.collection.files)
        deciding = bool(finishing) or behind or lagging
        if deciding:
            self._decide(snapshot, finishing)
            due = self._due(snapshot, terms)  # the decision may have filled hours that were in no term
        self._flag(snapshot, due, decided=deciding)
        return self._report(lag)

    def stop(self, terms: Sequence[Term]) -> Report:
        """Archive everything published so far and finish both shifts in one decision."""
        snapshot, _ = self._begin(terms)
        self._collect(snapshot)
        lag = self._lag(snapshot)
        stored = {
            p: shifts.stopped(worker, self._claimed.stored.get(p), snapshot.read_ms, caught_up=not lag[p])
            for p, worker in self._claimed.workers.items()
        }
        self._publish(snapshot, stored)
        self._flag(snapshot, self._due(snapshot, terms), decided=True)
        report = self._report(lag)
        self._state = self._claim = None
        return report

    def abort(self) -> None:
        """Delete staged files that are not decided (best effort). The ledger is not changed."""
        claim, self._state, self._claim = self._claim, None, None
        if claim is not None:
            with suppress(StrandlineError):  # the next start deletes them
                self._publisher.sweep(claim)

    # -- parts of a step

    @property
    def _claimed(self) -> ClaimState:
        if self._state is None:
            raise Conflict(f"the archive of {self._name!r} is not started")
        return self._state

    def _look(self) -> LogSnapshot:
        # Read the time before the ends: the snapshot promises ends of that time or later.
        snapshot = self._source.look(self._name, self._ledger.now_ms())
        newest = partial(self._source.newest_time, self._name, snapshot)
        grace_ms = self._options.settings.grace_ms
        return replace(snapshot, read_ms=self._storage_time.limited(snapshot.read_ms, grace_ms, newest))

    def _standing(self) -> Standing:
        standing = self._ledger.standing(self._name)
        if standing is None:
            raise Conflict(f"the ledger has no entry for event type {self._name!r} any more")
        return standing

    def _begin(self, terms: Sequence[Term]) -> tuple[LogSnapshot, list[Hour]]:
        """Read the log, give every partition a worker, and set the barriers of due hours."""
        snapshot = self._look()
        if snapshot.entry_id != self._claimed.entry_id:
            self.start()
        state = self._claimed
        first_ms = min((term.from_ms for term in terms if term.event_type == self._name), default=snapshot.read_ms)
        self._state = self._with(self._collector.resumed(state.collection, snapshot, state.stored, first_ms))
        return snapshot, self._due(snapshot, terms)

    def _with(self, collection: Collection) -> ClaimState:
        return replace(self._claimed, collection=collection)

    def _due(self, snapshot: LogSnapshot, terms: Sequence[Term]) -> list[Hour]:
        state = self._claimed
        own = [term for term in terms if term.event_type == self._name]
        filled = [hour.hour_ms for hour in self._ledger.hours.with_data(self._name)]
        hours = readiness.all_due(own, state.standing.flagged_ms, filled, snapshot.read_ms)
        if not hours:
            return []
        known = self._known(hours)
        grace_ms = self._options.settings.grace_ms
        due = [hour for hour in hours if readiness.barrier_due(hour, snapshot.read_ms, grace_ms)]
        without = [hour for hour in due if known[hour].barrier is None]
        if without and self._options.ready_rule == "barrier":
            failpoints.hit("archive.barrier")
            barrier = Barrier(snapshot.read_ms, snapshot.ends)
            self._ledger.hours.set_barrier(state.claim, without, barrier, grace_ms)
            known = self._known(hours)
        return [known[hour] for hour in hours]

    def _known(self, hours: Sequence[int]) -> dict[int, Hour]:
        found = self._ledger.hours.between(hours[0], hours[-1] + HOUR_MS, self._name)
        return {hour: Hour(self._name, hour) for hour in hours} | {hour.hour_ms: hour for hour in found}

    def _should_collect(self, snapshot: LogSnapshot, due: Sequence[Hour]) -> bool:
        now_ms, settings, workers = snapshot.read_ms, self._options.settings, self._claimed.workers.values()
        previous = [worker.previous for worker in workers if worker.previous]
        return (
            sum(self._lag(snapshot).values()) >= settings.min_records
            or any(worker.current.is_over(now_ms) for worker in workers)
            or any(shift.is_time_to_finish(now_ms, settings.grace_ms) for shift in previous)
            or not all(self._claimed.reached(hour.barrier) for hour in due)
        )

    def _collect(self, snapshot: LogSnapshot) -> None:
        state = self._claimed
        directory = self._publisher.new_directory(state.claim)
        self._state = self._with(self._collector.collected(state.collection, snapshot, directory))
        failpoints.hit("archive.collected")

    def _lag(self, snapshot: LogSnapshot) -> dict[int, int]:
        return {p: snapshot.pending(p, worker.cursor) for p, worker in self._claimed.workers.items()}

    def _decide(self, snapshot: LogSnapshot, finishing: set[int]) -> None:
        """Publish everything collected. This finishes some shifts and cuts the others."""
        state = self._claimed
        stored: dict[int, StoredPartition] = {}
        workers = dict(state.workers)
        for partition, worker in state.workers.items():
            before = state.stored.get(partition)
            if partition in finishing:
                workers[partition], stored[partition] = shifts.finished(worker, before)
            else:
                stored[partition] = shifts.cut(worker, before)
        self._publish(snapshot, stored)
        self._state = self._with(Collection(workers))

    def _publish(self, snapshot: LogSnapshot, stored: Mapping[int, StoredPartition]) -> None:
        # Without state until the outcome of the decision is known, so that an error requires a new start.
        state, self._state = self._claimed, None
        self._publisher.decide(state.claim, state.collection, state.stored, stored, snapshot.read_ms)
        self._publisher.sweep(state.claim)
        self._state = replace(state, standing=self._standing(), collection=Collection(state.workers))

    # -- flags

    def _flag(self, snapshot: LogSnapshot, due: Sequence[Hour], *, decided: bool) -> None:
        """Flag every hour that is ready, oldest first. Flag stale hours, which got late files, again."""
        state = self._claimed
        states = PartitionStates(len(snapshot.spans), state.stored, state.standing.read_ms)
        rule = self._options.ready_rule
        held = self._held(due)
        ready = [
            one.hour_ms
            for one in due
            if not readiness.blocked_by(one.hour_ms, states, one.barrier, rule)
            and not readiness.lacking(one.hour_ms, held)
        ]
        for hour_ms in ready:
            self._flag_hour(state.claim, hour_ms)
        if decided or ready:
            self._write_flags(state, repair=bool(ready))
            self._state = replace(state, standing=self._standing())

    def _held(self, due: Sequence[Hour]) -> list[ExpiredRange]:
        """The gaps because of which due hours get no flag."""
        if not due or self._options.on_gap == "flag":
            return []
        return self._ledger.hours.gaps(self._name, due[0].hour_ms, due[-1].hour_ms)

    def _flag_hour(self, claim: Claim, hour_ms: int) -> None:
        failpoints.hit("archive.flag")
        hour = self._ledger.hours.flag(claim, hour_ms, self._options.layout.directory(hour_ms))
        failpoints.hit("archive.flagged")
        self._write(hour)
        failpoints.hit("archive.confirm")
        self._ledger.hours.confirm(claim, hour_ms, hour.revision)
        log.info("hour is ready", extra=fields(event_type=self._name, hour_ms=hour_ms, revision=hour.revision))

    def _write_flags(self, state: ClaimState, *, repair: bool) -> None:
        """Write flags that are not in the files yet or stale; with `repair`, also recent ones that are missing."""
        for hour in self._ledger.hours.unwritten(self._name):
            self._flag_hour(state.claim, hour.hour_ms)
        if repair:
            now_ms = self._ledger.now_ms()
            back_ms = max(1, self._options.settings.look_back_hours) * HOUR_MS
            for hour in self._ledger.hours.between(now_ms - back_ms - HOUR_MS, now_ms, self._name):
                if hour.revision and not hour.stale:
                    self._repair(hour)

    def _repair(self, hour: Hour) -> None:
        """Write the flag again, unless files that it lists are gone."""
        listed = self._ledger.files(self._name, hour.hour_ms)
        if places.present(self._files, self._options.layout, hour.hour_ms, listed):
            self._write(hour)
        else:
            path = self._options.layout.directory(hour.hour_ms)
            log.warning("files of %s are missing, so its flag is not written again", path)

    def _write(self, hour: Hour) -> None:
        listed = self._ledger.files(self._name, hour.hour_ms)
        gaps = self._ledger.hours.gaps(self._name, hour.hour_ms, hour.hour_ms)
        flags.write_hour(self._files, self._options.layout, hour, listed, gaps)

    def _report(self, lag: Mapping[int, int]) -> Report:
        state = self._claimed
        shift = max((worker.current.number for worker in state.workers.values()), default=0)
        rows = state.standing.counts.read + state.collection.rows
        return Report(self._name, rows, lag, shift, state.standing.flagged_ms)
