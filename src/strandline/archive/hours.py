"""The hours of one event type and the state of each, from the ledger and the log at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from strandline.archive import readiness
from strandline.archive.ledger import Ledger
from strandline.archive.model import DAY_MS, HOUR_MS, Counts, Hour, Standing, Term, hour_name, hour_of
from strandline.archive.options import ArchiveOptions
from strandline.archive.readiness import PartitionStates
from strandline.archive.room import ArchiveStatus, HourStatus, PartitionStatus
from strandline.clock import to_rfc3339
from strandline.errors import InvalidCursor, NotFound
from strandline.log.range_source import LogSnapshot, RangeSource

# Hours are read in windows, so that a long span needs little memory.
_WINDOW_MS = 31 * DAY_MS
_DUE_SHOWN = 24


class HourGrid:
    """Reads the log only if it has to explain why an hour is not ready, or to count the lag."""

    def __init__(
        self, options: ArchiveOptions, terms: Sequence[Term], ledger: Ledger, source: RangeSource
    ) -> None:
        self._options = options
        self._name = options.event_type
        self._terms = terms
        self._ledger = ledger
        self._source = source
        self._now_ms = ledger.now_ms()

    @cached_property
    def _standing(self) -> Standing:
        return self._ledger.standing(self._name) or Standing(0, 1, -1, -1, {}, Counts())

    @cached_property
    def _snapshot(self) -> LogSnapshot | None:
        try:
            return self._source.look(self._name, self._now_ms)
        except NotFound:
            return None

    def between(self, from_ms: int, to_ms: int) -> Iterator[HourStatus]:
        """The configured hours of a span, oldest first, up to the current one."""
        from_ms = max(from_ms, min(term.from_ms for term in self._terms))
        to_ms = min(to_ms, hour_of(self._now_ms) + HOUR_MS)
        for start_ms in range(from_ms, to_ms, _WINDOW_MS):
            end_ms = min(start_ms + _WINDOW_MS, to_ms)
            known = {hour.hour_ms: hour for hour in self._ledger.hours.between(start_ms, end_ms, self._name)}
            for hour_ms in range(start_ms, end_ms, HOUR_MS):
                if any(term.covers(hour_ms) for term in self._terms):
                    yield self.status_of(known.get(hour_ms) or Hour(self._name, hour_ms))

    def status_of(self, hour: Hour) -> HourStatus:
        name = hour_name(hour.hour_ms)
        if hour.written:
            return HourStatus(name, "ready", hour.written)
        if hour.hour_ms + HOUR_MS > self._now_ms:
            return HourStatus(name, "open")
        return HourStatus(name, "due", reason=self._reason(hour))

    def _reason(self, hour: Hour) -> str:
        if self._snapshot is None:
            return "the event type does not exist"
        states = PartitionStates(len(self._snapshot.spans), self._standing.partitions, self._standing.read_ms)
        reason = readiness.blocked_by(hour.hour_ms, states, hour.barrier, self._options.ready_rule)
        if reason is None and self._options.on_gap == "hold":
            gaps = self._ledger.hours.gaps(self._name, hour.hour_ms, hour.hour_ms)
            reason = readiness.lacking(hour.hour_ms, gaps)
        return reason or "its flag will be written next"

    def summary(self) -> ArchiveStatus:
        standing = self._standing
        due_hours, due = self._due()
        return ArchiveStatus(
            event_type=self._name,
            epoch=standing.epoch,
            retired=all(term.to_ms is not None for term in self._terms),
            last_ready=self._last_ready(),
            lag=self._lag(),
            due_hours=due_hours,
            due=due,
            partitions=tuple(self._partition(number) for number in sorted(standing.partitions)),
            counts=standing.counts,
            worked_at=to_rfc3339(standing.read_ms) if standing.read_ms >= 0 else None,
        )

    def _due(self) -> tuple[int, tuple[HourStatus, ...]]:
        """How many hours are due, and the oldest of them."""
        filled = [hour.hour_ms for hour in self._ledger.hours.with_data(self._name)]
        due = {*readiness.all_due(self._terms, self._standing.flagged_ms, filled, self._now_ms)}
        # Flagged in the ledger, but the flag is not in the files yet.
        due.update(hour.hour_ms for hour in self._ledger.hours.unwritten(self._name) if not hour.written)
        shown = sorted(due)[:_DUE_SHOWN]
        if not shown:
            return 0, ()
        hours = self.between(shown[0], shown[-1] + HOUR_MS)
        return len(due), tuple(hour for hour in hours if hour.state == "due")

    def _last_ready(self) -> str | None:
        newest_ms = self._standing.flagged_ms
        recent = self._ledger.hours.between(newest_ms - DAY_MS, newest_ms + 1, self._name)
        return max((hour_name(hour.hour_ms) for hour in recent if hour.written), default=None)

    def _lag(self) -> int | None:
        if self._snapshot is None:
            return None
        return sum(self._pending(number) or 0 for number in range(len(self._snapshot.spans)))

    def _pending(self, number: int) -> int | None:
        """How many events of a partition are not archived yet; None if the number is unknown."""
        stored = self._standing.partitions.get(number)
        position = stored.position if stored else None
        try:
            return self._snapshot.pending(number, position) if self._snapshot else None
        except (InvalidCursor, IndexError):  # the event type was deleted and created again
            return None

    def _partition(self, number: int) -> PartitionStatus:
        stored = self._standing.partitions[number]
        newest = to_rfc3339(stored.max_timestamp_ms) if stored.max_timestamp_ms >= 0 else None
        return PartitionStatus(str(number), str(stored.position), newest, stored.shift, self._pending(number))
