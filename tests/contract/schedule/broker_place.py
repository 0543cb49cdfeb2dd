"""Nodes that deliver the messages of one database, and a listener for push sessions."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from strandline.clock import Clock, SystemClock
from strandline.platform import Platform
from strandline.schedule.local import LocalMessages
from strandline.schedule.model import Body, Lease, LeaseAct, ListQuery, Moment, NewMessage, OwnerAct, Schedule
from strandline.schedule.settings import ScheduleSettings
from strandline.settings import Settings

MINUTE = 60_000


class SetClock(SystemClock):
    """The machine's clock, which a test sets."""

    shift_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.shift_ms


class BrokerPlace:
    """All nodes have the schedule `s`. On SQLite they share a data directory, on PostgreSQL a server."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self.url = url
        self._closing = ExitStack()
        self._count = 0

    def node(self, clock: Clock | None = None, *, news: str = "notify") -> Platform:
        self._count += 1
        folder = self._folder / f"node-{self._count}" if self.url else self._folder
        settings = Settings(schedule=ScheduleSettings(url=self.url, news=news))
        platform = self._closing.enter_context(Platform(folder, settings, clock or SystemClock()))
        if self._count == 1:
            platform.schedules.create(Schedule("s"))
        return platform

    def messages(self) -> LocalMessages:
        """The schedule `s`, on a new node."""
        return self.node().schedule("s")

    def close(self) -> None:
        self._closing.close()


class Listener:
    """Keeps what a session gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.leases: list[Lease] = []
        self.is_fenced = False

    def leased(self, leases: list[Lease]) -> None:
        with self._lock:
            self.leases += leases

    def fenced(self) -> None:
        self.is_fenced = True


class Answer:
    """The outcome of a pull that holds no thread."""

    def __init__(self) -> None:
        self.found: list[object] = []

    def __call__(self, answer: object) -> None:
        self.found.append(answer)


def add(messages: LocalMessages, *ids: str, in_ms: int = -1, body: bytes = b"{}") -> None:
    """By default the messages are available at once, not from the next millisecond on."""
    items = [NewMessage(one, "shop", Body(body, is_json=True), Moment(in_ms, relative=True)) for one in ids]
    assert {answer.status for answer in messages.create(items)} == {"ok"}


def act(lease: Lease, in_ms: int = 0) -> LeaseAct:
    one = lease.message
    return LeaseAct(one.id, one.consumer or "", one.version, Moment(in_ms, relative=True))


def own(message_id: str) -> OwnerAct:
    return OwnerAct(message_id, "shop")


def names(leases: list[Lease]) -> list[str]:
    return [lease.message.id for lease in leases]


def held(messages: LocalMessages, consumer: str) -> list[str]:
    """The messages that the store says are leased to a consumer."""
    return [one.id for one in messages.list(ListQuery(consumer=consumer, state="processing"))]
