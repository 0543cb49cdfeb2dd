"""A consumer of a schedule: its leases as objects, and its session, which survives broken connections.

A consumer whose connection broke opens another session. The node then hands its active leases back under new
versions. `ScheduleConsumer` gives the new version to the lease object that the program still has, instead of
delivering the message a second time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, cast
from weakref import WeakValueDictionary

import msgspec

from strandline.errors import LeaseLost, OutcomeUnknown, StrandlineError, Unavailable
from strandline.schedule.message import moment_of, value_of
from strandline.schedule.model import NOW, ItemAnswer, Lease, LeaseAct, Moment
from strandline.schedule.refusals import error_of
from strandline.schedule.rules import SHORTEST_MS

if TYPE_CHECKING:  # `room` imports this module
    from strandline.schedule.room import LeaseFeed, ScheduleMessages

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
# How long one wait for a lease takes at most, before the consumer looks whether it was closed.
_WAIT_S = 1.0
# How long after a reconnect a handed back lease can still be on its way.
_HAND_BACK_S = 3.0
_LOST = frozenset({"not_found", "not_holder", "lease_expired", "stale_version", "fenced"})

_Verb = Literal["extend", "release", "delete"]


class LeasedMessage:
    """A message that only this consumer may process, until `expires_at_ms`. Any thread may use it.

    `extend`, `release` and `delete` raise LeaseLost if the lease has ended: then drop the work, another consumer
    may have the message. If the connection breaks, they are repeated for as long as the lease is active.
    """

    def __init__(self, consumer: ScheduleConsumer, lease: Lease, feed: LeaseFeed) -> None:
        self._consumer = consumer
        #: The body as it is stored.
        self.content = lease.body
        self._acting = threading.Lock()
        self.message = lease.message
        #: The session that delivered the lease or handed it back.
        self.feed = feed
        #: Whether it was deleted or released.
        self.settled = False

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def body(self) -> Any:
        """The value of a JSON body, or bytes."""
        return value_of(self.content)

    @property
    def group(self) -> str:
        return self.message.producer_group

    @property
    def version(self) -> int:
        return self.message.version

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery."""
        return self.message.delivery_count

    @property
    def due_at_ms(self) -> int:
        return self.message.due_ms

    @property
    def expires_at_ms(self) -> int:
        """The end of the lease, by the clock of the schedule's database."""
        return self.message.at_ms

    @property
    def remaining_ms(self) -> int:
        """How long the lease is still active, by the clock of the schedule's database; 0 if it has ended."""
        return 0 if self.settled else max(0, self.expires_at_ms - self._consumer.now_ms())

    def extend(self, *, in_ms: int | None = None, at: datetime | int | None = None) -> None:
        """Move the end of the lease. Without a moment it lasts for `lease_ms` of the consumer from now."""
        in_ms = self._consumer.lease_ms if in_ms is None and at is None else in_ms
        with self._acting:
            if self.settled:
                raise LeaseLost(
                    f"message {self.id!r} was deleted or released before; its lease cannot be extended"
                )
            answer = self._act("extend", moment_of(at=at, in_ms=in_ms))
            version, at_ms = answer.version or self.version, answer.at_ms or self.expires_at_ms
            self.message = msgspec.structs.replace(self.message, version=version, at_ms=at_ms)

    def release(self, *, in_ms: int | None = None, at: datetime | int | None = None) -> None:
        """End the lease; the message becomes due at that moment, by default at once."""
        in_ms = SHORTEST_MS + 1 if in_ms is None and at is None else in_ms
        with self._acting:
            self._act("release", moment_of(at=at, in_ms=in_ms))
            self.settled = True

    def delete(self) -> None:
        """Delete the message: the work is done. Deleting it again succeeds."""
        with self._acting:
            self._act("delete", NOW)
            self.settled = True

    def renew(self, lease: Lease, feed: LeaseFeed) -> bool:
        """Take over a lease that a new session handed back. False if it is another delivery of the message."""
        if self.settled or feed is self.feed:
            return False
        # A lease that is handed back keeps its end, unless the answer to an extension was lost.
        if lease.message.at_ms != self.expires_at_ms and not self._acting.locked():
            return False
        self.message, self.feed = lease.message, feed
        return True

    def _act(self, verb: _Verb, moment: Moment) -> ItemAnswer:
        answer = self._consumer.act(self, verb, moment)
        if answer.status == "ok":
            return answer
        error = error_of(answer)
        raise LeaseLost(error.detail, **error.info) if answer.code in _LOST else error


class ScheduleConsumer:
    """An iterator over leases that a node pushes. The end of a `for` loop, also by `break`, closes the consumer.

    Thread-safe: several threads may take leases. After a broken connection, or while a node restarts, it connects
    again until it is closed. Unavailable if the program closes the platform meanwhile. LeaseLost if another
    consumer with the same name has connected: that one goes on.
    """

    def __init__(self, messages: ScheduleMessages, name: str, lease_ms: int, credit: int) -> None:
        self.name = name
        self.lease_ms = lease_ms
        self._messages = messages
        self._credit = credit
        self._opening = threading.Lock()
        self._closed = threading.Event()
        self._held: WeakValueDictionary[str, LeasedMessage] = WeakValueDictionary()
        self._ready: deque[LeasedMessage] = deque()
        self._feed: LeaseFeed = self._subscribe()

    def _subscribe(self) -> LeaseFeed:
        feed = self._messages.subscribe(self.name, self.lease_ms, self._credit)
        self._opened_at = time.monotonic()
        return feed

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def now_ms(self) -> int:
        """The time of the schedule's database, estimated without a request."""
        return self._feed.now_ms()

    # -- leases

    def receive(self, timeout: float | None = None) -> LeasedMessage | None:
        """The next lease; None after `timeout` seconds without one, or if the consumer is closed."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._closed.is_set():
            with suppress(IndexError):
                return self._ready.popleft()
            left = deadline - time.monotonic()
            if (lease := self._next(min(_WAIT_S, max(0.0, left)))) is not None:
                return lease
            if left <= 0:
                break
        return None

    def _next(self, timeout: float) -> LeasedMessage | None:
        feed = self._feed
        try:
            lease = feed.next(timeout)
        except Unavailable as error:
            self._reopen(feed, error)
            return None
        return None if lease is None else self._take(lease, feed)

    def _take(self, lease: Lease, feed: LeaseFeed) -> LeasedMessage | None:
        """None if the program has the lease already, or if it expired while it waited to be taken."""
        held = self._held.get(lease.message.id)
        if held is not None and held.renew(lease, feed):
            return None
        if lease.message.at_ms <= feed.now_ms():
            return None
        taken = self._held[lease.message.id] = LeasedMessage(self, lease, feed)
        return taken

    def __iter__(self) -> Iterator[LeasedMessage]:
        try:
            while (lease := self.receive()) is not None:
                yield lease
        finally:
            self.close()

    def __next__(self) -> LeasedMessage:
        lease = self.receive()
        if lease is None:
            raise StopIteration
        return lease

    def stop(self) -> None:
        """Ask for no more leases. Those that were taken can be settled."""
        self._feed.stop()

    # -- acts

    def act(self, held: LeasedMessage, verb: _Verb, moment: Moment) -> ItemAnswer:
        """Extend, release or delete a lease. Repeated after a broken connection while the lease is active."""
        repeated = False
        while not self._closed.is_set():
            feed, version = self._feed, held.version
            try:
                answer = _call(feed, verb, self._item(held, moment))
            except (Unavailable, OutcomeUnknown) as error:
                repeated = True
                self._recover(feed, held, error)
                continue
            if repeated and verb == "release" and answer.code == "not_holder" and held.remaining_ms > 0:
                # Only its holder can change a message before the lease ends: the first attempt has released it.
                return ItemAnswer(held.id, "ok")
            if not (answer.code == "stale_version" and self._was_handed_back(held, version)):
                return answer
        return _call(self._messages, verb, self._item(held, moment))

    def _item(self, held: LeasedMessage, moment: Moment) -> LeaseAct:
        return LeaseAct(held.id, self.name, held.version, moment)

    def _recover(self, feed: LeaseFeed, held: LeasedMessage, error: StrandlineError) -> None:
        """Open another session, which hands the lease back. Raises `error` if the lease has ended."""
        left_s = (held.expires_at_ms - feed.now_ms()) / 1000
        if left_s <= 0:
            raise error
        self._reopen(feed, error, time.monotonic() + left_s)

    def _was_handed_back(self, held: LeasedMessage, version: int) -> bool:
        """Whether a new session gave the lease a newer version. Takes waiting leases: one of them may be it."""
        deadline = time.monotonic() + _HAND_BACK_S
        while held.version == version and held.feed is not self._feed and time.monotonic() < deadline:
            if (other := self._next(_FIRST_PAUSE_S)) is not None:
                self._ready.append(other)
        return held.version != version

    # -- sessions

    def _reopen(self, broken: LeaseFeed, error: StrandlineError, give_up_at: float = math.inf) -> None:
        """Open another session in place of a broken one, unless another thread has done it."""
        with self._opening:
            if self._feed is not broken or self._closed.is_set():
                return
            log.warning("consumer %s of schedule %s reconnects: %s", self.name, self._messages.name, error)
            self._take_over(broken, 0.0)  # what is left there comes back in the next session
            broken.close()
            # A session that breaks as soon as it is open must not be opened all the time.
            pause = 0.0 if time.monotonic() - self._opened_at > _WAIT_S else _FIRST_PAUSE_S
            while not self._closed.wait(pause):
                try:
                    feed = self._subscribe()
                except Unavailable:
                    self._messages.check_open()
                    if time.monotonic() >= give_up_at:
                        raise
                    pause = min(2 * pause or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                else:
                    self._feed = feed
                    return

    def _take_over(self, feed: LeaseFeed, until: float) -> list[LeaseAct]:
        """Give the program's leases the versions that wait in a feed, which would release them when it is closed.

        Waits for them until that monotonic time. Returns the releases of other leases that it took meanwhile.
        """
        others: list[LeaseAct] = []
        with suppress(StrandlineError):
            while any(_is_behind(held, feed) for held in [*self._held.values()]):
                lease = feed.next(min(_FIRST_PAUSE_S, max(0.0, until - time.monotonic())))
                if lease is None and time.monotonic() >= until:
                    break
                held = self._held.get(lease.message.id) if lease is not None else None
                if lease is not None and not (held is not None and held.renew(lease, feed)):
                    soon = Moment(SHORTEST_MS + 1, relative=True)
                    others.append(LeaseAct(lease.message.id, self.name, lease.message.version, soon))
        return others

    def close(self) -> None:
        """End the session. A lease that was taken stays active until it is settled or expires."""
        if self._closed.is_set():
            return
        self._closed.set()
        with self._opening:
            feed = self._feed
            others = self._take_over(feed, self._opened_at + _HAND_BACK_S)
            with suppress(StrandlineError):
                if others:
                    feed.release(others)
            feed.close()
        while self._ready:
            with suppress(StrandlineError):
                self._ready.popleft().release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_behind(held: LeasedMessage, feed: LeaseFeed) -> bool:
    """Whether an active lease came from an earlier session than the feed, which hands it back."""
    return held.feed is not feed and held.remaining_ms > 0


def _call(port: LeaseFeed | ScheduleMessages, verb: _Verb, item: LeaseAct) -> ItemAnswer:
    (answer,) = getattr(port, verb)([item])
    return cast("ItemAnswer", answer)
