"""Shifts: spans of wall-clock time in which a partition's records are collected. Pure functions.

A worker has a current shift and, for the grace after its end, the previous one. Finishing the previous shift also
cuts the current one: everything that was collected so far is published. Only the timestamp of the current shift is
not stored before its own end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from strandline.archive.model import StoredPartition
from strandline.errors import Invalid
from strandline.log.cursors import Position


@dataclass(frozen=True)
class Shift:
    number: int
    start_ms: int
    end_ms: int
    #: The largest event time seen; −1 if there was no event.
    max_timestamp_ms: int = -1

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.end_ms

    def is_time_to_finish(self, now_ms: int, grace_ms: int) -> bool:
        return now_ms - self.end_ms >= grace_ms


@dataclass(frozen=True)
class Worker:
    """The work on one partition. Reading continues after the cursor."""

    cursor: Position
    current: Shift
    previous: Shift | None = None


def check(duration_ms: int, grace_ms: int) -> None:
    """Invalid if a shift could be unfinished when the next one is already over."""
    if grace_ms >= duration_ms:
        raise Invalid(f"the grace of shifts ({grace_ms} ms) must be shorter than the shifts ({duration_ms} ms)")


def begin(now_ms: int, duration_ms: int, number: int = 1) -> Shift:
    """The current shift, as if it had started on time."""
    start_ms = now_ms - now_ms % duration_ms
    return Shift(number, start_ms, start_ms + duration_ms)


def started(stored: StoredPartition | None, cursor: Position, now_ms: int, duration_ms: int) -> Worker:
    """A worker that starts now. Shifts missed since the last stored one count as one empty shift, number 0."""
    current = begin(now_ms, duration_ms)
    if stored is not None and stored.end_ms >= current.start_ms:
        return Worker(cursor, current)
    return Worker(cursor, current, Shift(0, current.start_ms - duration_ms, current.start_ms))


def consumed(worker: Worker, cursor: Position, max_timestamp_ms: int) -> Worker:
    """The worker after reading records up to the cursor in the current shift."""
    newest = max(worker.current.max_timestamp_ms, max_timestamp_ms)
    return replace(worker, cursor=cursor, current=replace(worker.current, max_timestamp_ms=newest))


def rotated(worker: Worker, now_ms: int, duration_ms: int) -> Worker:
    """If the current shift is over, it becomes the previous one and the next number starts.

    A previous shift that is still unfinished, because its partition lags, is merged into its successor.
    """
    current = worker.current
    if not current.is_over(now_ms):
        return worker
    if worker.previous is not None:
        newest = max(current.max_timestamp_ms, worker.previous.max_timestamp_ms)
        current = replace(current, max_timestamp_ms=newest)
    return Worker(worker.cursor, begin(now_ms, duration_ms, current.number + 1), current)


def can_finish(worker: Worker, now_ms: int, grace_ms: int, *, caught_up: bool) -> bool:
    """Whether the previous shift can be finished. Only a partition that has caught up can be called idle."""
    previous = worker.previous
    if previous is None or not previous.is_time_to_finish(now_ms, grace_ms):
        return False
    return caught_up or previous.max_timestamp_ms >= 0


def finished(worker: Worker, stored: StoredPartition | None) -> tuple[Worker, StoredPartition]:
    """The worker without its previous shift, and what to store. The current shift is cut and keeps its number."""
    if worker.previous is None:
        raise ValueError("there is no shift to finish")
    kept = _kept(worker.previous, worker.cursor, stored, worker.previous.end_ms, certain=True)
    return replace(worker, previous=None), kept


def cut(worker: Worker, stored: StoredPartition | None) -> StoredPartition:
    """What to store when collected records are published but no shift is finished: only the position changes."""
    return structs.replace(stored or StoredPartition(worker.cursor), position=worker.cursor)


def stopped(worker: Worker, stored: StoredPartition | None, now_ms: int, *, caught_up: bool) -> StoredPartition:
    """What to store at a graceful stop, which finishes both shifts: the timestamp is that of the current one."""
    end_ms = min(worker.current.end_ms, now_ms)
    return _kept(worker.current, worker.cursor, stored, end_ms, certain=caught_up)


def _kept(
    shift: Shift, cursor: Position, stored: StoredPartition | None, end_ms: int, *, certain: bool
) -> StoredPartition:
    newest = end_ms if shift.max_timestamp_ms < 0 and certain else shift.max_timestamp_ms
    # Timestamps never go backwards: an hour that was ready stays ready.
    before = stored or StoredPartition(cursor)
    newest, end_ms = max(newest, before.max_timestamp_ms), max(end_ms, before.end_ms)
    return StoredPartition(cursor, newest, shift.number, shift.start_ms, end_ms)
