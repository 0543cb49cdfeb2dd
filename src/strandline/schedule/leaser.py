"""Leases the due messages of one schedule for all consumers of this node, in one thread.

The thread sleeps until the next message is due, until something changes, or until the next look. It runs only
while somebody consumes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from strandline import failpoints
from strandline.errors import NotFound, StrandlineError, Unavailable
from strandline.schedule import rules
from strandline.schedule.agenda import NEVER_MS, Agenda
from strandline.schedule.claims import Claims, PlacedLeases, PullClaim, PushClaim
from strandline.schedule.context import DeliveryContext
from strandline.schedule.dealing import GRACE_MS, deal
from strandline.schedule.model import Lease, LeaseAct, Leased, Schedule, Taker
from strandline.schedule.serving import Pulled, PushListener

log = logging.getLogger(__name__)

#: A consumer that pulls counts as there for this long after its last call.
PULL_LIVES_MS = 30_000
# Presence is written again after this time, not with every pull.
_ATTEND_MS = 5_000
# How often the thread looks for other sessions and changed settings.
_REFRESH_SECONDS = 1.0
_IDLE_SECONDS = 30.0
_RETRY_SECONDS = 0.1
# The thread looks at its clock at least this often, because a clock of a test can be faster.
_LONGEST_WAIT_SECONDS = 0.1
_MAX_BYTES = 4 << 20
# Bodies are read with the leases that are handed back, so these come in small parts.
_HANDED_BACK = 16


class Leaser:
    """One schedule on one node. Thread-safe."""

    def __init__(self, name: str, context: DeliveryContext) -> None:
        self._name = name
        self._context = context
        self._store = context.store
        self._changed = threading.Condition()
        self._claims = Claims()
        self._settings: Schedule | None = None
        self._dealt: dict[str, tuple[int, int]] = {}
        self._attended: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")
        # Held by the thread that looks and leases: this one, or one that pulls.
        self._turns = threading.Lock()
        self._ended: StrandlineError | None = None
        self._agenda = Agenda()
        # Whether anybody could take a lease, when that was last looked at.
        self._hungry = False
        self._failing = False

    # -- consumers

    def open_push(self, consumer: str, lease_ms: int, credit: int, listener: PushListener) -> PushClaim:
        self._check(lease_ms)
        epoch = self._store.sessions.open(self._name, consumer, self._context.node)
        claim = PushClaim(consumer, lease_ms, epoch, credit, listener)
        with self._changed:
            self._refuse_ended()
            fenced = self._claims.add_push(claim)
            self._agenda.refresh_at = 0
            self._wake()
        if fenced is not None:
            _call(fenced.listener.fenced)
        return claim

    def close_push(self, claim: PushClaim) -> None:
        with self._changed:
            self._claims.remove_push(claim)
            unsent = claim.take_unsent()
            self._agenda.refresh_at = 0
            self._changed.notify()
        self.give_back(unsent)
        self._store.sessions.close(self._name, claim.consumer, claim.epoch)

    def set_credit(self, claim: PushClaim, credit: int) -> None:
        with self._changed:
            more = credit > claim.credit
            claim.credit = credit
            if more:
                self._wake()

    def sent(self, claim: PushClaim, leases: Sequence[Lease]) -> None:
        with self._changed:
            was_full = not claim.free(self._context.clocks.now_ms())
            claim.sent(leases)
            if was_full and claim.free(self._context.clocks.now_ms()):
                self._wake()

    def start_pull(
        self, consumer: str, lease_ms: int, limit: int, wait_ms: int, done: Pulled
    ) -> Callable[[], None]:
        self._check(lease_ms)
        now = self._context.clocks.steady()
        self._attend(consumer, now)
        claim = PullClaim(consumer, lease_ms, limit, now + wait_ms, done)
        with self._changed:
            self._refuse_ended()
            self._claims.pulls.append(claim)
            self._agenda.lease = True
        self._help()
        return lambda: self._cancel(claim)

    def _attend(self, consumer: str, now: int) -> None:
        if self._attended.get(consumer, -_ATTEND_MS) + _ATTEND_MS > now:
            return
        self._store.sessions.attend(self._name, consumer, PULL_LIVES_MS + _ATTEND_MS)
        with self._changed:
            self._attended = {who: at for who, at in self._attended.items() if at > now - PULL_LIVES_MS}
            self._attended[consumer] = now
            if consumer not in self._dealt:
                self._agenda.refresh_at = 0

    def _cancel(self, claim: PullClaim) -> None:
        with self._changed:
            waited = self._claims.remove_pull(claim)
        if waited:
            claim.done(())

    def _check(self, lease_ms: int) -> None:
        """Refuse only after a look at the current settings."""
        known = self._settings
        if known is None or not rules.SHORTEST_MS < lease_ms <= known.max_lease_ms:
            rules.check_lease_ms(self._read_settings(), lease_ms)

    def _read_settings(self) -> Schedule:
        found = self._settings = self._store.get(self._name)
        if found is None:
            missing = NotFound(f"there is no schedule {self._name!r}; create it first")
            self.end(missing)
            raise missing
        return found

    def check(self, lease_ms: int) -> None:
        """BadTimestamp if a lease cannot have this length; Unavailable while this node must not give leases."""
        self._check(lease_ms)
        if problem := self._context.problem(self.longest_ms):
            raise _degraded(problem)

    @property
    def longest_ms(self) -> int:
        """The longest lease, as far as this process knows."""
        return (self._settings or Schedule(self._name)).max_lease_ms

    # -- changes of messages, by this process and by others

    def expect(self, at_ms: int) -> None:
        """A message becomes available at that time."""
        with self._changed:
            if self._hungry and self._agenda.expect(at_ms):
                self._changed.notify()

    def look(self) -> None:
        """Something may have changed."""
        with self._changed:
            self._agenda.look = True
            self._changed.notify()

    def extended(self, act: LeaseAct, version: int, at_ms: int) -> None:
        with self._changed:
            if push := self._claims.pushes.get(act.consumer):
                push.extended(act.id, version, at_ms)

    def dropped(self, act: LeaseAct, version: int) -> None:
        """The consumer does not hold the message any more."""
        with self._changed:
            push = self._claims.pushes.get(act.consumer)
            if push is None or act.id not in push.held:
                return
            now_ms = self._context.clocks.now_ms()
            was_full, had_many_free = not push.free(now_ms), push.has_many_free(now_ms)
            push.drop(act.id, version)
            if push.has_many_free(now_ms) and not had_many_free:
                self._wake()
            elif was_full:  # a few places are filled together
                self._agenda.expect(0)
                self._wake_thread()

    def end(self, error: StrandlineError) -> None:
        """The schedule is deleted, or the node closes: end all pulls with the error, and all sessions."""
        with self._changed:
            self._ended = error
            pulls, self._claims.pulls = self._claims.pulls, []
            pushes = [*self._claims.pushes.values()]
            for push in pushes:
                self._claims.remove_push(push)
            self._changed.notify()
        for pull in pulls:
            _call(pull.done, error)
        for push in pushes:
            _call(push.listener.fenced)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def join(self) -> None:
        """Wait until no thread uses the store any more, after `end`."""
        thread = self._thread
        if thread is not None:
            thread.join()
        with self._turns:
            pass

    # -- the thread

    def _refuse_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _wake(self) -> None:
        """Somebody may take more leases. The caller holds the lock."""
        self._agenda.lease = True
        self._wake_thread()

    def _wake_thread(self) -> None:
        """Let the thread see that it has something to do earlier than it knows. The caller holds the lock."""
        if self._thread is None and self._ended is None:
            self._thread = threading.Thread(target=self._run, name=f"strandline-leaser-{self._name}", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _help(self) -> None:
        """Do the work of the thread now, unless another thread does it: most pulls are answered without a wait."""
        if self._turns.acquire(blocking=False):
            try:
                self._try_turn()
            finally:
                self._turns.release()
        with self._changed:
            now = time.monotonic()
            if self._claims and now + self._seconds_left(now) < self._wakes_at:
                self._wake_thread()

    def _run(self) -> None:
        while self._wait():
            with self._turns:
                self._try_turn()
        self._context.news.unwant(self._name)

    def _try_turn(self) -> None:
        try:
            self._turn()
            self._failing = False
        except Exception as error:  # all consumers depend on this, so it goes on
            if not self._failing:  # logged once, not on every attempt
                expected = isinstance(error, StrandlineError)
                log.warning("leasing of %s failed; retrying: %s", self._name, error, exc_info=not expected)
            self._failing = True
            self._failed(error)

    def _wait(self) -> bool:
        """Wait until there is something to do; False if the thread must end."""
        idle_from = time.monotonic()
        with self._changed:
            while True:
                now = time.monotonic()
                if self._ended is not None or (not self._claims and now - idle_from > _IDLE_SECONDS):
                    self._thread = None
                    self._wakes_at = float("inf")
                    return False
                wait = self._seconds_left(now)
                if wait <= 0:
                    return True
                self._wakes_at = now + wait
                self._changed.wait(min(wait, _LONGEST_WAIT_SECONDS) if self._claims else _IDLE_SECONDS)

    def _seconds_left(self, now: float) -> float:
        if not self._claims:
            return float("inf")
        clocks = self._context.clocks
        left = self._agenda.seconds_left(now, clocks.now_ms())
        if not self._claims.pulls or now < self._agenda.not_before:
            return left
        return min(left, (min(pull.ends_ms for pull in self._claims.pulls) - clocks.steady()) / 1000)

    def _turn(self) -> None:
        if time.monotonic() >= self._agenda.refresh_at:
            self._refresh()
        if problem := self._context.problem(self.longest_ms):
            self._end_pulls(_degraded(problem))
            self._agenda.not_before = time.monotonic() + _RETRY_SECONDS
            return
        with self._changed:
            now_ms = self._context.clocks.now_ms()
            leasing = self._agenda.begin(now_ms) or self._claims.untried()
            returning = [push for push in self._claims.pushes.values() if push.returning and push.free(now_ms)]
            takers = self._claims.takers(self._dealt, now_ms)
        for push in returning:
            self._hand_back(push)
        leased = self._lease_due(takers) if takers and leasing else None
        self._end_pulls(())
        if leased is not None and leased.leases:
            self._plan_more()
        else:
            self._plan(tried_ms=0 if leased is None else leased.now_ms or now_ms)

    def _refresh(self) -> None:
        """Read the settings and who is there, deal the buckets, and find sessions that were fenced."""
        self._agenda.refresh_at = time.monotonic() + _REFRESH_SECONDS
        settings = self._read_settings()
        present = self._store.sessions.present(self._name)
        with self._changed:
            self._dealt = deal(settings.buckets, [*present])
            newer = {who for who, push in self._claims.pushes.items() if present.get(who, 0) > push.epoch}
        self._fence(newer)

    def _fence(self, consumers: Sequence[str] | set[str] | frozenset[str]) -> None:
        with self._changed:
            fenced = [push for who in consumers if (push := self._claims.pushes.get(who))]
            for push in fenced:
                self._claims.remove_push(push)
        for push in fenced:
            _call(push.listener.fenced)

    def _hand_back(self, push: PushClaim) -> None:
        with self._changed:
            free = min(push.free(self._context.clocks.now_ms()), _HANDED_BACK)
            known = frozenset(push.held)
        returned = self._store.due.hand_back(self._name, push.consumer, push.epoch, free, known)
        with self._changed:
            push.returning = len(returned.leases) == free and not returned.fenced
            self._agenda.lease = True
            if is_open := self._claims.is_open(push):
                push.take(returned.leases)
        failpoints.hit("schedule.handed_back")
        pushed, unwanted = ([(push, returned.leases)], []) if is_open else ([], returned.leases)
        self._deliver(PlacedLeases(pushed, [], unwanted))
        self._fence(returned.fenced)

    def _lease_due(self, takers: Sequence[Taker]) -> Leased:
        clocks, longest_ms = self._context.clocks, self.longest_ms
        sent = clocks.steady()
        self._agenda.leased_at = time.monotonic()

        def may(store_ms: int) -> bool:
            clocks.store_time.observe(sent, store_ms, clocks.steady())
            return clocks.store_time.held_ms(longest_ms) == 0

        leased = self._store.due.lease(self._name, takers, _MAX_BYTES, may)
        failpoints.hit("schedule.leased")
        self._context.count(self._name, leased)
        with self._changed:
            placed = self._claims.place(takers, leased.leases)
        self._deliver(placed)
        self._fence(leased.fenced)
        return leased

    def _deliver(self, placed: PlacedLeases) -> None:
        """Hand leases over. A lease that has expired meanwhile, because this process was paused, is not sent."""
        now_ms = self._context.clocks.now_ms()
        for push, leases in placed.pushed:
            if active := [lease for lease in leases if lease.message.at_ms > now_ms]:
                _call(push.listener.leased, active)
        for pull, leases in placed.pulled:
            _call(pull.done, [lease for lease in leases if lease.message.at_ms > now_ms])
        failpoints.hit("schedule.delivered")
        self.give_back(placed.unwanted)

    def give_back(self, leases: Sequence[Lease]) -> None:
        """End leases that no consumer has seen."""
        if not leases:
            return
        acts = [LeaseAct(one.message.id, one.message.consumer or "", one.message.version) for one in leases]
        self._store.due.give_back(self._name, acts)
        self.expect(min(lease.message.due_ms for lease in leases))
        self._context.news.announce(self._name)

    def _end_pulls(self, answer: Sequence[Lease] | StrandlineError) -> None:
        with self._changed:
            if isinstance(answer, StrandlineError):
                for pull in self._claims.pulls:
                    pull.tried = True
            ended = self._claims.ended_pulls(self._context.clocks.steady())
        for pull in ended:
            _call(pull.done, answer)

    def _plan_more(self) -> None:
        """Messages were leased, and there may be more: lease again soon, without a look."""
        with self._changed:
            self._agenda.wait_for(0 if self._is_hungry() else self._freed_ms())

    def _plan(self, tried_ms: int) -> None:
        """Look when the next message is due. Messages that were due at `tried_ms` are reserved for others."""
        with self._changed:
            self._agenda.wait_for(self._freed_ms())
            if not self._is_hungry() or self._agenda.lease:
                return
        # Before the look, so that no change between the look and the next wait is missed.
        self._context.news.want(self._name, self.look)
        clocks = self._context.clocks
        sent = clocks.steady()
        found = self._store.due.next_due(self._name)
        clocks.store_time.observe(sent, found.now_ms, clocks.steady())
        due_ms = found.next_ms or NEVER_MS
        if found.oldest_ms is not None:
            due_ms = min(due_ms, found.oldest_ms + (GRACE_MS if found.oldest_ms <= tried_ms else 0))
        with self._changed:
            self._agenda.wait_for(
                min(self._agenda.due_ms, due_ms), time.monotonic() + self._context.news.look_seconds
            )

    def _freed_ms(self) -> int:
        """When the first session that is full gets a place back by itself."""
        ends = (push.frees_at_ms() for push in self._claims.pushes.values())
        return min((at_ms for at_ms in ends if at_ms is not None), default=NEVER_MS)

    def _is_hungry(self) -> bool:
        """Whether anybody could take a lease now. News are only wanted if so."""
        was_hungry, self._hungry = self._hungry, self._claims.hungry(self._context.clocks.now_ms())
        if was_hungry and not self._hungry:
            self._context.news.unwant(self._name)
        return self._hungry

    def _failed(self, error: Exception) -> None:
        """A statement failed: pulls get the error; leases that may be stored are handed back to sessions."""
        known = error if isinstance(error, StrandlineError) else Unavailable("leasing failed; see the log")
        with self._changed:
            pulls = [pull for pull in self._claims.pulls if pull.tried]
            for pull in pulls:
                self._claims.remove_pull(pull)
            for push in self._claims.pushes.values():
                push.returning = True
            self._agenda.lease = True
            self._agenda.not_before = time.monotonic() + _RETRY_SECONDS
        for pull in pulls:
            _call(pull.done, known)


def _call(receiver: Callable[..., None], *values: object) -> None:
    """A receiver that fails must not keep the others from their leases."""
    try:
        receiver(*values)
    except Exception:
        log.exception("a consumer could not be told about its leases")


def _degraded(problem: str) -> Unavailable:
    return Unavailable(f"this node gives no leases: {problem}", retry_after=1)
