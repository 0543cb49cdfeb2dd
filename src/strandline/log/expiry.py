"""Which closed timelines have expired, and which of their events are unread or replicated: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.clock import parse_rfc3339
from strandline.log.cursors import Position
from strandline.log.model import Timeline


def removable(timelines: Sequence[Timeline], retention_ms: int, now_ms: int) -> list[Timeline]:
    """The timelines that may be removed now, oldest first: those closed for at least the retention time.

    A record is never newer than the end of its timeline, so all records of these timelines have expired. A
    timeline is never removed before an older one, even if the clocks of the nodes that closed them differ.
    """
    found = []
    for timeline in timelines:
        if timeline.cleaned_up_at is not None:
            continue
        if timeline.closed_at is None or parse_rfc3339(timeline.closed_at) + retention_ms > now_ms:
            break
        found.append(timeline)
    return found


def unread(timeline: Timeline, cursors: Mapping[int, Position]) -> int:
    """The number of events of a closed timeline after the cursors of its partitions.

    A partition without a cursor counts as read: its reader has not started, or started after this timeline.
    """
    ends = timeline.latest_position or {}
    return sum(_after(position, timeline.order, ends.get(str(p), -1)) for p, position in cursors.items())


def replicated_ends(timeline: Timeline, replicated: Mapping[int, Position]) -> dict[int, int]:
    """The last replicated offset of every partition of the timeline that has one."""
    found = {}
    for partition, position in replicated.items():
        ends = timeline.latest_position or {}
        last = position.offset if position.order == timeline.order else ends.get(str(partition), -1)
        if position.order >= timeline.order and last >= 0:
            found[partition] = last
    return found


def is_replicated(timeline: Timeline, replicated: Mapping[int, Position]) -> bool:
    """Whether all records of a closed timeline are replicated. Those of a partition without a position are not."""
    found = replicated_ends(timeline, replicated)
    return all(found.get(int(p), -1) >= last for p, last in (timeline.latest_position or {}).items())


def _after(position: Position, order: int, last: int) -> int:
    if position.order != order:
        return last + 1 if position.order < order else 0
    return max(last - position.offset, 0)
