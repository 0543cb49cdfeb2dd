"""Leases the due messages of one schedule for all consumers of this node, in one thread.

The thread sleeps until the next message is due, until something changes, or until the next look. It runs only
while somebody consumes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from strandline.schedule import rules
from strandline.schedule.claims import PullClaim, PushClaim
from strandline.schedule.context import DeliveryContext
from strandline.schedule.delivery import LeaseDelivery, call, degraded
from strandline.schedule.model import Lease, LeaseAct
from strandline.schedule.serving import Pulled, PushListener

_IDLE_SECONDS = 30.0
# The thread looks at its clock at least this often, because a clock of a test can be faster.
_LONGEST_WAIT_SECONDS = 0.1


class Leaser:
    """One schedule on one node. Thread-safe."""

    def __init__(self, name: str, context: DeliveryContext) -> None:
        self.delivery = LeaseDelivery(name, context)
        self._context = context
        self._sessions = context.store.sessions
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")
        # Held by the thread that takes a turn: that of the leaser, or one that pulls.
        self._turns = threading.Lock()

    # -- consumers

    def open_push(self, consumer: str, lease_ms: int, credit: int, listener: PushListener) -> PushClaim:
        self._check(lease_ms)
        epoch = self._sessions.open(self.delivery.name, consumer, self._context.node)
        claim = PushClaim(consumer, lease_ms, epoch, credit, listener)
        with self.delivery.changed:
            self._refuse_ended()
            fenced = self.delivery.claims.add_push(claim)
            self.delivery.agenda.refresh_at = 0
            self._wake()
        if fenced is not None:
            call(fenced.listener.fenced)
        return claim

    def close_push(self, claim: PushClaim) -> None:
        with self.delivery.changed:
            self.delivery.claims.remove_push(claim)
            unsent = claim.take_unsent()
            self.delivery.agenda.refresh_at = 0
            self.delivery.changed.notify()
        self.delivery.give_back(unsent)
        self._sessions.close(self.delivery.name, claim.consumer, claim.epoch)

    def set_credit(self, claim: PushClaim, credit: int) -> None:
        with self.delivery.changed:
            more = credit > claim.credit
            claim.credit = credit
            if more:
                self._wake()

    def sent(self, claim: PushClaim, leases: Sequence[Lease]) -> None:
        with self.delivery.changed:
            was_full = not claim.free(self._context.clocks.now_ms())
            claim.sent(leases)
            if was_full and claim.free(self._context.clocks.now_ms()):
                self._wake()

    def take_back(self, claim: PushClaim, lease: Lease) -> bool:
        with self.delivery.changed:
            now_ms = self._context.clocks.now_ms()
            was_full = not claim.free(now_ms)
            unseen = claim.take_back(lease, now_ms)
            if was_full and claim.free(now_ms):
                self._wake()
            return unseen

    def start_pull(
        self, consumer: str, lease_ms: int, limit: int, wait_ms: int, done: Pulled
    ) -> Callable[[], None]:
        self._check(lease_ms)
        now = self._context.clocks.steady()
        self.delivery.attend(consumer, now)
        claim = PullClaim(consumer, lease_ms, limit, now + wait_ms, done)
        with self.delivery.changed:
            self._refuse_ended()
            self.delivery.claims.pulls.append(claim)
            self.delivery.agenda.lease = True
        self._help()
        return lambda: self._cancel(claim)

    def _cancel(self, claim: PullClaim) -> None:
        with self.delivery.changed:
            waited = self.delivery.claims.remove_pull(claim)
        if waited:
            claim.done(())

    def _check(self, lease_ms: int) -> None:
        """Refuse only after a look at the current settings."""
        known = self.delivery.known_settings()
        if known is None or not rules.is_lease_ms(known, lease_ms):
            rules.check_lease_ms(self.delivery.read_settings(), lease_ms)

    def check(self, lease_ms: int) -> None:
        """BadTimestamp if a lease cannot have this length; Unavailable while this node must not give leases."""
        self._check(lease_ms)
        self._context.clocks.look()
        if problem := self._context.problem(self.delivery.longest_ms):
            raise degraded(problem)

    # -- what holders do

    def extended(self, act: LeaseAct, version: int, at_ms: int) -> None:
        with self.delivery.changed:
            if push := self.delivery.claims.pushes.get(act.consumer):
                push.extended(act.id, version, at_ms)

    def dropped(self, act: LeaseAct, version: int) -> None:
        """The consumer does not hold the message any more."""
        if act.consumer not in self.delivery.claims.pushes:  # most holders pull: without the lock
            return
        with self.delivery.changed:
            push = self.delivery.claims.pushes.get(act.consumer)
            if push is None or act.id not in push.held:
                return
            now_ms = self._context.clocks.now_ms()
            was_full, had_many_free = not push.free(now_ms), push.has_many_free(now_ms)
            push.drop(act.id, version)
            if push.has_many_free(now_ms) and not had_many_free:
                self._wake()
            elif was_full:  # a few places are filled together
                self.delivery.agenda.expect(0)
                self._wake_thread()

    def join(self) -> None:
        """Wait until no thread uses the store any more, after `end`."""
        thread = self._thread
        if thread is not None:
            thread.join()
        with self._turns:
            pass

    # -- the thread

    def _refuse_ended(self) -> None:
        if self.delivery.ended is not None:
            raise self.delivery.ended

    def _wake(self) -> None:
        """Somebody may take more leases. The caller holds the lock."""
        self.delivery.agenda.lease = True
        self._wake_thread()

    def _wake_thread(self) -> None:
        """Let the thread see that it has something to do earlier than it knows. The caller holds the lock."""
        if self._thread is None and self.delivery.ended is None:
            self._thread = threading.Thread(
                target=self._run, name=f"strandline-leaser-{self.delivery.name}", daemon=True
            )
            self._thread.start()
        self.delivery.changed.notify()

    def _help(self) -> None:
        """Do the work of the thread now, unless another thread does it: most pulls are answered without a wait."""
        if self._turns.acquire(blocking=False):
            try:
                self.delivery.turn()
            finally:
                self._turns.release()
        with self.delivery.changed:
            now = time.monotonic()
            if self.delivery.claims and now + self._seconds_left(now) < self._wakes_at:
                self._wake_thread()

    def _run(self) -> None:
        while self._wait():
            with self._turns:
                self.delivery.turn()

    def _wait(self) -> bool:
        """Wait until there is something to do; False if the thread must end."""
        idle_from = time.monotonic()
        with self.delivery.changed:
            while True:
                now = time.monotonic()
                if self.delivery.ended is not None or (
                    not self.delivery.claims and now - idle_from > _IDLE_SECONDS
                ):
                    self._thread = None
                    self._wakes_at = float("inf")
                    # With the lock: the next thread wants them again.
                    self._context.news.unwant(self.delivery.name)
                    return False
                wait = self._seconds_left(now)
                if wait <= 0:
                    return True
                self._wakes_at = now + wait
                self.delivery.changed.wait(
                    min(wait, _LONGEST_WAIT_SECONDS) if self.delivery.claims else _IDLE_SECONDS
                )

    def _seconds_left(self, now: float) -> float:
        if not self.delivery.claims:
            return float("inf")
        clocks = self._context.clocks
        left = self.delivery.agenda.seconds_left(now, clocks.now_ms())
        if left <= 0 or not self.delivery.claims.pulls or now < self.delivery.agenda.not_before:
            return left
        return min(left, (min(pull.ends_ms for pull in self.delivery.claims.pulls) - clocks.steady()) / 1000)
