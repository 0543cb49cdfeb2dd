"""The schedule room in this process, over the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias
from weakref import WeakSet

import msgspec

from strandline.clock import Clock
from strandline.engine.connect import Databases
from strandline.errors import Conflict, NotFound, Unavailable
from strandline.log.node import Node
from strandline.room import Chore, CounterValues, GaugeValues, Room
from strandline.schedule import rules
from strandline.schedule.broker import Broker
from strandline.schedule.clocks import NodeClocks
from strandline.schedule.context import DeliveryContext
from strandline.schedule.gauges import MEASURE_INTERVAL_MS, ScheduleGauges
from strandline.schedule.leaser import Leaser
from strandline.schedule.model import (
    DEAD,
    ChosenMessage,
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
from strandline.schedule.news import open_news
from strandline.schedule.push import LocalFeed, LocalPush
from strandline.schedule.relay.values import RelayLetter
from strandline.schedule.serving import Pulled, PushListener, ServedMessages, ServedSchedules
from strandline.schedule.settings import ScheduleSections
from strandline.schedule.storage import ScheduleStore
from strandline.schedule.storage.connect import connect

_FOLD_INTERVAL_MS = 1_000
_PURGE_INTERVAL_MS = 10_000
_PURGED_AT_ONCE = 1_000


Answers: TypeAlias = list[ItemAnswer]


@dataclass(frozen=True)
class ScheduleParts:
    """What is opened when the schedules are first needed: many processes only use other rooms."""

    store: ScheduleStore
    clocks: NodeClocks
    broker: Broker
    gauges: ScheduleGauges


class LocalSchedules(ServedSchedules, Room):
    def __init__(self, databases: Databases, settings: ScheduleSections, clock: Clock, node: Node) -> None:
        self._databases = databases
        self._settings = settings
        self._clock = clock
        self._node = node
        self._lock = threading.Lock()
        self._parts: ScheduleParts | None = None
        self.feeds: WeakSet[LocalFeed] = WeakSet()

    @property
    def parts(self) -> ScheduleParts:
        if self._parts is not None:
            return self._parts
        with self._lock:
            if self._parts is None:
                self._parts = self._open()
            return self._parts

    def _open(self) -> ScheduleParts:
        settings = self._settings.schedule
        store = connect(settings.url, self._databases, self._clock)
        clocks = NodeClocks(self._node.id, store, self._clock, settings.max_clock_offset_ms)
        clocks.measure()
        news = open_news(store, settings.news)
        context = DeliveryContext(self._node.id, store, clocks, news, self._session_problem)
        return ScheduleParts(store, clocks, Broker(context), ScheduleGauges(store, clocks))

    def _session_problem(self) -> str | None:
        try:
            sure = self._node.coordination.sure()
        except Unavailable as error:
            return error.detail
        return None if sure else "it has lost its coordination session and reconnects automatically"

    # -- the contract

    def put(self, schedule: Schedule) -> bool:
        is_new = self.parts.store.put(schedule)
        self.parts.broker.changed(schedule.name)
        return is_new

    def create(self, schedule: Schedule) -> None:
        if not self.parts.store.create(schedule) and self.get(schedule.name) != schedule:
            raise Conflict(f"the schedule {schedule.name} exists with other settings; change them with put")

    def get(self, name: str) -> Schedule:
        found = self.parts.store.get(name) if rules.is_name(name) else None
        if found is None:
            raise _no_schedule(name)
        return found

    def all(self) -> list[Schedule]:
        return self.parts.store.all()

    def delete(self, name: str) -> None:
        if not (rules.is_name(name) and self.parts.store.delete(name)):
            raise _no_schedule(name)
        self.parts.broker.deleted(name)

    def of(self, name: str) -> LocalMessages:
        if not rules.is_name(rules.split_view(name)[0]):
            raise _no_schedule(name)
        return LocalMessages(name, self)

    def relay_letters(self, name: str, *, limit: int = 100, after: str = "") -> list[RelayLetter]:
        self.get(name)  # or NotFound
        return self.parts.store.relays.dead_letters(name, limit, after)

    def clocks(self) -> ClockReport:
        self.parts.broker.start()
        return self.parts.clocks.report(self.parts.broker.problem())

    def now_ms(self) -> int:
        return self.parts.clocks.now_ms()

    def ping(self, client: str, client_ms: int, received_ms: int) -> int:
        return self.parts.clocks.ping(client, client_ms, received_ms)

    # -- for the process that runs the room

    def start(self) -> None:
        """Make this node known to the others, and measure its clock."""
        self.parts.broker.start()

    def check_ready(self) -> None:
        if self._parts is None:
            return
        self._parts.store.now_ms()
        if problem := self._parts.broker.problem():
            raise Unavailable(f"this node gives no leases: {problem}", retry_after=1)

    def counts(self) -> CounterValues:
        return self._parts.broker.counts() if self._parts is not None else {}

    def gauges(self) -> GaugeValues:
        return self._parts.gauges.values() if self._parts is not None else {}

    def chores(self) -> list[Chore]:
        return [
            Chore("counting the due messages of the schedules", MEASURE_INTERVAL_MS, self._measure),
            Chore("folding the counts of the schedules", _FOLD_INTERVAL_MS, self._fold),
            Chore("removing deleted messages of the schedules", _PURGE_INTERVAL_MS, self._purge),
        ]

    def _measure(self) -> None:
        self.parts.gauges.measure()

    def _fold(self) -> None:
        self.parts.store.fold()

    def _purge(self) -> None:
        """Remove what is deleted, while the time of this node can be trusted."""
        parts = self.parts
        while parts.broker.problem() is None and parts.store.purge(_PURGED_AT_ONCE) == _PURGED_AT_ONCE:
            pass

    def close(self) -> None:
        with self._lock:
            parts = self._parts
        if parts is not None:
            with ExitStack() as closing:  # also if a feed cannot give its leases back: they expire
                closing.callback(parts.store.close)
                closing.callback(parts.broker.close)
                for feed in [*self.feeds]:
                    closing.callback(feed.close)


class LocalMessages(ServedMessages):
    def __init__(self, name: str, schedules: LocalSchedules) -> None:
        self.name = name
        self._schedules = schedules

    @property
    def _parts(self) -> ScheduleParts:
        return self._schedules.parts

    @property
    def _store(self) -> ScheduleStore:
        return self._schedules.parts.store

    def check_open(self) -> None:
        self._parts.broker.check_open()

    # -- changes

    def create(self, items: Sequence[NewMessage]) -> list[ItemAnswer]:
        if not all(item.id for item in items):
            now_ms = self._parts.clocks.now_ms()
            items = [item if item.id else msgspec.structs.replace(item, id=rules.new_id(now_ms)) for item in items]
        return self._appeared(self._store.messages.create(self.name, items))

    def lease(self, consumer: str, lease_ms: int, items: Sequence[ChosenMessage]) -> list[Lease | ItemAnswer]:
        rules.check_consumer(consumer)
        self._leaser("lease").check(lease_ms)
        counted = partial(self._parts.broker.chosen, self.name)
        return self._store.messages.lease(self.name, consumer, lease_ms, items, counted)

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        answers = self._store.messages.extend(self.name, items)
        self._parts.broker.acted(self.name, items, answers, ends=False)
        return answers

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        answers = self._store.messages.release(self.name, items)
        self._parts.broker.acted(self.name, items, answers, ends=True)
        return self._appeared(answers)

    def delete(self, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        answers = self._store.messages.delete(self.name, items)
        self._parts.broker.acted(self.name, items, answers, ends=True)
        return answers

    def move(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._appeared(self._store.messages.move(self.name, items))

    def put_back(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._appeared(self._store.messages.put_back(self.name, items))

    def _appeared(self, answers: Answers) -> Answers:
        self._parts.broker.appeared(rules.split_view(self.name)[0], answers)
        return answers

    # -- delivery

    def pull(self, consumer: str, lease_ms: int, limit: int, wait_ms: int = 0) -> list[Lease]:
        found: SimpleQueue[Sequence[Lease] | BaseException] = SimpleQueue()
        cancel = self.start_pull(consumer, lease_ms, limit, wait_ms, found.put)
        try:
            answer = found.get()
        except BaseException:  # the user pressed Ctrl-C
            cancel()
            raise
        if isinstance(answer, BaseException):
            raise answer
        return [*answer]

    def start_pull(
        self, consumer: str, lease_ms: int, limit: int, wait_ms: int, done: Pulled
    ) -> Callable[[], None]:
        rules.check_consumer(consumer)
        rules.check_pull(limit, wait_ms)
        return self._leaser("pull").start_pull(consumer, lease_ms, limit, wait_ms, done)

    def give_back(self, leases: Sequence[Lease]) -> None:
        self._leaser("pull").delivery.give_back(leases)

    def subscribe(self, consumer: str, lease_ms: int, credit: int) -> LocalFeed:
        feed = LocalFeed(self, self._parts.clocks.now_ms)
        feed.open(consumer, lease_ms, credit)
        self._schedules.feeds.add(feed)
        return feed

    def open_push(self, consumer: str, lease_ms: int, credit: int, listener: PushListener) -> LocalPush:
        rules.check_consumer(consumer)
        rules.check_credit(credit)
        leaser = self._leaser("subscribe")
        return LocalPush(leaser, leaser.open_push(consumer, lease_ms, credit, listener))

    def _leaser(self, what: str) -> Leaser:
        """Conflict if the view of dead messages is meant."""
        if self.name.endswith(DEAD):
            raise Conflict(f"{what} is not possible with dead messages; put them back first")
        return self._parts.broker.leaser(self.name)

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
        rules.check_query(query)
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
