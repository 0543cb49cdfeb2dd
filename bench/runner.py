"""How a row is measured: all sides take turns, every round; the median of the rounds counts."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Scale:
    """How much one round of a side does, as a share of what the row asks for."""

    share: float

    def of(self, count: int) -> int:
        return max(1, int(count * self.share))


@dataclass(frozen=True)
class Side:
    """One way of doing the work of a row; `run` does a round of it and says how many events it handled."""

    name: str
    run: Callable[[], int]


@dataclass(frozen=True)
class Target:
    """What a row must reach: a rate of its own, or a multiple of its first peer."""

    rate: float | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        return f"≥ {self.rate:,.0f}/s" if self.rate else f"≥ {self.ratio:g}x"

    def met(self, ours: float, peer: float | None) -> bool:
        if self.rate is not None:
            return ours >= self.rate
        return peer is not None and self.ratio is not None and ours >= self.ratio * peer


@dataclass(frozen=True)
class Row:
    """One line of the table. The first side is ours; the first after it is the peer of the ratio."""

    name: str
    parameters: Mapping[str, Any]
    sides: Callable[[Path, Scale], AbstractContextManager[Sequence[Side]]]
    target: Target | None = None


@dataclass(frozen=True)
class Measured:
    """Events per second of every round, and the processor time this process spent per event."""

    rates: Sequence[float]
    cpu_us: float

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def measure(row: Row, directory: Path, scale: Scale, rounds: int) -> dict[str, Measured]:
    """Sides in turn, so that what else the machine does hits all of them; the first round only warms up."""
    with row.sides(directory, scale) as sides:
        samples: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
        for number in range(rounds + 1):
            for side in sides:
                sample = _timed(side)
                if number:
                    samples[side.name].append(sample)
    return {
        name: Measured([rate for rate, _ in found], statistics.median(cpu for _, cpu in found))
        for name, found in samples.items()
    }


def _timed(side: Side) -> tuple[float, float]:
    os.sync()  # what the side before left to be written is not this one's to pay for
    cpu, wall = time.process_time(), time.perf_counter()
    count = side.run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return count / wall, cpu / count * 1e6
