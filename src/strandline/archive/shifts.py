"""Shifts: spans of wall-clock time in which a partition's records are collected. Pure functions.

A worker has the shift of the present and, for a short while after its end, the one before. Finishing that one
also cuts the present one: everything that was collected so far is published with it, only the present shift's
timestamp waits for its own end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.archive.model import StoredPartition
from strandline.errors import Invalid
from strandline.log.cursors import Position


@dataclass(frozen=True)
class Shift:
    number: int
    start_ms: int
    end_ms: int
    #: The largest event time seen; −1 when there was none.
    max_timestamp_ms: int = -1

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.end_ms

    def is_time_to_finish(self, now_ms: int, grace_ms: int) -> bool:
        return now_ms - self.end_ms >= grace_ms


@dataclass(frozen=True)
class Worker:
    """One partition: the next thing to read is after the cursor."""

    cursor: Position
    current: Shift
    previous: Shift | None = None


def check(duration_ms: int, grace_ms: int) -> None:
    """Invalid if a shift could still wait for its end when the next one is over."""
    if grace_ms >= duration_ms:
        raise Invalid(f"the grace of shifts ({grace_ms} ms) must be shorter than the shifts ({duration_ms} ms)")


def begin(now_ms: int, duration_ms: int, number: int = 1) -> Shift:
    """The shift of the present, as if it had started on time."""
    start_ms = now_ms - now_ms % duration_ms
    return Shift(number, start_ms, start_ms + duration_ms)


def started(stored: StoredPartition | None, cursor: Position, now_ms: int, duration_ms: int) -> Worker:
    """A worker that begins now. Shifts that nobody worked count as one, number 0, in which nothing was read."""
    current = begin(now_ms, duration_ms)
    if stored is not None and stored.end_ms >= current.start_ms:
        return Worker(cursor, current)
    return Worker(cursor, current, Shift(0, current.start_ms - duration_ms, current.start_ms))


def consumed(worker: Worker, cursor: Position, max_timestamp_ms: int) -> Worker:
    """Records were read up to the cursor, in the present shift."""
    newest = max(worker.current.max_timestamp_ms, max_timestamp_ms)
    return replace(worker, cursor=cursor, current=replace(worker.current, max_timestamp_ms=newest))


def rotated(worker: Worker, now_ms: int, duration_ms: int) -> Worker:
    """When the present shift is over it becomes the previous one, and the next number begins.

    One that is still waiting, because its partition lags, goes on as part of its successor.
    """
    current, waiting = worker.current, worker.previous
    if not current.is_over(now_ms):
        return worker
    if waiting is not None:
        newest = max(current.max_timestamp_ms, waiting.max_timestamp_ms)
        current = replace(current, max_timestamp_ms=newest)
    return Worker(worker.cursor, begin(now_ms, duration_ms, current.number + 1), current)


def can_finish(worker: Worker, now_ms: int, grace_ms: int, *, caught_up: bool) -> bool:
    """Whether the previous shift's time has come. That nothing came in it is only known once caught up."""
    previous = worker.previous
    if previous is None or not previous.is_time_to_finish(now_ms, grace_ms):
        return False
    return caught_up or previous.max_timestamp_ms >= 0


def finished(worker: Worker, stored: StoredPartition | None) -> tuple[Worker, StoredPartition]:
    """The previous shift is done; what was collected since is cut off with it and goes on under its number."""
    if worker.previous is None:
        raise ValueError("there is no shift to finish")
    kept = _kept(worker.previous, worker.cursor, stored, worker.previous.end_ms, certain=True)
    return replace(worker, previous=None), kept


def cut(worker: Worker, stored: StoredPartition | None) -> StoredPartition:
    """What was collected is published, no shift is finished: only the position moves."""
    if stored is None:
        return StoredPartition(worker.cursor)
    return StoredPartition(worker.cursor, stored.max_timestamp_ms, stored.shift, stored.start_ms, stored.end_ms)


def stopped(worker: Worker, stored: StoredPartition | None, now_ms: int, *, caught_up: bool) -> StoredPartition:
    """A graceful stop finishes both shifts; only the present one, which ends here, leaves its timestamp."""
    end_ms = min(worker.current.end_ms, now_ms)
    return _kept(worker.current, worker.cursor, stored, end_ms, certain=caught_up)


def _kept(
    shift: Shift, cursor: Position, stored: StoredPartition | None, end_ms: int, *, certain: bool
) -> StoredPartition:
    newest = shift.max_timestamp_ms
    if newest < 0 and certain:
        newest = end_ms
    # Neither timestamp goes back: an hour that was ready once stays ready.
    newest = max(newest, stored.max_timestamp_ms if stored else -1)
    end_ms = max(end_ms, stored.end_ms if stored else -1)
    return StoredPartition(cursor, newest, shift.number, shift.start_ms, end_ms)
