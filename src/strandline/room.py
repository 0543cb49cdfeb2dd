"""The interface of a room to the process that opens it, and opening and closing several rooms."""

from __future__ import annotations

import bisect
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar


@dataclass(frozen=True)
class Chore:
    """Work that every node repeats. Several nodes may do it at the same time. A failed run is retried."""

    name: str
    interval_ms: int
    run: Callable[[], object]


@dataclass(frozen=True)
class CounterMetric:
    """A Prometheus counter with one label."""

    name: str
    help: str
    label: str


@dataclass(frozen=True)
class GaugeMetric:
    """A Prometheus gauge with one label."""

    name: str
    help: str
    label: str


@dataclass(frozen=True)
class HistogramMetric:
    """A Prometheus histogram of seconds with one label."""

    name: str
    help: str
    label: str


class Durations:
    """How many durations were at most as long as each limit, in seconds. Thread-safe and cheap."""

    LIMITS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(self.LIMITS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect.bisect_left(self.LIMITS, seconds)] += 1
            self._sum += seconds

    def read(self) -> tuple[list[int], float]:
        """The number of durations up to each limit, the number of all, and their sum."""
        with self._lock:
            return [*itertools.accumulate(self._counts)], self._sum


#: The value of each counter for each value of its label.
CounterValues = Mapping[CounterMetric, Mapping[str, int]]
#: The value of each gauge for each value of its label.
GaugeValues = Mapping[GaugeMetric, Mapping[str, float]]
#: The durations of each histogram for each value of its label.
HistogramValues = Mapping[HistogramMetric, Mapping[str, Durations]]


class Room(ABC):
    """A room in the process that holds its data. The methods for its users are in the room's own `room.py`."""

    def start(self) -> None:  # noqa: B027 - most rooms have nothing to prepare
        """Prepare for requests, so that the first one is not slow. A server calls this before it listens."""

    @abstractmethod
    def check_ready(self) -> None:
        """Return if the room can serve requests; Unavailable otherwise."""

    def chores(self) -> Sequence[Chore]:
        """Work that a server repeats in threads while it runs."""
        return ()

    def counts(self) -> CounterValues:
        """A snapshot of the counters since the room was opened. Never blocks."""
        return {}

    def gauges(self) -> GaugeValues:
        """Values as they are now, or as they were last measured. Never blocks."""
        return {}

    def histograms(self) -> HistogramValues:
        """Durations since the room was opened. Never blocks."""
        return {}

    def give_up(self) -> None:  # noqa: B027 - most rooms start every call at once
        """Refuse the calls that were not started yet, without blocking. A server calls this before it ends."""

    @abstractmethod
    def close(self) -> None:
        """Finish the calls that were started and release files, connections and threads."""


class Closable(Protocol):
    def close(self) -> None: ...


_Opened = TypeVar("_Opened")
_Kind = TypeVar("_Kind", bound=Closable)


class room(cached_property[_Opened]):  # noqa: N801 - used as a decorator
    """Registers a room: the method opens it, and its name is the room's name."""


class Rooms(Generic[_Kind]):
    """Rooms that are opened in the order of their declaration and closed in reverse; use as a context manager."""

    def __init__(self) -> None:
        self.rooms: dict[str, _Kind] = {}
        declared = [pair for kind in reversed(type(self).__mro__) for pair in vars(kind).items()]
        try:
            for name in (name for name, value in declared if isinstance(value, room)):
                self.rooms[name] = getattr(self, name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with ExitStack() as closing:  # closes all rooms even if one of them fails
            for opened in self.rooms.values():
                closing.callback(opened.close)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.rooms)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
