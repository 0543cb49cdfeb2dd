"""What the Python drivers share. They run without the packages of Strandline."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Given:
    """The arguments of a driver."""

    url: str
    callers: int
    batch: int
    body: str


def given() -> Given:
    url, callers, batch, body = sys.argv[1:]
    return Given(url, int(callers), int(batch), body)


class Caller(Protocol):
    """A client with a connection of its own."""

    def cycle(self) -> int:
        """Create, lease and delete a batch; returns how many were deleted."""


def serve_threads(callers: list[Caller]) -> None:
    """For clients that block: a thread for each caller."""
    pool = ThreadPoolExecutor(len(callers))
    print("ready", flush=True)
    for line in sys.stdin:
        start = threading.Barrier(len(callers))

        def work(caller: Caller, seconds: float = float(line), start: threading.Barrier = start) -> int:
            start.wait()
            deadline, done = time.monotonic() + seconds, 0
            while time.monotonic() < deadline:
                done += caller.cycle()
            return done

        print(sum(pool.map(work, callers)), flush=True)


class Backlog:
    """For job frameworks: producers add jobs while a worker runs them. A round ends when all jobs have run.

    Producers wait while enough jobs for the worker are there. Otherwise a round would end long after its time.
    """

    def __init__(self, args: Given) -> None:
        self._args = args
        self._most = 4 * max(args.callers, args.batch)
        self._added = self._done = 0
        self._changed = asyncio.Event()

    def done(self) -> None:
        """Called by every job."""
        self._done += 1
        self._changed.set()

    async def serve(self, add: Callable[[], Awaitable[object]], worker: Coroutine[Any, Any, object]) -> None:
        """`add` adds a batch of jobs, and `worker` runs jobs until it is cancelled."""
        running = asyncio.create_task(worker)
        running.add_done_callback(_fail)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            before, deadline = self._done, time.monotonic() + float(line)
            await asyncio.gather(*(self._produce(add, deadline) for _ in range(self._args.callers)))
            await self._until_left(0)
            print(self._done - before, flush=True)

    async def _produce(self, add: Callable[[], Awaitable[object]], deadline: float) -> None:
        while time.monotonic() < deadline:
            await self._until_left(self._most)
            self._added += self._args.batch
            await add()

    async def _until_left(self, most: int) -> None:
        while self._added - self._done > most:
            self._changed.clear()
            await self._changed.wait()


def _fail(worker: asyncio.Task[object]) -> None:
    """Without a worker, a round would never end."""
    if not worker.cancelled():
        traceback.print_exception(worker.exception())
        os._exit(1)
