"""Push sessions of this process: what the server and the local feed hold of them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from strandline.errors import LeaseLost, StrandlineError, Unavailable
from strandline.schedule import rules
from strandline.schedule.claims import PushClaim
from strandline.schedule.demand import Demand
from strandline.schedule.leaser import Leaser
from strandline.schedule.model import ItemAnswer, Lease, LeaseAct
from strandline.schedule.room import LeaseFeed
from strandline.schedule.serving import PushListener, PushSession, ServedMessages


class LocalPush(PushSession):
    def __init__(self, leaser: Leaser, claim: PushClaim) -> None:
        self._leaser = leaser
        self._claim = claim

    def set_credit(self, credit: int) -> None:
        rules.check_credit(credit)
        self._leaser.set_credit(self._claim, credit)

    def sent(self, leases: Sequence[Lease]) -> None:
        self._leaser.sent(self._claim, leases)

    def take_back(self, lease: Lease) -> bool:
        return self._leaser.take_back(self._claim, lease)

    def close(self) -> None:
        self._leaser.close_push(self._claim)


class LocalFeed(LeaseFeed, PushListener):
    """A push session whose leases wait in memory until the consumer takes them."""

    def __init__(self, messages: ServedMessages, now_ms: Callable[[], int]) -> None:
        self._messages = messages
        self._now_ms = now_ms
        self._changed = threading.Condition()
        self._leases: deque[Lease] = deque()
        self._session: PushSession | None = None
        self._demand = Demand(0, self._set_credit)
        self._end: StrandlineError | None = None

    def open(self, consumer: str, lease_ms: int, credit: int) -> None:
        self._demand = Demand(credit, self._set_credit)
        self._session = self._messages.open_push(consumer, lease_ms, credit, self)

    def leased(self, leases: Sequence[Lease]) -> None:
        with self._changed:
            self._leases.extend(leases)
            self._changed.notify()

    def fenced(self) -> None:
        self._finish(LeaseLost("the consumer has a newer session, or the schedule was deleted"))

    def next(self, timeout: float) -> Lease | None:
        with self._demand.waiting():
            return self._next(timeout)

    def _next(self, timeout: float) -> Lease | None:
        deadline = time.monotonic() + timeout
        while (lease := self._taken(deadline)) is not None:
            session = self._session
            if lease.message.at_ms > self.now_ms():
                if session is not None:
                    session.sent([lease])
                return lease
            # It has expired in the queue, so the message is for others now.
            if session is not None and session.take_back(lease):
                with suppress(StrandlineError):  # then it counts as a delivery, and the next lease may come
                    self._messages.give_back([lease])
        return None

    def _taken(self, deadline: float) -> Lease | None:
        with self._changed:
            while True:
                if self._end is not None:
                    raise self._end
                if self._leases:
                    return self._leases.popleft()
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                self._changed.wait(left)

    def now_ms(self) -> int:
        return self._now_ms()

    def stop(self) -> None:
        self._demand.stop()

    def _set_credit(self, credit: int) -> None:
        if self._session is not None:
            self._session.set_credit(credit)

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._messages.extend(items)

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._messages.release(items)

    def delete(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._messages.delete(items)

    def close(self) -> None:
        session, self._session = self._session, None
        self._finish(Unavailable("the feed is closed"))
        if session is not None:
            session.close()

    def _finish(self, error: StrandlineError) -> None:
        with self._changed:
            self._end = self._end or error
            self._leases.clear()
            self._changed.notify_all()
