"""When a leaser works next. No thread and no I/O: the times are arguments."""

from __future__ import annotations

from dataclasses import dataclass

NEVER_MS = 1 << 62
_NEVER = float("inf")
# Messages that become due one after the other are leased together: each statement costs a commit.
_PACE_SECONDS = 0.005


@dataclass
class Agenda:
    """`…_ms` are times of the store; the others are seconds on the monotonic clock."""

    #: Lease now: somebody may take more.
    lease: bool = False
    #: Look soon: something may have changed.
    look: bool = False
    #: When the next message is due, or a place becomes free.
    due_ms: int = NEVER_MS
    look_at: float = _NEVER
    #: When to read again who is there.
    refresh_at: float = 0.0
    #: After a failure nothing is done before this time.
    not_before: float = 0.0
    leased_at: float = 0.0

    def seconds_left(self, now: float, store_ms: int) -> float:
        """How long there is nothing to do."""
        if now < self.not_before:
            return self.not_before - now
        if self.lease:
            return 0.0
        until_work = 0.0 if self.look else (self.due_ms - store_ms) / 1000
        until_work = max(until_work, self.leased_at + _PACE_SECONDS - now)
        return min(until_work, self.look_at - now, self.refresh_at - now)

    def begin(self, store_ms: int) -> bool:
        """Begin to work on what is to be done; returns whether to lease, not only to look."""
        leasing = self.lease or self.due_ms <= store_ms
        self.lease = self.look = False
        return leasing

    def wait_for(self, due_ms: int, look_at: float = _NEVER) -> None:
        """Lease at that time of the store, unless something changes before."""
        self.due_ms = due_ms
        self.look_at = look_at

    def expect(self, at_ms: int) -> bool:
        """A message becomes available; returns whether that is earlier than what was known."""
        earlier = at_ms < self.due_ms
        self.due_ms = min(self.due_ms, at_ms)
        return earlier
