"""What many waiting messages cost: leases of due messages, counts and histograms."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import databases, schedules
from bench.databases import Database
from bench.runner import Row, Scale, Side, Target
from bench.schedules import CONSUMER, LEASE_MS
from strandline.schedule import Lease, ScheduleMessages, raise_for_failed

_WAITING = (1_000_000, 100_000, 1_000)
_DUE = 10_000
_BATCH = 100
_FILLED_AT_ONCE = 1_000
_FILLERS = 4
_ASKED = 20
_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
_YEAR_MS = 365 * _DAY_MS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _filled(directory: Path, store: Database, waiting: int, stack: ExitStack) -> ScheduleMessages:
    """A schedule in a database of its own, with messages that are due within a year, but not in this hour."""
    messages = stack.enter_context(schedules.embedded(store.prepare(directory / str(waiting), "schedule")))
    first_ms = _now_ms() + _HOUR_MS

    def fill(part: int) -> None:
        dice = random.Random(part)
        new = schedules.new(
            min(_FILLED_AT_ONCE, waiting - part), lambda: first_ms + dice.randrange(_YEAR_MS - _DAY_MS)
        )
        raise_for_failed(messages.create(new))

    with ThreadPoolExecutor(_FILLERS) as pool:
        for _ in pool.map(fill, range(0, waiting, _FILLED_AT_ONCE)):
            pass
    return messages


# -- leases


def _leasing(name: str, messages: ScheduleMessages, due: int, store: Database) -> Side:
    held: list[Lease] = []

    def prepare() -> None:
        while held:
            raise_for_failed(messages.delete(schedules.acts(held[-_FILLED_AT_ONCE:])))
            del held[-_FILLED_AT_ONCE:]
        for start in range(0, due, _FILLED_AT_ONCE):
            raise_for_failed(messages.create(schedules.new(min(_FILLED_AT_ONCE, due - start))))

    def run() -> int:
        while len(held) < due:
            held.extend(messages.pull(CONSUMER, LEASE_MS, _BATCH))
        return len(held)

    return Side(name, run, store.own_cpu, prepare)


@contextmanager
def _lease_sides(directory: Path, scale: Scale, engine: str) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        yield [
            _leasing(_beside(waiting), _filled(directory, store, scale.of(waiting), stack), scale.of(_DUE), store)
            for waiting in _WAITING
        ]


def _beside(waiting: int) -> str:
    return f"{waiting:,} waiting"


# -- counts


def _asking(name: str, messages: ScheduleMessages, step_ms: int | None) -> Side:
    dice = random.Random(3)

    def run() -> list[float]:
        return [_milliseconds(messages, _now_ms() + dice.randrange(_HOUR_MS), step_ms) for _ in range(_ASKED)]

    return Side(name, run)


def _milliseconds(messages: ScheduleMessages, from_ms: int, step_ms: int | None) -> float:
    begin = time.perf_counter()
    messages.counts(from_ms, from_ms + _YEAR_MS, step_ms)
    return (time.perf_counter() - begin) * 1000


@contextmanager
def _count_sides(directory: Path, scale: Scale, engine: str) -> Iterator[list[Side]]:
    steps = {"counts": None, "days": _DAY_MS, "hours": _HOUR_MS}
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        filled = {
            waiting: _filled(directory, store, scale.of(waiting), stack) for waiting in (_WAITING[0], _WAITING[-1])
        }
        yield [
            _asking(f"{name}, {_beside(waiting)}", messages, step_ms)
            for waiting, messages in filled.items()
            for name, step_ms in steps.items()
        ]


def _parameters(**more: object) -> dict[str, object]:
    return {
        "body bytes": len(schedules.body()),
        "callers": "1 thread, in process",
        "waiting": "each number in a database of its own, at random moments of a year",
        "warm-up": "1 round",
        **more,
    }


def _lease_row(engine: str) -> Row:
    return Row(
        f"schedule, leases beside waiting messages, {engine}",
        _parameters(batch=_BATCH, due=f"{_DUE} a round, created before it"),
        lambda directory, scale: _lease_sides(directory, scale, engine),
        Target(ratios={_beside(waiting): 0.8 for waiting in _WAITING[1:]}),
    )


def _count_row(engine: str) -> Row:
    return Row(
        f"schedule, counts and histograms of a year, {engine}",
        _parameters(calls=f"{_ASKED} a round; days: 365 steps, hours: 8,760 steps"),
        lambda directory, scale: _count_sides(directory, scale, engine),
        Target(p99_ms=50),
    )


ROWS = [*map(_lease_row, databases.ENGINES), *map(_count_row, databases.ENGINES)]
