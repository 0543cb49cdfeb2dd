"""Create, lease and delete messages as fast as possible: the schedule beside job queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench import databases, schedules
from bench.databases import Database
from bench.machine import cpu_seconds
from bench.queues import fetch
from bench.queues.driver import Driver, Load
from bench.queues.servers import Beanstalkd, Redis
from bench.runner import Row, Scale, Side, Target
from bench.schedules import CONSUMER, LEASE_MS
from strandline.schedule import ScheduleMessages
from strandline.schedule.room import LeaseFeed

_SECONDS = 1.0
_WAIT_MS = 1_000
#: Does one cycle with a batch; returns how many messages were deleted.
_Cycle = Callable[[], int]

_BEANSTALKD = "beanstalkd -b -f0"
_PGMQ = "pgmq"
_OWN = "3: create, lease, delete"
_SYNCS = {
    "SQLite": (
        f"ours {_OWN}; beanstalkd -f0 2: put, delete (its reserve is not durable); Redis always: one for each "
        "turn of its event loop with changes; beanstalkd -b: one in 50 ms, Redis everysec: one a second, both "
        "after the answer; beanstalkd alone: none"
    ),
    "PostgreSQL": f"ours {_OWN}; pgmq the same; others 3 or more; synchronous_commit is on for all",
}


# -- ours


def _in_threads(pool: ThreadPoolExecutor, seconds: float, cycles: Sequence[_Cycle]) -> int:
    """All callers begin together, and each goes on until the time is over."""
    start = threading.Barrier(len(cycles))

    def work(cycle: _Cycle) -> int:
        start.wait()
        deadline, done = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            done += cycle()
        return done

    return sum(pool.map(work, cycles))


def _by_pull(messages: ScheduleMessages, batch: int) -> _Cycle:
    def cycle() -> int:
        messages.create(schedules.new(batch))
        return _deleted(messages, messages.pull(CONSUMER, LEASE_MS, batch, _WAIT_MS))

    return cycle


def _by_push(messages: ScheduleMessages, feed: LeaseFeed, batch: int) -> _Cycle:
    def cycle() -> int:
        messages.create(schedules.new(batch))
        first = feed.next(_WAIT_MS / 1000)
        rest = (feed.next(0) for _ in range(batch - 1))
        return _deleted(feed, [lease for lease in (first, *rest) if lease is not None])

    return cycle


def _deleted(port: ScheduleMessages | LeaseFeed, leases: Sequence[Any]) -> int:
    answers = port.delete(schedules.acts(leases)) if leases else []
    return sum(answer.status == "ok" for answer in answers)


def _ours(directory: Path, store: Database, load: Load, stack: ExitStack) -> list[Side]:
    pool = stack.enter_context(ThreadPoolExecutor(load.callers))
    local = stack.enter_context(schedules.embedded(store.prepare(directory / "ours", "schedule")))
    pulled = stack.enter_context(schedules.served(store.prepare(directory / "http", "schedule"), load.callers))
    pushed = stack.enter_context(
        schedules.served(store.prepare(directory / "websocket", "schedule"), load.callers)
    )
    feed = pushed.clients[0].subscribe(CONSUMER, LEASE_MS, load.callers * load.batch)
    stack.callback(feed.close)

    def side(name: str, cycles: Sequence[_Cycle], *pids: int) -> Side:
        def run() -> int:
            return _in_threads(pool, load.seconds, cycles)

        return Side(name, run, lambda: time.process_time() + store.cpu(*pids))

    by_http = [_by_pull(client, load.batch) for client in pulled.clients]
    by_push = [_by_push(client, feed, load.batch) for client in pushed.clients]
    return [
        side("ours", [_by_pull(local, load.batch)] * load.callers),
        side("ours, over HTTP", by_http, pulled.server.pid),
        side("ours, over WebSocket", by_push, pushed.server.pid),
    ]


# -- peers


def _peer(name: str, make: Callable[[], Side]) -> Side:
    """A peer that cannot be fetched here is reported, and the others are measured."""
    try:
        return make()
    except fetch.CannotFetch as error:
        return Side(name, lambda: 0, missing=str(error))


def _beside_sqlite(directory: Path, _: Database, load: Load, stack: ExitStack) -> list[Side]:
    """Servers that keep their jobs themselves."""
    log = directory / "drivers.log"

    def side(name: str, program: str, start: Callable[[Path], Any]) -> Side:
        def make() -> Side:
            server = stack.enter_context(start(directory / name.replace(" ", "_")))
            driver = stack.enter_context(Driver(program, server.url, load, log))
            return Side(name, driver.run, lambda: cpu_seconds(driver.pid, server.pid))

        return _peer(name, make)

    def in_redis(how: str) -> list[Side]:
        drivers = {"SAQ": "saq_driver.py", "BullMQ": "bullmq_driver.mjs"}
        return [side(f"{name}, {how}", file, lambda at: Redis(at, how)) for name, file in drivers.items()]

    return [
        side(_BEANSTALKD, "beanstalkd_driver.py", lambda at: Beanstalkd(at, log=True, sync_ms=0)),
        *in_redis("always"),
        side("beanstalkd -b", "beanstalkd_driver.py", lambda at: Beanstalkd(at, log=True)),
        side("beanstalkd", "beanstalkd_driver.py", lambda at: Beanstalkd(at, log=False)),
        *in_redis("everysec"),
    ]


def _beside_postgres(directory: Path, store: Database, load: Load, stack: ExitStack) -> list[Side]:
    """Libraries that keep their jobs in the same PostgreSQL server."""
    drivers = {
        _PGMQ: "pgmq_driver.py",
        "Procrastinate": "procrastinate_driver.py",
        "PgQueuer": "pgqueuer_driver.py",
        "graphile-worker": "graphile_driver.mjs",
    }

    def side(name: str, program: str) -> Side:
        def make() -> Side:
            database = store.server.new_database()
            if name == _PGMQ:
                store.server.execute(fetch.pgmq_sql(), database)
                store.server.execute("SELECT pgmq.create('bench')", database)
            driver = stack.enter_context(
                Driver(program, store.server.url(database), load, directory / "drivers.log")
            )
            return Side(name, driver.run, lambda: store.cpu(driver.pid))

        return _peer(name, make)

    return [side(name, program) for name, program in drivers.items()]


_PEERS = {"SQLite": _beside_sqlite, "PostgreSQL": _beside_postgres}


@contextmanager
def _sides(directory: Path, scale: Scale, engine: str, callers: int, batch: int) -> Iterator[list[Side]]:
    load = Load(callers, batch, max(0.2, _SECONDS * scale.share), schedules.body())
    with ExitStack() as stack:
        store = stack.enter_context(databases.database(engine, directory))
        yield [*_ours(directory, store, load, stack), *_PEERS[engine](directory, store, load, stack)]


def _target(engine: str, callers: int, batch: int) -> Target | None:
    """Relative to the peers that are as durable. Half of a peer that promises less: see the parameters."""
    if engine == "SQLite":
        others = {"SAQ, always": 1.0, "BullMQ, always": 1.0} if callers > 1 else {}
        return Target(ratios={_BEANSTALKD: 1.0 if callers > 1 else 0.5, **others})
    others = {"Procrastinate": 1.0, "PgQueuer": 1.0, "graphile-worker": 1.0} if callers > 1 else {}
    return Target(ratios={_PGMQ: 1.0 if batch == 1 else 0.5, **others})


def _row(engine: str, callers: int, batch: int) -> Row:
    return Row(
        f"schedule, create-lease-delete, {engine}, {callers} caller{'s' if callers > 1 else ''}, {batch} a batch",
        {
            "body bytes": len(schedules.body()),
            "batch": batch,
            "callers": f"{callers} threads; of a framework: {callers} producers and as many jobs at once",
            "syncs of a cycle": _SYNCS[engine],
            "warm-up": "1 round",
            "round": f"{_SECONDS:g} s, and until the batches that were begun are deleted",
        },
        lambda directory, scale: _sides(directory, scale, engine, callers, batch),
        _target(engine, callers, batch),
    )


ROWS = [
    _row(engine, callers, batch) for engine in databases.ENGINES for batch in (1, 100) for callers in (1, 16, 64)
]
