"""What a leaser does in one turn: hand leases back, lease, deliver, end pulls, and plan the next turn.

One thread at a time takes a turn. It holds the lock while it changes what others see, but not during a statement.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from strandline import failpoints
from strandline.errors import NotFound, StrandlineError, Unavailable
from strandline.schedule.agenda import NEVER_MS, Agenda
from strandline.schedule.claims import Claims, PlacedLeases, PushClaim
from strandline.schedule.context import DeliveryContext
from strandline.schedule.dealing import GRACE_MS, deal
from strandline.schedule.model import Lease, LeaseAct, Leased, Schedule, Taker

log = logging.getLogger(__name__)

#: A consumer that pulls counts as there for this long after its last call.
PULL_LIVES_MS = 30_000
# Presence is written again after this time, not with every pull.
_ATTEND_MS = 5_000
# How often to look for other sessions and changed settings.
_REFRESH_SECONDS = 1.0
_RETRY_SECONDS = 0.1
_MAX_BYTES = 4 << 20
# Bodies are read with the leases that are handed back, so these come in small parts.
_HANDED_BACK = 16
# How many messages may become dead in one statement, if some have become dead in the one before.
_DEAD_AT_ONCE = 500
# How many leases are compared with the store at a time.
_COMPARED = 500


class LeaseDelivery:
    """The claims to messages of one schedule on this node, and the work for them.

    `changed` is the lock of `claims`, `agenda` and the other attributes. It is notified if a turn is due earlier.
    """

    def __init__(self, name: str, context: DeliveryContext) -> None:
        self.name = name
        self.context = context
        self._store = context.store
        self.changed = threading.Condition()
        self.claims = Claims()
        self.agenda = Agenda()
        self.settings: Schedule | None = None
        # When the settings were read, and when this node last replaced them.
        self._settings_at = self._replaced_at = float("-inf")
        self.dealt: dict[str, tuple[int, int]] = {}
        #: When the consumers that pull from this node have last written that they are there, on the steady clock.
        self.attended: dict[str, int] = {}
        #: Why there are no more turns.
        self.ended: StrandlineError | None = None
        # Whether anybody could take a lease, when that was last looked at.
        self._hungry = False
        self._failing = False
        # How many messages the next statement may look at beyond those that consumers can take.
        self._beyond = 0

    # -- what others know and change

    def known_settings(self) -> Schedule | None:
        """The settings, unless another node can have changed them a while ago."""
        oldest = max(self._replaced_at, time.monotonic() - _REFRESH_SECONDS)
        return self.settings if self._settings_at > oldest else None

    def forget_settings(self) -> None:
        """They were replaced."""
        self._replaced_at = time.monotonic()

    def read_settings(self) -> Schedule:
        read_at = time.monotonic()
        found = self.settings = self._store.get(self.name)
        self._settings_at = read_at
        if found is None:
            missing = NotFound(f"there is no schedule {self.name!r}; create it first")
            self.end(missing)
            raise missing
        return found

    @property
    def longest_ms(self) -> int:
        """The longest lease, as far as this process knows."""
        return (self.settings or Schedule(self.name)).max_lease_ms

    def expect(self, at_ms: int) -> None:
        """A message becomes available at that time."""
        if not self._hungry:  # a leaser that becomes hungry looks at the store after that
            return
        with self.changed:
            if self._hungry and self.agenda.expect(at_ms):
                self.changed.notify()

    def look(self) -> None:
        """Something may have changed."""
        with self.changed:
            self.agenda.look = True
            self.changed.notify()

    def end(self, error: StrandlineError) -> None:
        """The schedule is deleted, or the node closes: end all pulls with the error, and all sessions."""
        with self.changed:
            self.ended = error
            pulls, self.claims.pulls = self.claims.pulls, []
            pushes = [*self.claims.pushes.values()]
            for push in pushes:
                self.claims.remove_push(push)
            self.changed.notify()
        for pull in pulls:
            call(pull.done, error)
        for push in pushes:
            call(push.listener.fenced)

    def attend(self, consumer: str, now: int) -> None:
        """Let other nodes know that a consumer pulls here."""
        if self.attended.get(consumer, -_ATTEND_MS) + _ATTEND_MS > now:
            return
        self._store.sessions.attend(self.name, consumer, PULL_LIVES_MS + _ATTEND_MS)
        with self.changed:
            for who in [who for who, at in self.attended.items() if at <= now - PULL_LIVES_MS]:
                del self.attended[who]
            self.attended[consumer] = now
            if consumer not in self.dealt:
                self.agenda.refresh_at = 0

    def give_back(self, leases: Sequence[Lease]) -> None:
        """End leases that no consumer has seen."""
        if not leases:
            return
        acts = [LeaseAct(one.message.id, one.message.consumer or "", one.message.version) for one in leases]
        self._store.due.give_back(self.name, acts)
        self.expect(min(lease.message.due_ms for lease in leases))
        self.context.news.announce(self.name)

    # -- a turn

    def turn(self) -> None:
        """Do what is to be done now. One thread at a time calls this."""
        try:
            self._turn()
            self._failing = False
        except Exception as error:  # all consumers depend on this, so it goes on
            if not self._failing:  # logged once, not on every attempt
                expected = isinstance(error, StrandlineError)
                log.warning("leasing of %s failed; retrying: %s", self.name, error, exc_info=not expected)
            self._failing = True
            self._failed(error)

    def _turn(self) -> None:
        if time.monotonic() >= self.agenda.refresh_at:
            self._refresh()
        if problem := self.context.problem(self.longest_ms):
            self._end_pulls(degraded(problem))
            self.agenda.not_before = time.monotonic() + _RETRY_SECONDS
            return
        with self.changed:
            now_ms = self.context.clocks.now_ms()
            leasing = self.agenda.begin(now_ms) or self.claims.untried()
            returning = [push for push in self.claims.pushes.values() if push.returning and push.free(now_ms)]
            takers = self.claims.takers(self.dealt, now_ms)
        for push in returning:
            self._hand_back(push)
        leased = self._lease_due(takers) if takers and leasing else None
        if leased is not None and leased.dead and not leased.leases:
            with self.changed:
                self.agenda.lease = True  # pulls do not end: other messages may be due behind the dead ones
            return
        self._keep_pulls()
        self._end_pulls(())
        if leased is not None and leased.leases:
            self._plan_more()
        else:
            self._plan(tried_ms=0 if leased is None else leased.now_ms or now_ms)

    def _refresh(self) -> None:
        """Read the settings and who is there, deal the buckets, and find sessions that were fenced."""
        self.agenda.refresh_at = time.monotonic() + _REFRESH_SECONDS
        settings = self.read_settings()
        with self.changed:
            pulling = {pull.consumer for pull in self.claims.pulls}
        for consumer in pulling:  # a pull may last longer than it counts as there
            self.attend(consumer, self.context.clocks.steady())
        present = self._store.sessions.present(self.name)
        with self.changed:
            self.dealt = deal(settings.buckets, [*present])
            newer = {who for who, push in self.claims.pushes.items() if present.get(who, 0) > push.epoch}
        self._fence(newer)
        if self.context.clocks.has_peers:
            self._find_ended()

    def _find_ended(self) -> None:
        """Find leases of full sessions that were ended or extended through other nodes."""
        with self.changed:
            known = self.claims.in_full_sessions(self.context.clocks.now_ms(), _COMPARED)
        if known:
            held = self._store.due.still_held(self.name, known)
            with self.changed:
                self.claims.compare(known, held)
                self.agenda.lease = True

    def _fence(self, consumers: Sequence[str] | set[str] | frozenset[str]) -> None:
        with self.changed:
            fenced = [push for who in consumers if (push := self.claims.pushes.get(who))]
            for push in fenced:
                self.claims.remove_push(push)
        for push in fenced:
            call(push.listener.fenced)

    def _hand_back(self, push: PushClaim) -> None:
        with self.changed:
            free = min(push.free(self.context.clocks.now_ms()), _HANDED_BACK)
            known = frozenset(push.held)
        returned = self._store.due.hand_back(self.name, push.consumer, push.epoch, free, known)
        with self.changed:
            push.returning = len(returned.leases) == free and not returned.fenced
            self.agenda.lease = True
            if is_open := self.claims.is_open(push):
                push.take(returned.leases, new=False)
        failpoints.hit("schedule.handed_back")
        # If the session has ended, the consumer keeps its leases: it got them in an earlier session and may be at
        # work. They are handed back to its next session, or expire.
        self._deliver(PlacedLeases([(push, returned.leases)] if is_open else [], [], []))
        self._fence(returned.fenced)

    def _busy(self, takers: Sequence[Taker]) -> list[Taker]:
        """The consumers of this node that take nothing now."""
        with self.changed:
            here = (self.claims.pushes.keys() | self.attended.keys()) & self.dealt.keys()
            others = here - {taker.consumer for taker in takers}
            return [Taker(who, 0, 0, *self.dealt[who]) for who in others]

    def _lease_due(self, takers: Sequence[Taker]) -> Leased:
        clocks, longest_ms = self.context.clocks, self.longest_ms
        sent = clocks.steady()
        self.agenda.leased_at = time.monotonic()

        def may(store_ms: int) -> bool:
            clocks.store_time.observe(sent, store_ms, clocks.steady())
            return clocks.store_time.held_ms(longest_ms) == 0

        takers_and_busy = [*takers, *self._busy(takers)]
        leased = self._store.due.lease(self.name, takers_and_busy, _MAX_BYTES, may, beyond=self._beyond)
        self._beyond = _DEAD_AT_ONCE if leased.dead else 0
        failpoints.hit("schedule.leased")
        self.context.count(self.name, leased)
        with self.changed:
            placed = self.claims.place(takers, leased.leases)
        self._deliver(placed)
        self._fence(leased.fenced)
        return leased

    def _deliver(self, placed: PlacedLeases) -> None:
        """Hand leases over. Those that have expired meanwhile, because this process was paused, are given back."""
        now_ms = self.context.clocks.now_ms()
        unseen = [*placed.unwanted]
        for push, leases in placed.pushed:
            active, expired = _split(leases, now_ms)
            with self.changed:
                unseen += [lease for lease in expired if push.take_back(lease, now_ms)]
            if active:
                call(push.listener.leased, active)
        for pull, leases in placed.pulled:
            active, expired = _split(leases, now_ms)
            unseen += expired
            call(pull.done, active)
        failpoints.hit("schedule.delivered")
        self.give_back(unseen)

    def _keep_pulls(self) -> None:
        """A pull does not end without messages that are reserved for others: it waits until they are not."""
        if not self.claims.pulls:
            return
        with self.changed:
            ending = [pull for pull in self.claims.ending_pulls(self.context.clocks.steady()) if not pull.kept]
        if ending and self._store.due.next_due(self.name).oldest_ms is not None:
            with self.changed:
                for pull in ending:
                    pull.kept = True
                    pull.ends_ms = self.context.clocks.steady() + 2 * GRACE_MS

    def _end_pulls(self, answer: Sequence[Lease] | StrandlineError) -> None:
        if not self.claims.pulls:
            return
        with self.changed:
            if isinstance(answer, StrandlineError):
                for pull in self.claims.pulls:
                    pull.tried = True
            ended = self.claims.ended_pulls(self.context.clocks.steady())
        for pull in ended:
            call(pull.done, answer)

    def _plan_more(self) -> None:
        """Messages were leased, and there may be more: lease again soon, without a look."""
        with self.changed:
            self.agenda.wait_for(0 if self._is_hungry() else self._freed_ms())

    def _plan(self, tried_ms: int) -> None:
        """Look when the next message is due. Messages that were due at `tried_ms` are reserved for others."""
        with self.changed:
            self.agenda.wait_for(self._freed_ms())
            if not self._is_hungry() or self.agenda.lease:
                return
        # Before the look, so that no change between the look and the next wait is missed.
        self.context.news.want(self.name, self.look)
        clocks = self.context.clocks
        sent = clocks.steady()
        found = self._store.due.next_due(self.name)
        clocks.store_time.observe(sent, found.now_ms, clocks.steady())
        due_ms = found.next_ms or NEVER_MS
        if found.oldest_ms is not None:
            due_ms = min(due_ms, found.oldest_ms + (GRACE_MS if found.oldest_ms <= tried_ms else 0))
        with self.changed:
            self.agenda.wait_for(
                min(self.agenda.due_ms, due_ms), time.monotonic() + self.context.news.look_seconds
            )

    def _freed_ms(self) -> int:
        """When the first session that is full gets a place back by itself."""
        ends = (push.frees_at_ms() for push in self.claims.pushes.values())
        return min((at_ms for at_ms in ends if at_ms is not None), default=NEVER_MS)

    def _is_hungry(self) -> bool:
        """Whether anybody could take a lease now. News are only wanted if so."""
        was_hungry, self._hungry = self._hungry, self.claims.hungry(self.context.clocks.now_ms())
        if was_hungry and not self._hungry:
            self.context.news.unwant(self.name)
        return self._hungry

    def _failed(self, error: Exception) -> None:
        """A statement failed: pulls get the error; leases that may be stored are handed back to sessions."""
        known = error if isinstance(error, StrandlineError) else Unavailable("leasing failed; see the log")
        with self.changed:
            pulls = [pull for pull in self.claims.pulls if pull.tried]
            for pull in pulls:
                self.claims.remove_pull(pull)
            for push in self.claims.pushes.values():
                push.returning = True
            self.agenda.lease = True
            self.agenda.not_before = time.monotonic() + _RETRY_SECONDS
        for pull in pulls:
            call(pull.done, known)


def _split(leases: Sequence[Lease], now_ms: int) -> tuple[list[Lease], list[Lease]]:
    """The active leases and the expired ones."""
    active = [lease for lease in leases if lease.message.at_ms > now_ms]
    return active, [lease for lease in leases if lease.message.at_ms <= now_ms]


def call(receiver: Callable[..., None], *values: object) -> None:
    """A receiver that fails must not keep the others from their leases."""
    try:
        receiver(*values)
    except Exception:
        log.exception("a consumer could not be told about its leases")


def degraded(problem: str) -> Unavailable:
    return Unavailable(f"this node gives no leases: {problem}", retry_after=1)
