"""The rules for when an hour is complete. Pure functions.

Readiness is monotone: an hour of a term is never ready before the hour that precedes it. So it is enough to store
the newest flagged hour. Only hours that get data while they are in no term are tracked one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from strandline.archive.model import HOUR_MS, Barrier, ExpiredRange, ReadyRule, StoredPartition, Term, hour_of


@dataclass(frozen=True)
class PartitionStates:
    """The stored state of the `count` partitions that exist now; `read_ms` as in `Standing`."""

    count: int
    stored: Mapping[int, StoredPartition]
    read_ms: int


def due_hours(terms: Iterable[Term], flagged_ms: int, now_ms: int) -> list[int]:
    """Every configured hour after the newest flagged one, oldest first; never the current hour."""
    found: set[int] = set()
    for term in terms:
        first = max(term.from_ms, flagged_ms + HOUR_MS) if flagged_ms >= 0 else term.from_ms
        last = hour_of(now_ms) if term.to_ms is None else min(hour_of(now_ms), term.to_ms)
        found.update(range(first, last, HOUR_MS))
    return sorted(found)


def all_due(terms: Iterable[Term], flagged_ms: int, filled_ms: Iterable[int], now_ms: int) -> list[int]:
    """The due hours, and ended hours with data and without a flag (`filled_ms`), also before the newest flag."""
    ended = (hour_ms for hour_ms in filled_ms if hour_ms < hour_of(now_ms))
    return sorted({*due_hours(terms, flagged_ms, now_ms), *ended})


def uncovered(terms: Collection[Term], hours_ms: Iterable[int]) -> list[tuple[int, int]]:
    """The hours that no term covers, as spans of consecutive hours."""
    spans: list[tuple[int, int]] = []
    for hour_ms in sorted(hours_ms):
        if any(term.covers(hour_ms) for term in terms):
            continue
        if spans and spans[-1][1] == hour_ms:
            spans[-1] = (spans[-1][0], hour_ms + HOUR_MS)
        else:
            spans.append((hour_ms, hour_ms + HOUR_MS))
    return spans


def first_hour(now_ms: int, look_back_hours: int, made_ms: int, *retired_ms: int) -> int:
    """The first hour of a new term: the look-back, but not before the event type was created or last retired."""
    return max(hour_of(now_ms) - look_back_hours * HOUR_MS, hour_of(made_ms), *retired_ms)


def barrier_due(hour_ms: int, now_ms: int, grace_ms: int) -> bool:
    """Whether ends that are read at that time may be the hour's barrier."""
    return now_ms >= hour_ms + HOUR_MS + grace_ms


def blocked_by(hour_ms: int, states: PartitionStates, barrier: Barrier | None, rule: ReadyRule) -> str | None:
    """Why an hour that has ended is not ready; None if it is."""
    return _behind_in_time(hour_ms, states, rule) or (
        _behind_barrier(states, barrier) if rule == "barrier" else None
    )


def lacking(hour_ms: int, gaps: Iterable[ExpiredRange]) -> str | None:
    """Why an hour is held back that may lack records because of one of these gaps; None if none is about it."""
    records = sum(gap.records for gap in gaps if gap.from_ms <= hour_ms <= gap.to_ms)
    if not records:
        return None
    return (
        f"{records} events expired before they were archived; archive.on_gap = 'flag' flags the hour without them"
    )


def _behind_in_time(hour_ms: int, states: PartitionStates, rule: ReadyRule) -> str | None:
    for partition in range(states.count):
        stored = states.stored.get(partition)
        if stored is None:
            # The partition was created after `read_ms`, so only later hours wait for it.
            if hour_ms + HOUR_MS > states.read_ms:
                return f"partition {partition} has no stored position"
            continue
        stamp = stored.max_timestamp_ms
        if rule == "barrier":
            # A partition that receives only old events must not block forever.
            stamp = max(stamp, stored.end_ms)
        if not hour_ms < stamp:
            return f"partition {partition} has no event time past the start of the hour yet"
    return None


def _behind_barrier(states: PartitionStates, barrier: Barrier | None) -> str | None:
    if barrier is None:
        return "the barrier is not read yet"
    for partition, end in barrier.ends.items():
        stored = states.stored.get(partition)
        if stored is None or stored.position < end:
            return f"partition {partition} is not archived up to the barrier yet"
    return None
