"""Operation times: 64 bits, `ms · 2^20` plus a node and a counter."""

from __future__ import annotations

import secrets
import threading

from strandline.clock import Clock
from strandline.errors import Invalid
from strandline.feeds.model import MAX_TIME

_BITS = 20
_COUNTER_BITS = 10
_COUNTERS = 1 << _COUNTER_BITS
_NODES = 1 << (_BITS - _COUNTER_BITS)
_MAX_MS = MAX_TIME >> _BITS


def of_ms(ms: int) -> int:
    """The operation time of a given millisecond, always the same one; it is before those of all nodes."""
    if not 0 <= ms <= _MAX_MS:
        raise Invalid(f"an operation_ms must be 0 to {_MAX_MS}, not {ms}")
    return ms << _BITS


def last_of_ms(ms: int) -> int:
    """The last operation time of a millisecond. No node gives a later one in it."""
    return of_ms(ms) | ((1 << _BITS) - 1)


def to_ms(time: int) -> int:
    return time >> _BITS


def checked(time: int) -> int:
    if not 0 <= time <= MAX_TIME:
        raise Invalid(f"an operation_time must be 0 to {MAX_TIME}, not {time}")
    return time


class OperationClock:
    """Gives operation times that strictly rise, also when the clock of the machine is set back. Thread-safe.

    Two processes give the same time only if they happen to have the same node of 1024 and write in the same
    millisecond.
    """

    def __init__(self, clock: Clock, node: int | None = None) -> None:
        self._clock = clock
        self._node = (secrets.randbelow(_NODES) if node is None else node % _NODES) << _COUNTER_BITS
        self._lock = threading.Lock()
        #: Milliseconds and counter as one number.
        self._last = -1

    def next(self) -> int:
        with self._lock:
            # More operations than counters in a millisecond continue in the next one.
            self._last = max(self._clock.now_ms() << _COUNTER_BITS, self._last + 1)
            ms, counter = divmod(self._last, _COUNTERS)
            return ms << _BITS | self._node | counter
