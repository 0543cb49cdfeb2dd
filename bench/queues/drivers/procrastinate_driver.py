"""Procrastinate: a task that does nothing. A worker that runs as many jobs at once as there are callers."""

from __future__ import annotations

import asyncio

from procrastinate import App, PsycopgConnector
from turns import Backlog, Given, given

_POLL_S = 0.05


async def _main(args: Given) -> None:
    connector = PsycopgConnector(conninfo=args.url, min_size=2, max_size=args.callers + 4)
    app, backlog = App(connector=connector), Backlog(args)

    @app.task(name="work")
    async def work(body: str) -> None:  # noqa: ARG001 - read from the database with the job
        backlog.done()

    async def add() -> None:
        if args.batch == 1:
            await work.defer_async(body=args.body)
        else:
            await work.batch_defer_async(*({"body": args.body} for _ in range(args.batch)))

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        worker = app.run_worker_async(
            concurrency=args.callers,
            install_signal_handlers=False,
            fetch_job_polling_interval=_POLL_S,
            delete_jobs="always",
        )
        await backlog.serve(add, worker)


asyncio.run(_main(given()))
