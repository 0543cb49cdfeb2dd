"""Workers: a handler is called for every due message, in threads, while its lease is extended."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from strandline.errors import LeaseLost, StrandlineError
from strandline.schedule.consumer import LeasedMessage, ScheduleConsumer
from strandline.schedule.rules import SHORTEST_MS

log = logging.getLogger(__name__)

Handler = Callable[[LeasedMessage], object]

_LOOK_S = 0.5
_SHORTEST_LOOK_S = 0.01
# Caps the exponent: larger numbers are out of range for any factor that makes sense.
_MOST_DOUBLINGS = 64
_MOST_GIVEN_UP = 10_000


class GiveUp(Exception):
    """Raised by a handler if trying again is useless. The message is dead if the schedule has `max_attempts`."""


@dataclass(frozen=True)
class Retry:
    """When a message is delivered again after its handler failed: later with every attempt.

    A worker gives up after `max_attempts` deliveries; set it to the value of the schedule, so that a message is
    dead at once instead of after one more pause. `jitter` spreads messages that failed together.
    """

    first_ms: int = 1_000
    factor: float = 2.0
    longest_ms: int = 3_600_000
    jitter: float = 0.1
    max_attempts: int | None = None

    def delay_ms(self, delivery_count: int) -> int:
        doubled = self.first_ms * self.factor ** min(delivery_count - 1, _MOST_DOUBLINGS)
        spread = 1 + self.jitter * random.random()  # noqa: S311 - not for secrets
        return max(SHORTEST_MS + 1, int(min(doubled, self.longest_ms) * spread))


DEFAULT_RETRY = Retry()


class MessageWorker:
    """Calls `handler` for the leases of a consumer.

    The message is deleted when the handler returns, unless the handler has released or deleted it. After an
    exception it is released into the future. A handler that runs longer than its lease keeps it, because it is
    extended; `lease.remaining_ms` is 0 if that failed.
    """

    def __init__(
        self, consumer: ScheduleConsumer, handler: Handler, retry: Retry, threads: int, stop: threading.Event
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._retry = retry
        self._threads = threads
        self._asked_to_stop = stop
        self._stop = threading.Event()
        self._running: set[LeasedMessage] = set()
        #: How often each message was delivered when it was given up; the newest ones.
        self._given_up: dict[str, int] = {}
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Work until `stop` is set or Ctrl-C is pressed; handlers that run are finished. Raises what ended it."""
        threads: list[threading.Thread] = []
        extending = threading.Event()
        try:
            threads.extend(self._started(self._handle_all, f"worker-{number}") for number in range(self._threads))
            extender = self._started(lambda: self._extend_all(extending), "extender")
            while not self._is_over():
                self._asked_to_stop.wait(_LOOK_S)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            extending.set()
        extender.join()
        if self._failure is not None:
            raise self._failure

    def _is_over(self) -> bool:
        return self._asked_to_stop.is_set() or self._stop.is_set() or self._consumer.closed

    def _started(self, work: Callable[[], None], name: str) -> threading.Thread:
        # A daemon: a second Ctrl-C ends the process although a handler runs.
        thread = threading.Thread(target=self._guarded, args=[work], name=f"strandline-{name}", daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._failure = self._failure or error
            self._stop.set()

    # -- handling

    def _handle_all(self) -> None:
        while not self._is_over():
            if (lease := self._consumer.receive(_LOOK_S)) is not None:
                self._running.add(lease)
                try:
                    self._handle(lease)
                except StrandlineError as error:
                    log.warning("message %s is delivered again after its lease: %s", lease.id, error)
                finally:
                    self._running.discard(lease)

    def _handle(self, lease: LeasedMessage) -> None:
        # The deliveries of a message that was put back are counted from the beginning.
        if self._given_up.get(lease.id, lease.delivery_count) < lease.delivery_count:
            return self._give_up(lease)
        try:
            self._call(lease)
        except LeaseLost:
            raise
        except GiveUp as error:
            log.warning("message %s is given up: %s", lease.id, error)
            return self._give_up(lease)
        except Exception:
            log.exception("the handler of message %s failed, delivery %d", lease.id, lease.delivery_count)
            return self._try_later(lease)
        if not lease.settled:
            lease.delete()
        return None

    def _call(self, lease: LeasedMessage) -> None:
        try:
            self._handler(lease)
        finally:
            if self._is_over():  # the place of this message must not be filled
                with suppress(StrandlineError):
                    self._consumer.stop()

    def _try_later(self, lease: LeasedMessage) -> None:
        if lease.settled:
            return
        if self._retry.max_attempts is not None and lease.delivery_count >= self._retry.max_attempts:
            self._give_up(lease)
        else:
            lease.release(in_ms=self._retry.delay_ms(lease.delivery_count))

    def _give_up(self, lease: LeasedMessage) -> None:
        """Use up the deliveries that are left: after `max_attempts` of the schedule the message is dead.

        The pauses double, so that a message of a schedule without `max_attempts` does not come back all the time.
        """
        self._given_up[lease.id] = lease.delivery_count
        if len(self._given_up) > _MOST_GIVEN_UP:
            self._given_up.pop(next(iter(self._given_up)), None)
        if not lease.settled:
            at_once = Retry(SHORTEST_MS + 1, longest_ms=self._retry.longest_ms, jitter=0)
            lease.release(in_ms=at_once.delay_ms(lease.delivery_count))

    # -- extending

    def _extend_all(self, done: threading.Event) -> None:
        """Extend every lease of a running handler when a third of its time is over."""
        lease_ms = self._consumer.lease_ms
        while not (done.wait(max(_SHORTEST_LOOK_S, lease_ms / 6000)) or self._consumer.closed):
            for lease in [*self._running]:
                if 0 < lease.remaining_ms < lease_ms * 2 / 3:
                    # The handler's own delete or release reports the loss.
                    with suppress(StrandlineError):
                        lease.extend()
