"""Measures a row: its sides take turns, round by round. The figure is the median, or a percentile of all waits."""

from __future__ import annotations

import math
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

#: The result of a round: the number of events or, for a row that measures waits, every wait in milliseconds.
Work = int | Sequence[float]


@dataclass(frozen=True)
class Scale:
    """The share of a row's work that one round does."""

    share: float

    def of(self, count: int) -> int:
        return max(1, int(count * self.share))


@dataclass(frozen=True)
class Side:
    """One way to do the work of a row. `run` does one round. All sides of a row count the same thing.

    `cpu` is the processor time, in seconds, that the process under test has used so far. `prepare` runs before
    each round and is not measured. `more` are other facts for the file, after the last round. `missing` says why a
    peer cannot be measured on this machine.
    """

    name: str
    run: Callable[[], Work]
    cpu: Callable[[], float] = time.process_time
    prepare: Callable[[], object] = lambda: None
    more: Callable[[], Mapping[str, Any]] = dict
    missing: str = ""


class Measured(ABC):
    """All rounds of one side."""

    @property
    @abstractmethod
    def figure(self) -> float:
        """The number that is compared."""

    @abstractmethod
    def __str__(self) -> str:
        """For the table."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """For the file."""

    @abstractmethod
    def times_as_good(self, peer: Self) -> float: ...


@dataclass(frozen=True)
class Rates(Measured):
    """Events per second of every round, and the processor time that the process under test spent per event."""

    rounds: Sequence[float]
    cpu_us: float
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def figure(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        return f"{self.figure:,.0f}/s"

    def facts(self) -> dict[str, Any]:
        return {
            "events_per_second": round(self.figure),
            "rounds": [round(rate) for rate in self.rounds],
            "cpu_us_per_event": round(self.cpu_us, 2),
            **self.more,
        }

    def times_as_good(self, peer: Self) -> float:
        """The median of the ratios of the rounds: other load was nearly the same for both sides of a round."""
        return statistics.median(ours / theirs for ours, theirs in zip(self.rounds, peer.rounds, strict=True))


@dataclass(frozen=True)
class Waits(Measured):
    """Every wait of all rounds, in milliseconds; shorter is better."""

    milliseconds: Sequence[float]

    @property
    def figure(self) -> float:
        return self._percentile(99)

    def _percentile(self, percent: int) -> float:
        found = sorted(self.milliseconds)
        return found[min(len(found) * percent // 100, len(found) - 1)]

    def __str__(self) -> str:
        shown = {"p50": self._percentile(50), "p99": self.figure, "max": max(self.milliseconds)}
        # Reads of memory take less than a millisecond.
        return "\n".join(f"{name} {ms:.{2 if ms < 10 else 0}f} ms" for name, ms in shown.items())

    def facts(self) -> dict[str, Any]:
        return {
            "waits": len(self.milliseconds),
            "p50_ms": round(self._percentile(50), 3),
            "p99_ms": round(self.figure, 3),
            "max_ms": round(max(self.milliseconds), 3),
        }

    def times_as_good(self, peer: Self) -> float:
        return peer.figure / self.figure


@dataclass(frozen=True)
class Missing(Measured):
    """A peer that this machine cannot run, and why."""

    reason: str

    @property
    def figure(self) -> float:
        return math.nan

    def __str__(self) -> str:
        return f"not measured: {self.reason}"

    def facts(self) -> dict[str, Any]:
        return {"not_measured": self.reason}

    def times_as_good(self, peer: Self) -> float:  # noqa: ARG002 - there is nothing to compare
        return math.nan


@dataclass(frozen=True)
class Target:
    """What a row must reach: a rate, a 99th percentile of its waits, a multiple of its first peer.

    `ratios` are multiples of peers by name, for rows with several. `cpu_us` is the most processor time per event,
    in addition to one of the others.
    """

    rate: float | None = None
    p99_ms: float | None = None
    ratio: float | None = None
    cpu_us: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = {
            "≥ {:,.0f}/s": self.rate,
            "p99 ≤ {:g} ms": self.p99_ms,
            "≥ {:g}x": self.ratio,
            "≤ {:g} µs CPU": self.cpu_us,
        }
        named = [f"≥ {ratio:g}x {peer}" for peer, ratio in self.ratios.items()]
        return ", ".join([*(text.format(value) for text, value in parts.items() if value is not None), *named])

    def met(self, ours: Measured, ratios: Mapping[str, float]) -> bool:
        """`ratios` are those of all peers that were measured, in order. A peer that was not cannot be led."""
        first = next(iter(ratios.values()), 0.0)
        return (
            (self.rate is None or ours.figure >= self.rate)
            and (self.p99_ms is None or ours.figure <= self.p99_ms)
            and (self.ratio is None or first >= self.ratio)
            and all(ratios.get(peer, 0.0) >= ratio for peer, ratio in self.ratios.items())
            and (self.cpu_us is None or (isinstance(ours, Rates) and ours.cpu_us <= self.cpu_us))
        )


@dataclass(frozen=True)
class Row:
    """One line of the table. The first side is ours; a target ratio is relative to the second."""

    name: str
    parameters: Mapping[str, Any]
    sides: Callable[[Path, Scale], AbstractContextManager[Sequence[Side]]]
    target: Target | None = None


@dataclass(frozen=True)
class _Round:
    work: Work
    wall: float
    cpu: float


def measure(row: Row, directory: Path, scale: Scale, rounds: int) -> dict[str, Measured]:
    """The sides take turns, so that other load affects all of them. The first round is a warm-up."""
    with row.sides(directory, scale) as sides:
        done: dict[str, list[_Round]] = {side.name: [] for side in sides}
        for number in range(rounds + 1):
            for side in sides:
                if not side.missing:
                    found = _timed(side)
                    done[side.name] += [found] if number else []
        return {side.name: _measured(side, done[side.name]) for side in sides}


def _timed(side: Side) -> _Round:
    side.prepare()
    os.sync()  # this side must not wait for writes of the side before
    cpu, wall = side.cpu(), time.perf_counter()
    work = side.run()
    return _Round(work, time.perf_counter() - wall, side.cpu() - cpu)


def _measured(side: Side, rounds: Sequence[_Round]) -> Measured:
    if side.missing:
        return Missing(side.missing)
    counts = [(found.work, found) for found in rounds if isinstance(found.work, int)]
    if not counts:
        return Waits([wait for found in rounds if not isinstance(found.work, int) for wait in found.work])
    cpu_us = statistics.median(found.cpu / count * 1e6 for count, found in counts)
    return Rates([count / found.wall for count, found in counts], cpu_us, side.more())
