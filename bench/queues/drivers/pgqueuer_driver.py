"""PgQueuer with asyncpg: an entrypoint that does nothing, and jobs in batches where the row has batches."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from turns import Backlog, Given, given

_POLL = timedelta(milliseconds=50)


async def _main(args: Given) -> None:
    backlog = Backlog(args)
    producers = AsyncpgPoolDriver(await asyncpg.create_pool(args.url, min_size=1, max_size=args.callers))
    consumers = AsyncpgPoolDriver(await asyncpg.create_pool(args.url, min_size=2, max_size=args.callers + 4))
    queries, manager = Queries(producers), QueueManager(Queries(consumers))
    await queries.install()
    body = args.body.encode()

    @manager.entrypoint("work")
    async def work(_: object) -> None:
        backlog.done()

    async def add() -> None:
        count = args.batch
        if count == 1:
            await queries.enqueue("work", body)
        else:
            await queries.enqueue(["work"] * count, [body] * count, [0] * count)

    size = max(args.batch, args.callers)
    await backlog.serve(add, manager.run(_POLL, batch_size=size))


uvloop.run(_main(given()))
