"""SAQ: a job that does nothing. It has no batches: the jobs of a batch are added concurrently."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from saq import Queue, Worker
from turns import Backlog, Given, given


async def _main(args: Given) -> None:
    backlog = Backlog(args)
    queue = Queue.from_url(args.url)

    async def work(_: Any, *, body: str) -> None:  # noqa: ARG001 - read from Redis with the job
        backlog.done()

    async def add() -> None:
        await asyncio.gather(*(queue.enqueue("work", body=args.body, ttl=-1) for _ in range(args.batch)))

    await queue.connect()
    worker = Worker(queue, functions=[("work", work)], concurrency=args.callers)
    await backlog.serve(add, worker.start())


uvloop.run(_main(given()))
