"""When a closed timeline's time is over, and who has not read it by then: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.clock import parse_rfc3339
from strandline.log.cursors import Position
from strandline.log.model import Timeline


def removable(timelines: Sequence[Timeline], retention_ms: int, now_ms: int) -> list[Timeline]:
    """The timelines that may be removed now, oldest first: closed for at least as long as a record is kept.

    Records are no younger than the end of their timeline, so that all of them have expired by then. A timeline
    never goes before an older one, whatever the clocks of those who closed them said.
    """
    found = []
    for timeline in timelines:
        if timeline.cleaned_up_at is not None:
            continue
        if timeline.switched_at is None or parse_rfc3339(timeline.switched_at) + retention_ms > now_ms:
            break
        found.append(timeline)
    return found


def unread(timeline: Timeline, cursors: Mapping[int, Position]) -> int:
    """How many events of a closed timeline come after the cursors of its partitions.

    A partition without a cursor counts as read: its reader has not begun, or began after it.
    """
    ends = timeline.latest_position or {}
    return sum(_after(position, timeline.order, ends.get(str(p), -1)) for p, position in cursors.items())


def _after(position: Position, order: int, last: int) -> int:
    if position.order != order:
        return last + 1 if position.order < order else 0
    return max(last - position.offset, 0)
