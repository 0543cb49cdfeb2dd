"""Many publishers of single events at once: group commit compared with a commit per event."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import strandline
from bench import data
from bench.peers import PlainTable
from bench.rows.append import NOW_MS, PARTITIONS
from bench.rows.publish import event_type
from bench.runner import Row, Scale, Side, Target

_THREADS = 64
_Around = Callable[[], AbstractContextManager[None]]


def _in_threads(pool: ThreadPoolExecutor, each: int, act: Callable[[bytes], object]) -> int:
    """Every thread handles `each` events. All threads start together."""
    items = data.values(_THREADS)
    start = threading.Barrier(_THREADS)

    def work(item: bytes) -> None:
        start.wait()
        for _ in range(each):
            act(item)

    list(pool.map(work, items))
    return each * _THREADS


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Threads started inside stay on that core. Waking a thread on another core costs more than the work."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


@contextmanager
def _sides(directory: Path, scale: Scale, around: _Around) -> Iterator[list[Side]]:
    each, alone = scale.of(400), scale.of(5000)
    with ExitStack() as stack:
        stack.enter_context(around())
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS))
        platform = stack.enter_context(strandline.open(directory / "ours"))
        platform.log.create(event_type())
        table = stack.enter_context(PlainTable(directory / "alone.db", PARTITIONS))
        shared = stack.enter_context(PlainTable(directory / "shared.db", PARTITIONS))
        lock = threading.Lock()
        values = data.values(1000)

        def ours() -> int:
            return _in_threads(pool, each, lambda item: platform.log.publish("orders", [item]).raise_for_failed())

        def loop() -> int:
            for number, value in enumerate(itertools.islice(itertools.cycle(values), alone)):
                table.insert(number % PARTITIONS, NOW_MS, value)
            return alone

        def commit(item: bytes) -> None:
            with lock:
                shared.insert(0, NOW_MS, item)

        def threads() -> int:
            return _in_threads(pool, scale.of(80), commit)

        yield [
            Side("ours", ours),
            Side("commit per event, one loop", loop),
            Side("commit per event, 64 threads", threads),
        ]


def _row(name: str, around: _Around, target: Target | None, cores: str) -> Row:
    return Row(
        name,
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": PARTITIONS,
            "batch": 1,
            "connections": f"{_THREADS} threads, in process",
            "cores": cores,
            "warm-up": "1 round",
            "schema": f"{len(data.SCHEMA['properties'])} properties",
        },
        lambda directory, scale: _sides(directory, scale, around),
        target,
    )


ROWS = [
    _row("64 publishers of single events", nullcontext, Target(ratio=5), "all"),
    _row("64 publishers of single events, on one core", _on_one_core, None, "one, for all sides"),
]
