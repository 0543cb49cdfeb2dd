"""The schedule room in this process, over the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.errors import Conflict, Invalid, NotFound, Unavailable
from strandline.log.node import Node
from strandline.room import Chore, Room
from strandline.schedule import rules
from strandline.schedule.model import (
    ChosenMessage,
    ClockOffset,
    ClockReport,
    ItemAnswer,
    Lease,
    LeaseAct,
    ListQuery,
    LoadCounts,
    NewMessage,
    OwnerAct,
    Schedule,
    StoredMessage,
)
from strandline.schedule.room import LeaseFeed
from strandline.schedule.serving import Pulled, PushListener, PushSession, ServedMessages, ServedSchedules
from strandline.schedule.settings import ScheduleSections
from strandline.schedule.storage import ScheduleStore
from strandline.schedule.storage.connect import connect

_FOLD_INTERVAL_MS = 1_000
_PURGE_INTERVAL_MS = 10_000
_PURGED_AT_ONCE = 1_000


class LocalSchedules(ServedSchedules, Room):
    """Opens the store when it is first needed: many processes only use other rooms."""

    def __init__(self, databases: Databases, settings: ScheduleSections, clock: Clock, node: Node) -> None:
        self._databases = databases
        self._settings = settings
        self._clock = clock
        self._node = node
        self._lock = threading.Lock()
        self._store: ScheduleStore | None = None

    @property
    def store(self) -> ScheduleStore:
        with self._lock:
            if self._store is None:
                self._store = connect(self._settings, self._databases, self._clock)
            return self._store

    # -- the contract

    def put(self, schedule: Schedule) -> bool:
        return self.store.put(schedule)

    def create(self, schedule: Schedule) -> None:
        if not self.store.create(schedule) and self.get(schedule.name) != schedule:
            raise Conflict(f"the schedule {schedule.name} exists with other settings; change them with put")

    def get(self, name: str) -> Schedule:
        found = self.store.get(name) if rules.is_name(name) else None
        if found is None:
            raise _no_schedule(name)
        return found

    def all(self) -> list[Schedule]:
        return self.store.all()

    def delete(self, name: str) -> None:
        if not (rules.is_name(name) and self.store.delete(name)):
            raise _no_schedule(name)

    def of(self, name: str) -> LocalMessages:
        if not rules.is_name(rules.split_view(name)[0]):
            raise _no_schedule(name)
        return LocalMessages(name, self)

    def clocks(self) -> ClockReport:
        offset = self._clock.now_ms() - self.store.now_ms()
        return ClockReport(ClockOffset(self._node.id, offset, 0.0, self._clock.now_ms()), [], [])

    def ping(self, client: str, client_ms: int, received_ms: int) -> int:
        return self._clock.now_ms()

    # -- for the process that runs the room

    def start(self) -> None:
        self.store.now_ms()

    def check_ready(self) -> None:
        if self._store is not None:
            self._store.now_ms()

    def chores(self) -> list[Chore]:
        return [
            Chore("folding the counts of the schedules", _FOLD_INTERVAL_MS, self._fold),
            Chore("removing deleted messages of the schedules", _PURGE_INTERVAL_MS, self._purge),
        ]

    def _fold(self) -> None:
        self.store.fold()

    def _purge(self) -> None:
        while self.store.purge(_PURGED_AT_ONCE) == _PURGED_AT_ONCE:
            pass

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()


class LocalMessages(ServedMessages):
    def __init__(self, name: str, schedules: LocalSchedules) -> None:
        self.name = name
        self._schedules = schedules

    @property
    def _store(self) -> ScheduleStore:
        return self._schedules.store

    # -- changes

    def create(self, items: Sequence[NewMessage]) -> list[ItemAnswer]:
        if not all(item.id for item in items):
            now_ms = self._store.now_ms()
            items = [item if item.id else msgspec.structs.replace(item, id=rules.new_id(now_ms)) for item in items]
        return self._store.messages.create(self.name, items)

    def lease(self, consumer: str, lease_ms: int, items: Sequence[ChosenMessage]) -> list[Lease | ItemAnswer]:
        rules.check_consumer(consumer)
        rules.check_lease_ms(self._schedules.get(rules.split_view(self.name)[0]), lease_ms)
        return self._store.messages.lease(self.name, consumer, lease_ms, items)

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._store.messages.extend(self.name, items)

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._store.messages.release(self.name, items)

    def delete(self, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        return self._store.messages.delete(self.name, items)

    def move(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._store.messages.move(self.name, items)

    def put_back(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._store.messages.put_back(self.name, items)

    # -- delivery

    def pull(self, consumer: str, lease_ms: int, limit: int, wait_ms: int = 0) -> list[Lease]:
        raise Unavailable

    def start_pull(
        self, consumer: str, lease_ms: int, limit: int, wait_ms: int, done: Pulled
    ) -> Callable[[], None]:
        raise Unavailable

    def subscribe(self, consumer: str, lease_ms: int, credit: int) -> LeaseFeed:
        raise Unavailable

    def open_push(self, consumer: str, lease_ms: int, credit: int, listener: PushListener) -> PushSession:
        raise Unavailable

    # -- reads

    def get(self, message_id: str) -> StoredMessage:
        found = self._store.messages.get(self.name, message_id)
        if found is None:
            raise self._no_message(message_id)
        return found

    def read(self, claim: LeaseAct | OwnerAct) -> Lease:
        found = self._store.messages.read(self.name, claim)
        if found is None:
            raise self._no_message(claim.id)
        return found

    def _no_message(self, message_id: str) -> NotFound:
        return NotFound(f"there is no message {message_id!r:.80} in the schedule {self.name}")

    def list(self, query: ListQuery) -> Iterator[StoredMessage]:
        if query.limit < 1:
            raise Invalid(f"the limit of a list must be at least 1, not {query.limit}")
        return self._pages(query, self._store.messages.list(self.name, query))

    def _pages(self, query: ListQuery, page: Sequence[StoredMessage]) -> Iterator[StoredMessage]:
        while page:
            yield from page
            after = msgspec.structs.replace(query, after=page[-1].id)
            page = self._store.messages.list(self.name, after) if len(page) == query.limit else ()

    def counts(self, from_ms: int, to_ms: int, step_ms: int | None = None) -> LoadCounts:
        return self._store.messages.counts(self.name, from_ms, to_ms, step_ms)


def _no_schedule(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r:.80}; create it first")
