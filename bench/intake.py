"""Consumers of a schedule that take messages as fast as they come, and delete them in batches."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench import schedules
from strandline.schedule import Lease, ScheduleMessages
from strandline.schedule.model import ItemAnswer, LeaseAct
from strandline.schedule.room import LeaseFeed

_MOST = 500
_WAIT_S = 0.2
_SILENCE_S = 60.0


@dataclass(frozen=True)
class Arrival:
    id: str
    #: How long after its due moment the consumer had the message.
    late_ms: float


@dataclass(frozen=True)
class Consumer:
    take: Callable[[], Sequence[Lease]]
    delete: Callable[[Sequence[LeaseAct]], Sequence[ItemAnswer]]


def by_push(feed: LeaseFeed) -> Consumer:
    def take() -> list[Lease]:
        taken = []
        while len(taken) < _MOST and (lease := feed.next(0 if taken else _WAIT_S)) is not None:
            taken.append(lease)
        return taken

    return Consumer(take, feed.delete)


def by_pull(messages: ScheduleMessages) -> Consumer:
    wait_ms = round(_WAIT_S * 1000)
    return Consumer(
        lambda: messages.pull(schedules.CONSUMER, schedules.LEASE_MS, _MOST, wait_ms),
        messages.delete,
    )


class Intake:
    """Takes and deletes `count` messages, with a thread that takes and one that deletes for each consumer."""

    def __init__(self, consumers: Sequence[Consumer], count: int) -> None:
        self._consumers = consumers
        self._left = count
        self._lock = threading.Lock()
        self._arrivals: list[Arrival] = []
        self._heard = time.monotonic()

    def run(self) -> list[Arrival]:
        """All arrivals. Fails if messages are missing."""
        with ThreadPoolExecutor(2 * len(self._consumers)) as pool:
            for work in [pool.submit(part, *given) for part, given in self._parts()]:
                work.result()
        if self._left:
            raise RuntimeError(f"{self._left} messages did not come, or could not be deleted")
        return self._arrivals

    def _parts(self) -> list[tuple[Callable[..., None], tuple[object, ...]]]:
        waiting = [(consumer, queue.SimpleQueue()) for consumer in self._consumers]
        return [(part, given) for part in (self._take, self._delete) for given in waiting]

    def _is_open(self) -> bool:
        return self._left > 0 and time.monotonic() - self._heard < _SILENCE_S

    def _take(self, consumer: Consumer, taken: queue.SimpleQueue[Sequence[Lease]]) -> None:
        while self._is_open():
            if leases := consumer.take():
                now_ms = time.time() * 1000
                self._heard = time.monotonic()
                self._arrivals += [Arrival(one.message.id, now_ms - one.message.due_ms) for one in leases]
                taken.put(leases)

    def _delete(self, consumer: Consumer, taken: queue.SimpleQueue[Sequence[Lease]]) -> None:
        while self._is_open():
            leases: list[Lease] = []
            try:
                leases += taken.get(timeout=_WAIT_S)
                while len(leases) < _MOST:
                    leases += taken.get_nowait()
            except queue.Empty:
                pass
            if leases:
                answers = consumer.delete(schedules.acts(leases))
                with self._lock:
                    self._left -= sum(answer.status == "ok" for answer in answers)
