"""Appends with their values that this node wrote or read a short time ago.

Most reads of events that are not replicated follow closely on their append. A record never changes, so an entry is
never out of date.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from strandline.journal.model import LoggedAction
from strandline.log.cursors import Position

_BYTES = 8 << 20
# An estimate of what an entry takes beside its value.
_ENTRY_BYTES = 500

_Place = tuple[str, int, Position]


class RecentAppends:
    """Thread-safe, and bounded in bytes: the oldest entries are dropped."""

    def __init__(self, limit: int = _BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._size = 0
        self._kept: OrderedDict[_Place, LoggedAction] = OrderedDict()

    def put(self, topic: str, partition: int, logged: LoggedAction) -> None:
        place, size = (topic, partition, logged.cursor), _size(logged)
        with self._lock:
            if place not in self._kept:
                self._kept[place] = logged
                self._size += size
            while self._size > self._limit:
                self._size -= _size(self._kept.popitem(last=False)[1])

    def get(self, topic: str, partition: int, cursor: Position) -> LoggedAction | None:
        return self._kept.get((topic, partition, cursor))


def _size(logged: LoggedAction) -> int:
    return len(logged.value or b"") + _ENTRY_BYTES
