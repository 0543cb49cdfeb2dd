"""The schedule under test: in this process or in a server, on SQLite or PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import strandline
from bench import data
from bench.services import Server
from strandline import Message
from strandline.schedule import Lease, NewMessage, Schedule, ScheduleMessages
from strandline.schedule.local import LocalSchedules
from strandline.schedule.model import LeaseAct

NAME = "bench"
CONSUMER = "bench"
#: The longest lease of a schedule, so that no lease expires while other sides have their turn.
LEASE_MS = 300_000
(_BODY,) = data.orders(1)


@contextmanager
def embedded(folder: Path) -> Iterator[ScheduleMessages]:
    """A new schedule in this process, with the upkeep that a server does."""
    with strandline.open(folder) as platform, _upkeep(platform.schedules):
        platform.schedules.create(Schedule(NAME))
        yield platform.schedule(NAME)


@contextmanager
def _upkeep(schedules: LocalSchedules) -> Iterator[None]:
    stop = threading.Event()

    def repeat(seconds: float, run: Callable[[], object]) -> None:
        while not stop.wait(seconds):
            run()

    threads = [
        threading.Thread(target=repeat, args=(one.interval_ms / 1000, one.run)) for one in schedules.chores()
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@dataclass(frozen=True)
class Served:
    """A schedule in a server. Every client has its own connections."""

    server: Server
    clients: Sequence[ScheduleMessages]


@contextmanager
def served(folder: Path, clients: int = 1) -> Iterator[Served]:
    with ExitStack() as stack:
        server = stack.enter_context(Server(folder, logs_level="warning"))
        connected = [stack.enter_context(strandline.connect(server.url, timeout=60)) for _ in range(clients)]
        connected[0].schedules.create(Schedule(NAME))
        yield Served(server, [one.schedule(NAME) for one in connected])


def new(count: int, moment_ms: Callable[[], int | None] = lambda: None) -> list[NewMessage]:
    """Messages that are due at the moments that `moment_ms` returns, or now."""
    return [Message(_BODY, at=moment_ms()) for _ in range(count)]


def acts(leases: Sequence[Lease]) -> list[LeaseAct]:
    return [LeaseAct(one.message.id, one.message.consumer or "", one.message.version) for one in leases]


def body() -> bytes:
    return data.values(1)[0]
