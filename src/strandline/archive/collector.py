"""Step 1 of the archive: collect the records of an event type in staged files. Nothing is decided yet."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strandline.archive import shifts
from strandline.archive.files import Files
from strandline.archive.model import ExpiredRange, StagedFile, StoredPartition, hour_of
from strandline.archive.options import ArchiveOptions
from strandline.archive.shifts import Worker
from strandline.archive.staging import Sorting
from strandline.archive.tasks import Runner, Stage
from strandline.errors import StrandlineError
from strandline.log import cursors
from strandline.log.cursors import Position, Resumed
from strandline.log.range_source import LogSnapshot, RangeSource

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Collection:
    """What was staged since the last decision, and the worker of each partition."""

    workers: Mapping[int, Worker] = field(default_factory=dict)
    files: tuple[StagedFile, ...] = ()
    rows: int = 0
    gaps: tuple[ExpiredRange, ...] = ()

    @property
    def skipped(self) -> int:
        return sum(gap.records for gap in self.gaps)


class Collector:
    def __init__(self, source: RangeSource, files: Files, runner: Runner, options: ArchiveOptions) -> None:
        self._source = source
        self._files = files
        self._runner = runner
        self._options = options

    def resumed(
        self, collection: Collection, snapshot: LogSnapshot, stored: Mapping[int, StoredPartition], first_ms: int
    ) -> Collection:
        """Give every partition of the event type a worker, at a cursor that can be read from.

        `first_ms` is the first hour for which the event type is configured.
        """
        duration_ms = self._options.settings.duration_ms
        workers = dict(collection.workers)
        gaps = [*collection.gaps]
        for partition, spans in enumerate(snapshot.spans):
            worker, known = workers.get(partition), stored.get(partition)
            stored_position = known.position if known else None
            position = worker.cursor if worker else stored_position
            found = cursors.resume(spans, position, self._options.on_unavailable)
            if found.problem:
                log.warning(
                    "event type %r, partition %d: the archive skips %d records and continues after %s: %s",
                    *(self._options.event_type, partition, found.skipped, found.position, found.problem),
                )
            gaps += self._gaps(snapshot, partition, position, found, first_ms)
            if worker is None:
                workers[partition] = shifts.started(known, found.position, snapshot.read_ms, duration_ms)
            elif worker.cursor != found.position:
                workers[partition] = shifts.consumed(worker, found.position, -1)
        return replace(collection, workers=workers, gaps=tuple(gaps))

    def _gaps(
        self, snapshot: LogSnapshot, partition: int, position: Position | None, found: Resumed, first_ms: int
    ) -> list[ExpiredRange]:
        """What is lost if a partition that was archived up to `position` continues as found: one gap or none."""
        lost = found.index if position is None else found.skipped
        if lost <= 0:
            return []
        time_ms = self._source.next_time(self._options.event_type, snapshot, partition, found.position)
        last_ms = hour_of(snapshot.read_ms if time_ms is None else min(time_ms, snapshot.read_ms))
        # What expired before the first configured hour was never to be archived.
        wanted = position is not None or last_ms >= first_ms
        return [ExpiredRange(partition, position, found.position, lost, first_ms, last_ms)] if wanted else []

    def collected(self, collection: Collection, snapshot: LogSnapshot, directory: str) -> Collection:
        """Stage the next records, up to the ends in the snapshot. Partitions share `max_records` evenly."""
        pending = {p: snapshot.pending(p, worker.cursor) for p, worker in collection.workers.items()}
        waiting = [partition for partition, count in pending.items() if count > 0]
        share = max(1, self._options.settings.max_records // max(1, len(waiting)))
        targets = {p: snapshot.ahead(p, collection.workers[p].cursor, min(pending[p], share)) for p in waiting}
        sorting = Sorting(self._options.time_field, self._options.settings, snapshot.read_ms)
        parts = [
            self._source.range(self._options.event_type, snapshot, p, collection.workers[p].cursor, end)
            for p, end in targets.items()
        ]
        harvests = self._runner.stage(
            [Stage(self._files, directory, sorting, part) for part in parts if part.pieces]
        )
        newest = dict.fromkeys(targets, -1)
        for harvest in harvests:
            staged = sum(file.rows for file in harvest.files)
            if harvest.rows != staged:
                raise StrandlineError(
                    f"row count mismatch in partition {harvest.partition}: {harvest.rows} read, {staged} staged"
                )
            newest[harvest.partition] = harvest.max_time_ms
        moved = {p: shifts.consumed(collection.workers[p], end, newest[p]) for p, end in targets.items()}
        return replace(
            collection,
            workers={**collection.workers, **moved},
            files=collection.files + tuple(file for harvest in harvests for file in harvest.files),
            rows=collection.rows + sum(harvest.rows for harvest in harvests),
        )

    def rotated(self, collection: Collection, now_ms: int) -> Collection:
        duration_ms = self._options.settings.duration_ms
        workers = {p: shifts.rotated(worker, now_ms, duration_ms) for p, worker in collection.workers.items()}
        return replace(collection, workers=workers)
