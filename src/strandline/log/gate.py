"""Starts the publishes of one event type, or queues them during a switch: in order, bounded, without threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from strandline.errors import StrandlineError, Unavailable


class Waiting(msgspec.Struct, frozen=True):
    """A queued publish: how to start it, and how to refuse it after its deadline on the steady clock."""

    start: Callable[[], None]
    refuse: Callable[[StrandlineError], None]
    deadline_ms: int


class Gate:
    """Open, or held by a switch.

    Publishes keep their order through a hold: parked ones, which were started and wait for the decision of the
    switch, continue first. Queued ones follow, then later ones.
    """

    def __init__(self, max_waiting: int, drained: Callable[[], None]) -> None:
        self._max_waiting = max_waiting
        self._on_drained = drained
        self._lock = threading.Lock()
        self.held = False
        self._running = 0
        self._parked: deque[Callable[[], None]] = deque()
        self._waiting: deque[Waiting] = deque()

    def pass_if_open(self) -> bool:
        """Whether the gate is open. Then the caller starts its publish now, in place of `enter`."""
        with self._lock:
            if self.held or self._parked or self._waiting:
                return False
            self._running += 1
            return True

    def enter(self, publish: Waiting) -> None:
        """Start the publish now, or when the gate opens."""
        with self._lock:
            open_ = not self.held and not self._parked and not self._waiting
            if open_:
                self._running += 1
            elif len(self._waiting) < self._max_waiting:
                self._waiting.append(publish)
                return
        if open_:
            publish.start()
        else:
            publish.refuse(Unavailable("too many publishes wait for a timeline switch; retry", retry_after=1))

    def leave(self) -> None:
        """Report that a started publish has its outcome."""
        with self._lock:
            self._running -= 1
            drained = self.held and not self._running
        if drained:
            self._on_drained()

    def park(self, resume: Callable[[], None]) -> None:
        """Hold a started publish, and all later ones, until `resume_parked`."""
        with self._lock:
            self._parked.append(resume)

    @property
    def parked(self) -> bool:
        return bool(self._parked)

    def resume_parked(self) -> None:
        """Continue the parked publishes; their switch is decided."""
        for _ in range(len(self._parked)):  # a publish that parks again waits for a newer switch
            # The publish stays in the queue until it has continued, so that no other publish overtakes it.
            self._parked[0]()
            with self._lock:
                self._parked.popleft()
        if not self.held:
            self.release()

    def hold(self) -> None:
        """Start no new publish until `release`."""
        with self._lock:
            self.held = True

    @property
    def drained(self) -> bool:
        """Whether all started publishes have their outcome, except parked ones, which wait for the switch."""
        with self._lock:
            return self._running <= len(self._parked)

    def release(self) -> None:
        """Start the queued publishes in order, then open the gate."""
        while True:
            with self._lock:
                if self._parked or not self._waiting:
                    self.held = False
                    return
                publish = self._waiting.popleft()
                self._running += 1
                self.held = True
            publish.start()

    def expire(self, steady_ms: int) -> None:
        """Refuse publishes that have waited past their deadline."""
        with self._lock:
            late = [publish for publish in self._waiting if publish.deadline_ms <= steady_ms]
            self._waiting = deque(publish for publish in self._waiting if publish.deadline_ms > steady_ms)
        for publish in late:
            publish.refuse(Unavailable("a timeline switch took too long; retry", retry_after=1))
