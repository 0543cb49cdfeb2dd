"""Appends that are kept for reads that follow closely."""

from __future__ import annotations

from strandline.journal.model import Append, LoggedAction
from strandline.journal.recent import RecentAppends
from strandline.log.cursors import Position


def append(offset, size):
    return LoggedAction("a", Position(1, offset), 5, Append(offset + 1, offset + 1), b"x" * size)


def test_the_oldest_appends_are_dropped_when_there_are_too_many_bytes():
    recent = RecentAppends(limit=4_000)
    for offset in range(5):
        recent.put("t", 0, append(offset, 600))
        recent.put("t", 0, append(offset, 600))
    kept = [offset for offset in range(5) if recent.get("t", 0, Position(1, offset))]
    assert kept == [2, 3, 4]
    recent.put("t", 0, append(9, 5_000))
    assert recent.get("t", 0, Position(1, 9)) is None


def test_appends_are_kept_by_topic_partition_and_cursor():
    recent = RecentAppends()
    recent.put("t", 0, append(1, 1))
    assert recent.get("t", 0, Position(1, 1)) == append(1, 1)
    assert recent.get("u", 0, Position(1, 1)) is None
    assert recent.get("t", 1, Position(1, 1)) is None
    assert recent.get("t", 0, Position(2, 1)) is None
