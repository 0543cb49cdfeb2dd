"""Who waits for leases of one schedule on this node: push sessions and pulls. No thread and no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from strandline.schedule.model import Lease, LeaseAct, StoredMessage, Taker
from strandline.schedule.serving import Pulled, PushListener

# While this much waits to be sent to a session, nothing more is leased for it.
_MAX_UNSENT_BYTES = 1 << 20
# What a lease needs beside its body.
_LEASE_BYTES = 512
_NO_BUCKETS = (0, -1)


def _key(lease: Lease) -> tuple[str, int]:
    return lease.message.id, lease.message.version


def _size_of(leases: Iterable[Lease]) -> int:
    return sum(len(lease.body.content) + _LEASE_BYTES for lease in leases)


@dataclass(eq=False)
class PushClaim:
    """A push session: the leases that its consumer holds, as far as this node knows, and its credit."""

    consumer: str
    lease_ms: int
    epoch: int
    credit: int
    listener: PushListener
    #: Whether active leases of an earlier session may still have to be handed back.
    returning: bool = True
    #: With each lease whether it is new, so that no consumer has seen it.
    _unsent: dict[tuple[str, int], tuple[Lease, bool]] = field(default_factory=dict)
    _unsent_bytes: int = 0
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)
    _first_end_ms: int = 0

    @property
    def held(self) -> Mapping[str, object]:
        """The messages that the consumer holds, by id."""
        return self._held

    def free(self, now_ms: int) -> int:
        """How many more leases it may get now. Expired leases give their places back."""
        if self._first_end_ms <= now_ms and self._held:
            self._held = {name: one for name, one in self._held.items() if one[1] > now_ms}
            self._first_end_ms = min((one[1] for one in self._held.values()), default=0)
        return max(0, self.credit - len(self._held)) if self._unsent_bytes < _MAX_UNSENT_BYTES else 0

    def has_many_free(self, now_ms: int) -> bool:
        """Whether a quarter of its places is free: with fewer, its consumer has enough to do for the moment."""
        return 4 * self.free(now_ms) >= self.credit > 0

    def frees_at_ms(self) -> int | None:
        """When a lease expires next, if its place is needed."""
        full = len(self._held) >= self.credit > 0
        return self._first_end_ms if full and self._held else None

    def some_held(self, most: int) -> list[LeaseAct]:
        """Some leases as far as this node knows them; the next call begins with others."""
        chosen = [*islice(self._held.items(), most)]
        for name, one in chosen:
            del self._held[name]
            self._held[name] = one
        return [LeaseAct(name, self.consumer, version) for name, (version, _) in chosen]

    def take(self, leases: Sequence[Lease], *, new: bool = True) -> None:
        """The session gets these leases; they wait to be sent. Those that are handed back are not new."""
        for lease in leases:
            self.keep(lease.message.id, lease.message.version, lease.message.at_ms)
            self._unsent[_key(lease)] = (lease, new)
        self._unsent_bytes += _size_of(leases)

    def sent(self, leases: Iterable[Lease]) -> None:
        self._unsent_bytes -= _size_of(one[0] for lease in leases if (one := self._unsent.pop(_key(lease), None)))

    def take_unsent(self) -> list[Lease]:
        """The new leases that were never sent; all unsent ones are forgotten here."""
        unsent, self._unsent = self._unsent, {}
        return [lease for lease, new in unsent.values() if new]

    def take_back(self, lease: Lease, now_ms: int) -> bool:
        """Take a lease that was not sent from the session, if it is beyond the credit or has expired.

        Returns whether its consumer has never seen it, so that it must be given back.
        """
        _, new = self._unsent.get(_key(lease), (lease, False))
        expired = lease.message.at_ms <= now_ms
        if expired or (new and len(self._held) > self.credit):
            self.sent([lease])
            if new:
                self.drop(lease.message.id, lease.message.version)
                return True
        return False

    def keep(self, message_id: str, version: int, at_ms: int) -> None:
        if not self._held or at_ms < self._first_end_ms:
            self._first_end_ms = at_ms
        self._held[message_id] = (version, at_ms)

    def extended(self, message_id: str, version: int, at_ms: int) -> None:
        if message_id in self._held and self._held[message_id][0] < version:
            self.keep(message_id, version, at_ms)

    def drop(self, message_id: str, version: int) -> None:
        """The lease ended with this version. A newer lease of the same message stays."""
        if message_id in self._held and self._held[message_id][0] <= version:
            del self._held[message_id]


@dataclass(eq=False)
class PullClaim:
    """A pull that waits; `ends_ms` is on the steady clock."""

    consumer: str
    lease_ms: int
    limit: int
    ends_ms: int
    done: Pulled
    #: Whether the store was asked for it at least once.
    tried: bool = False
    #: Whether it waits longer than it was asked to, for messages that are reserved for others.
    kept: bool = False


@dataclass(frozen=True)
class PlacedLeases:
    """Leases by receiver, and the leases that nobody waits for any more."""

    pushed: list[tuple[PushClaim, list[Lease]]]
    pulled: list[tuple[PullClaim, list[Lease]]]
    unwanted: list[Lease]


class Claims:
    """The claims of one schedule. The owner serialises all calls."""

    def __init__(self) -> None:
        self.pushes: dict[str, PushClaim] = {}
        self.pulls: list[PullClaim] = []
        self._postponed: list[PullClaim] = []

    def __bool__(self) -> bool:
        return bool(self.pushes or self.pulls)

    def add_push(self, claim: PushClaim) -> PushClaim | None:
        """Add a session; returns the older session of the same consumer, which is removed."""
        before = self.pushes.get(claim.consumer)
        if before is not None and before.epoch > claim.epoch:
            return claim
        self.pushes[claim.consumer] = claim
        return before

    def is_open(self, claim: PushClaim) -> bool:
        return self.pushes.get(claim.consumer) is claim

    def remove_push(self, claim: PushClaim) -> None:
        if self.is_open(claim):
            del self.pushes[claim.consumer]

    def remove_pull(self, claim: PullClaim) -> bool:
        """Returns whether the pull was still waiting."""
        if claim in self.pulls:
            self.pulls.remove(claim)
            return True
        return False

    def hungry(self, now_ms: int) -> bool:
        """Whether anybody could take a lease."""
        return bool(self.pulls) or any(push.free(now_ms) for push in self.pushes.values())

    def in_full_sessions(self, now_ms: int, most: int) -> list[LeaseAct]:
        """Leases of the sessions that have no free place, as far as this node knows; not all if they are many."""
        full = [push for push in self.pushes.values() if push.credit > 0 and not push.free(now_ms)]
        return [lease for push in full for lease in push.some_held(max(1, most // len(full)))][:most]

    def compare(self, known: Sequence[LeaseAct], held: Iterable[StoredMessage]) -> None:
        """Take over what the store says about leases. Those that are not held give their places back."""
        found = {(one.consumer, one.id): one for one in held}
        for lease in known:
            push = self.pushes.get(lease.consumer)
            message = found.get((lease.consumer, lease.id))
            if push is not None and message is not None:
                push.extended(lease.id, message.version, message.at_ms)
            elif push is not None:
                push.drop(lease.id, lease.version)

    def untried(self) -> bool:
        return not all(pull.tried for pull in self.pulls)

    def takers(self, dealt: Mapping[str, tuple[int, int]], now_ms: int) -> list[Taker]:
        """The claims as takers of one lease statement: one for each consumer.

        Pulls of a consumer are combined. A pull that differs from the first in its lease time, and the pulls of a
        consumer whose push session has free places, wait for another statement.
        """
        found = {
            push.consumer: Taker(
                push.consumer, free, push.lease_ms, *dealt.get(push.consumer, _NO_BUCKETS), push.epoch
            )
            for push in self.pushes.values()
            if not push.returning and (free := push.free(now_ms)) > 0
        }
        self._postponed = []
        for pull in self.pulls:
            first = found.get(pull.consumer)
            if first is not None and (first.epoch is not None or first.lease_ms != pull.lease_ms):
                self._postponed.append(pull)
            else:
                credit = pull.limit + (first.credit if first else 0)
                buckets = dealt.get(pull.consumer, _NO_BUCKETS)
                found[pull.consumer] = Taker(pull.consumer, credit, pull.lease_ms, *buckets)
                pull.tried = True
        return [*found.values()]

    def place(self, takers: Sequence[Taker], leases: Sequence[Lease]) -> PlacedLeases:
        """Give new leases to those who asked for them; the pulls that get some are removed."""
        of: dict[str, list[Lease]] = {}
        for lease in leases:
            of.setdefault(lease.message.consumer or "", []).append(lease)
        pushed: list[tuple[PushClaim, list[Lease]]] = []
        pulled: list[tuple[PullClaim, list[Lease]]] = []
        unwanted: list[Lease] = []
        for taker in takers:
            found = of.get(taker.consumer, [])
            push = self.pushes.get(taker.consumer)
            if taker.epoch is None:
                found = self._place_pulls(taker, found, pulled)
            elif push is not None and push.epoch == taker.epoch:
                most = max(0, push.credit - len(push.held))  # it may want fewer by now
                push.take(found[:most])
                pushed += [(push, found[:most])] if found[:most] else []
                found = found[most:]
            unwanted += found
        for pull in () if leases else self._postponed:
            pull.tried = True  # nothing is due that it could get
        return PlacedLeases(pushed, pulled, unwanted)

    def _place_pulls(
        self, taker: Taker, leases: list[Lease], pulled: list[tuple[PullClaim, list[Lease]]]
    ) -> list[Lease]:
        """Returns the leases that are left."""
        for pull in [*self.pulls]:
            if leases and pull.consumer == taker.consumer and pull.lease_ms == taker.lease_ms:
                pulled.append((pull, leases[: pull.limit]))
                leases = leases[pull.limit :]
                self.pulls.remove(pull)
        return leases

    def ending_pulls(self, now_ms: int) -> list[PullClaim]:
        """The pulls whose time is over; a pull is tried at least once."""
        return [pull for pull in self.pulls if pull.tried and pull.ends_ms <= now_ms]

    def ended_pulls(self, now_ms: int) -> list[PullClaim]:
        """Remove and return the pulls whose time is over."""
        ended = {*self.ending_pulls(now_ms)}
        self.pulls = [pull for pull in self.pulls if pull not in ended]
        return [*ended]
