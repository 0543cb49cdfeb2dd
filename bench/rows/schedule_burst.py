"""100,000 messages that are due in the same second: how long it takes until all are delivered and deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench import databases, schedules
from bench.intake import Intake, by_push
from bench.runner import Row, Scale, Side
from bench.schedules import LEASE_MS
from strandline.schedule import raise_for_failed

_COUNT = 100_000
_CONSUMERS = 2
_CREDIT = 1_000
_CREATED_AT_ONCE = 1_000
_CREATORS = 2
_LEAD_MS = 25_000
_SAMPLE_S = 0.02
_MEGABYTE = 1_000_000


class Burst:
    """One round: creates the messages, waits until they are due, and receives them."""

    def __init__(self, node: schedules.Served, count: int) -> None:
        self._node = node
        self._count = count
        self._ids: set[str] = set()
        self._process = psutil.Process(node.server.pid)
        self._before = self._peak = 0
        self._consumers: list[Any] = []

    def open(self, stack: ExitStack) -> None:
        for number, client in enumerate(self._node.clients[:_CONSUMERS]):
            feed = client.subscribe(f"consumer-{number}", LEASE_MS, _CREDIT)
            stack.callback(feed.close)
            self._consumers.append(by_push(feed))

    def prepare(self) -> None:
        due_ms = time.time_ns() // 1_000_000 + max(3_000, _LEAD_MS * self._count // _COUNT)
        new = schedules.new(self._count, iter(due_ms + number % 1_000 for number in range(self._count)).__next__)
        self._ids = {message.id for message in new}
        parts = [new[start : start + _CREATED_AT_ONCE] for start in range(0, len(new), _CREATED_AT_ONCE)]
        with ThreadPoolExecutor(_CREATORS) as pool:
            for answers in pool.map(self._node.clients[0].create, parts):
                raise_for_failed(answers)
        left_s = due_ms / 1000 - time.time()
        if left_s < 0:
            raise RuntimeError("creating the messages took too long: some were due before the round")
        time.sleep(left_s)
        self._before = self._process.memory_info().rss

    def run(self) -> int:
        with self._watched():
            arrivals = Intake(self._consumers, self._count).run()
        if len(arrivals) != self._count or {one.id for one in arrivals} != self._ids:
            raise RuntimeError(f"{self._count} messages were created, and {len(arrivals)} came: lost or doubled")
        return self._count

    @contextmanager
    def _watched(self) -> Iterator[None]:
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(_SAMPLE_S):
                self._peak = max(self._peak, self._process.memory_info().rss)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def facts(self) -> dict[str, Any]:
        return {
            "messages": self._count,
            "lost_or_doubled": 0,
            "server_memory_mb": {
                "before_the_last": round(self._before / _MEGABYTE),
                "peak_of_all": round(self._peak / _MEGABYTE),
            },
        }


@contextmanager
def _sides(directory: Path, scale: Scale, engine: str) -> Iterator[list[Side]]:
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        node = stack.enter_context(schedules.served(store.prepare(directory / "ours", "schedule"), _CONSUMERS))
        burst = Burst(node, scale.of(_COUNT))
        burst.open(stack)
        yield [Side("ours", burst.run, lambda: store.cpu(node.server.pid), burst.prepare, burst.facts)]


ROWS = [
    Row(
        f"schedule, burst, {engine}",
        {
            "body bytes": len(schedules.body()),
            "due": f"{_COUNT} in the same second",
            "connections": f"{_CONSUMERS} push sessions with a credit of {_CREDIT}, deleted in batches",
            "warm-up": "1 round",
        },
        lambda directory, scale, engine=engine: _sides(directory, scale, engine),
    )
    for engine in databases.ENGINES
]
