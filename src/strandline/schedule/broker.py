"""Delivers due messages on one node: a leaser for each schedule that is consumed, and the node's heartbeat."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from strandline.engine.heartbeat import Heartbeat
from strandline.errors import NotFound, StrandlineError, Unavailable
from strandline.room import CounterMetric, CounterValues
from strandline.schedule.context import LATE_MS, DeliveryContext
from strandline.schedule.leaser import Leaser
from strandline.schedule.model import ItemAnswer, LeaseAct, Leased, Schedule
from strandline.schedule.news import LOOK_SECONDS

log = logging.getLogger(__name__)

#: The sessions of a node that dies count as there for this long.
NODE_LIVES_MS = 10_000
# Codes that say that the caller does not hold the lease.
_LOST = frozenset({"not_found", "not_holder", "lease_expired"})
_COUNTERS = {
    "leased": CounterMetric("strandline_schedule_leased", "Leases given by this node.", "schedule"),
    "expired": CounterMetric(
        "strandline_schedule_expired_leases", "Messages leased again after a lease had expired.", "schedule"
    ),
    "dead": CounterMetric("strandline_schedule_dead", "Messages that became dead on this node.", "schedule"),
    "late": CounterMetric(
        "strandline_schedule_late",
        f"Messages leased more than {LATE_MS} ms after they became available.",
        "schedule",
    ),
}


class Broker:
    def __init__(self, context: DeliveryContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._leasers: dict[str, Leaser] = {}
        self._heartbeat: Heartbeat | None = None
        self._closed = False

    def start(self) -> None:
        """Make this node known to the others. Idempotent."""
        with self._lock:
            self.check_open()
            if self._heartbeat is None:
                self._beat()
                self._heartbeat = Heartbeat("the heartbeat of the schedules", self._beat, NODE_LIVES_MS)
                self._heartbeat.start()

    def check_open(self) -> None:
        """Unavailable after `close`."""
        if self._closed:
            raise Unavailable("the schedules are closed; open the platform again")

    def _beat(self) -> None:
        self._context.clocks.beat(NODE_LIVES_MS)

    def leaser(self, schedule: str) -> Leaser:
        """The leaser for consumers of a schedule."""
        found = self._leasers.get(schedule)
        if found is not None and found.delivery.ended is None:  # the broker was started with it
            return found
        self.start()
        with self._lock:
            found = self._leasers.get(schedule)
            if found is None or found.delivery.ended is not None:
                # Also without those of schedules that do not exist.
                self._leasers = {name: one for name, one in self._leasers.items() if one.delivery.ended is None}
                found = self._leasers[schedule] = Leaser(schedule, self._context)
            return found

    # -- changes of messages by this process

    def appeared(self, schedule: str, answers: Sequence[ItemAnswer]) -> None:
        """Messages got a moment at which they become available."""
        moments = [answer.at_ms for answer in answers if answer.status == "ok" and answer.at_ms is not None]
        if not moments:
            return
        first_ms = min(moments)
        if leaser := self._leasers.get(schedule):
            leaser.delivery.expect(first_ms)
        # Later messages are found in time by looking, even if one look is delayed.
        if first_ms <= self._context.clocks.now_ms() + 2 * LOOK_SECONDS * 1000:
            self._context.news.announce(schedule)

    def acted(self, schedule: str, acts: Sequence[object], answers: Sequence[ItemAnswer], *, ends: bool) -> None:
        """Holders extended their leases, or ended them."""
        leaser = self._leasers.get(schedule)
        if leaser is None:
            return
        for act, answer in zip(acts, answers, strict=True):
            if not isinstance(act, LeaseAct):
                continue
            if answer.status == "error":
                if answer.code in _LOST:
                    leaser.dropped(act, act.version)
            elif ends:
                leaser.dropped(act, answer.version or act.version)
            elif answer.version is not None and answer.at_ms is not None:
                leaser.extended(act, answer.version, answer.at_ms)

    def chosen(self, schedule: str, leased: Leased) -> None:
        """Chosen messages were leased."""
        self._context.count(schedule, leased)

    def changed(self, schedule: str) -> None:
        """The settings of a schedule were replaced."""
        if leaser := self._leasers.get(schedule):
            leaser.delivery.forget_settings()

    def deleted(self, schedule: str) -> None:
        if leaser := self._leasers.pop(schedule, None):
            leaser.delivery.end(NotFound(f"the schedule {schedule!r} was deleted"))

    # -- for the process

    def problem(self) -> str | None:
        """Why this node is degraded, if it delivers at all."""
        if self._heartbeat is None:
            return None
        longest_ms = max(
            (one.delivery.longest_ms for one in [*self._leasers.values()]), default=Schedule("any").max_lease_ms
        )
        return self._context.problem(longest_ms)

    def counts(self) -> CounterValues:
        return {metric: dict(getattr(self._context, name)) for name, metric in _COUNTERS.items()}

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            leasers, self._leasers = [*self._leasers.values()], {}
        closed = Unavailable("the node is closing; connect to another one", retry_after=1)
        for leaser in leasers:
            leaser.delivery.end(closed)
        for leaser in leasers:
            leaser.join()
        self._context.news.close()
        if self._heartbeat is not None:
            self._heartbeat.stop()
            try:
                self._context.store.sessions.leave(self._context.node)
            except StrandlineError as error:
                log.warning("the sessions of this node count as there until they expire: %s", error)
