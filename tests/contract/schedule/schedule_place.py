"""A store of schedules that several processes can open, and test data for it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from strandline.engine.database import Database, Rows
from strandline.engine.postgres import PostgresDatabase
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.schedule.model import (
    Body,
    ClockOffset,
    Lease,
    LeaseAct,
    Moment,
    NewMessage,
    OwnerAct,
    Schedule,
    Taker,
)
from strandline.schedule.storage import ScheduleStore
from strandline.schedule.storage.sql import SqlSchedules

NOON = 1_714_564_800_000
MEGABYTE = 1_000_000
CLOCK = ClockOffset("any", 0.0, 1.0, NOON)


def open_database(address: str) -> Database:
    if address.startswith("sqlite:"):
        return SqliteDatabase(Path(address.removeprefix("sqlite:")))
    return PostgresDatabase(address, fixed_plans=True)


class SchedulePlace:
    """`now_ms` is the store's clock; tests advance it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.now_ms = NOON
        self._opened: list[tuple[Database, ScheduleStore]] = []

    def open(self) -> ScheduleStore:
        """Open the store with separate connections, as another process does."""
        with ExitStack() as failing:
            database = open_database(self.address)
            failing.callback(database.close)
            self._opened.append((database, SqlSchedules(database, lambda: self.now_ms)))
            failing.pop_all()
        return self._opened[-1][1]

    def execute(self, statement: str) -> Rows:
        """Execute a statement without the store."""
        return self._opened[0][0].fetch(statement, {})

    def close(self) -> None:
        for database, store in self._opened:
            store.close()
            database.close()


def message(message_id: str, at_ms: int | None = NOON, *, group: str = "shop", body: bytes = b"{}") -> NewMessage:
    moment = Moment(0, relative=True) if at_ms is None else Moment(at_ms)
    return NewMessage(message_id, group, Body(body, is_json=True), moment)


def everything(consumer: str = "ada", credit: int = 100, lease_ms: int = 30_000, **more: int) -> Taker:
    """A consumer that all buckets are dealt to."""
    return Taker(consumer, credit, lease_ms, **{"first": 0, "last": 1023, **more})


def act(lease: Lease, at_ms: int | None = None, *, in_ms: int = 0, **other: object) -> LeaseAct:
    """What the holder of a lease asks for; `other` replaces members."""
    moment = Moment(in_ms, relative=True) if at_ms is None else Moment(at_ms)
    one = lease.message
    values = {"id": one.id, "consumer": one.consumer, "version": one.version, "moment": moment, **other}
    return LeaseAct(**values)


def own(message_id: str, at_ms: int | None = None, *, group: str = "shop", version: int | None = None) -> OwnerAct:
    moment = Moment(0, relative=True) if at_ms is None else Moment(at_ms)
    return OwnerAct(message_id, group, version, moment)


def created(store: ScheduleStore, *ids: str, at_ms: int = NOON, schedule: str = "s") -> None:
    answers = store.messages.create(schedule, [message(one, at_ms) for one in ids])
    assert [answer.status for answer in answers] == ["ok"] * len(ids), answers


def leased(store: ScheduleStore, *ids: str, consumer: str = "ada", lease_ms: int = 30_000) -> list[Lease]:
    """Create messages that are available and lease them."""
    created(store, *ids)
    return store.due.lease("s", [everything(consumer, lease_ms=lease_ms)], MEGABYTE).leases


def made(store: ScheduleStore, name: str = "s", **settings: int) -> None:
    store.put(Schedule(name, **settings))
