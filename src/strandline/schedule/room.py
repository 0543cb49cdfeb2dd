"""The schedule room as its users see it: schedules, and the messages of one schedule.

One contract, kept in process (`local.py`) and over HTTP (`client/schedule.py`). Operations take batches and answer
each item in the order asked. A create is safe to repeat if its messages have ids, and everything else because of
the versions, so the client over HTTP retries after a broken connection.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from strandline.schedule.consumer import ScheduleConsumer
from strandline.schedule.model import (
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
from strandline.schedule.relay.values import RelayLetter
from strandline.schedule.rules import MAX_CREDIT, MAX_PULLED, MAX_WAIT_MS
from strandline.schedule.worker import DEFAULT_RETRY, Handler, MessageWorker, Retry

__all__ = ["LEASE_MS", "MAX_CREDIT", "MAX_PULLED", "MAX_WAIT_MS", "LeaseFeed", "ScheduleMessages", "Schedules"]

#: How long the leases of a consumer last, unless it asks for another time.
LEASE_MS = 30_000


class LeaseFeed(Protocol):
    """The leases that a node pushes to one consumer, at most `credit` at a time."""

    def next(self, timeout: float) -> Lease | None:
        """The next lease; None if none came in time. LeaseLost if a newer session of the consumer exists."""

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]: ...

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]: ...

    def delete(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]: ...

    def now_ms(self) -> int:
        """The time of the schedule's database, estimated without a request. Leases expire by that clock."""

    def stop(self) -> None:
        """Ask for no more leases."""

    def close(self) -> None:
        """End the session. Leases that `next` did not return are available to others again.

        They do not count as deliveries, except those that had already been sent to this process.
        """


class ScheduleMessages(ABC):
    """The messages of one schedule. `<name>.dead` is the schedule of its dead messages."""

    name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}>"

    @abstractmethod
    def check_open(self) -> None:
        """Unavailable if the program has closed the platform or the client: trying again is useless then."""

    @abstractmethod
    def create(self, items: Sequence[NewMessage]) -> list[ItemAnswer]:
        """Store messages. A message with an empty id gets a new one, which its answer names."""

    @abstractmethod
    def lease(self, consumer: str, lease_ms: int, items: Sequence[ChosenMessage]) -> list[Lease | ItemAnswer]: ...

    @abstractmethod
    def pull(self, consumer: str, lease_ms: int, limit: int, wait_ms: int = 0) -> list[Lease]:
        """New leases of due messages, oldest first; waits up to `wait_ms` until there is at least one."""

    @abstractmethod
    def subscribe(self, consumer: str, lease_ms: int, credit: int) -> LeaseFeed:
        """Begin a push session. Fences an earlier session of the same consumer, and first returns its leases."""

    @abstractmethod
    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]: ...

    @abstractmethod
    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]: ...

    @abstractmethod
    def delete(self, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]: ...

    @abstractmethod
    def move(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]: ...

    @abstractmethod
    def put_back(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]: ...

    @abstractmethod
    def get(self, message_id: str) -> StoredMessage: ...

    @abstractmethod
    def read(self, claim: LeaseAct | OwnerAct) -> Lease: ...

    @abstractmethod
    def list(self, query: ListQuery) -> Iterator[StoredMessage]:
        """All messages that the query describes; `limit` is the size of a page."""

    @abstractmethod
    def counts(self, from_ms: int, to_ms: int, step_ms: int | None = None) -> LoadCounts: ...

    def consume(self, consumer: str, *, lease_ms: int = LEASE_MS, credit: int = 1) -> ScheduleConsumer:
        """Iterate over leases of due messages. Each must be deleted or released before it expires.

        A consumer that restarts with the same name first gets its active leases back. `credit` is how many leases
        it holds at most: with more than one, leases wait in this process while an earlier one is worked on.
        """
        return ScheduleConsumer(self, consumer, lease_ms, credit)

    def work(
        self,
        handler: Handler,
        consumer: str,
        *,
        threads: int = 1,
        lease_ms: int = LEASE_MS,
        retry: Retry = DEFAULT_RETRY,
        stop: threading.Event | None = None,
    ) -> None:
        """Call `handler(lease)` for every due message, in `threads` threads, until `stop` is set or Ctrl-C.

        The lease is extended while the handler runs, and the message is deleted when the handler returns. After an
        exception the message is delivered again later, as `retry` says. A handler that raises `GiveUp` makes it
        dead, if the schedule has `max_attempts`. Handlers that run are finished before `work` returns.
        """
        with self.consume(consumer, lease_ms=lease_ms, credit=threads) as leases:
            MessageWorker(leases, handler, retry, threads, stop or threading.Event()).run()


class Schedules(ABC):
    """All schedules: `sl.schedules`. `sl.schedule(name)` is `sl.schedules.of(name)`."""

    @abstractmethod
    def put(self, schedule: Schedule) -> bool:
        """Create a schedule, or replace all its settings. Returns whether it is new."""

    @abstractmethod
    def create(self, schedule: Schedule) -> None:
        """Create a schedule. No effect if it exists with the same settings; Conflict with others."""

    @abstractmethod
    def get(self, name: str) -> Schedule: ...

    @abstractmethod
    def all(self) -> list[Schedule]: ...

    @abstractmethod
    def delete(self, name: str) -> None: ...

    @abstractmethod
    def of(self, name: str) -> ScheduleMessages:
        """The messages of a schedule. Does not check that it exists."""

    @abstractmethod
    def relay_letters(self, name: str, *, limit: int = 100, after: str = "") -> list[RelayLetter]:
        """Events that the relay of a schedule could not relay, ordered by id. To continue, pass the last id.

        NotFound if there is no such schedule.
        """

    @abstractmethod
    def clocks(self) -> ClockReport:
        """How far the clocks of this node, its peers and its clients are from the database's."""
