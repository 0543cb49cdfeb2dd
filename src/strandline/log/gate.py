"""Lets the publishes of one event type start, or keeps them waiting: in order, bounded, without a thread each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from strandline.errors import StrandlineError, Unavailable


@dataclass(frozen=True)
class Waiting:
    """A publish that has not started: how to start it, or to refuse it after its deadline."""

    start: Callable[[], None]
    refuse: Callable[[StrandlineError], None]
    deadline_ms: int


class Gate:
    """Open, or held by a switch.

    What was parked (a record that met a seal) goes before what waits, and both before what comes later, so that
    publishes keep their order through a hold.
    """

    def __init__(self, max_waiting: int, drained: Callable[[], None]) -> None:
        self._max_waiting = max_waiting
        self._on_drained = drained
        self._lock = threading.Lock()
        self._held = False
        self._running = 0
        self._parked: deque[Callable[[], None]] = deque()
        self._waiting: deque[Waiting] = deque()

    def enter(self, publish: Waiting) -> None:
        """Start the publish now, or when the gate opens."""
        with self._lock:
            open_ = not self._held and not self._parked and not self._waiting
            if open_:
                self._running += 1
            elif len(self._waiting) < self._max_waiting:
                self._waiting.append(publish)
                return
        if open_:
            publish.start()
        else:
            publish.refuse(Unavailable("too many publishes wait for a timeline switch", retry_after=1))

    def leave(self) -> None:
        """A publish that was started has its outcome."""
        with self._lock:
            self._running -= 1
            drained = self._held and not self._running
        if drained:
            self._on_drained()

    def park(self, resume: Callable[[], None]) -> None:
        """Keep a started publish, and all that come later, until `resume_parked`."""
        with self._lock:
            self._parked.append(resume)

    @property
    def parked(self) -> bool:
        return bool(self._parked)

    def resume_parked(self) -> None:
        """The switch that parked them is decided."""
        for _ in range(len(self._parked)):  # not those that park again, for a newer switch
            # It stays in the queue until it has been started: nothing may overtake it.
            self._parked[0]()
            with self._lock:
                self._parked.popleft()
        if not self._held:
            self.release()

    def hold(self) -> None:
        """No new publish starts from here on."""
        with self._lock:
            self._held = True

    @property
    def held(self) -> bool:
        return self._held

    @property
    def drained(self) -> bool:
        """Nothing that was started is without its outcome; what is parked waits for the very switch that asks."""
        with self._lock:
            return self._running <= len(self._parked)

    def release(self) -> None:
        """Start all that waits, in order, then let everybody through."""
        while True:
            with self._lock:
                if self._parked or not self._waiting:
                    self._held = False
                    return
                publish = self._waiting.popleft()
                self._running += 1
                self._held = True
            publish.start()

    def expire(self, now_ms: int) -> None:
        """Refuse what has waited too long."""
        with self._lock:
            late = [publish for publish in self._waiting if publish.deadline_ms <= now_ms]
            self._waiting = deque(publish for publish in self._waiting if publish.deadline_ms > now_ms)
        for publish in late:
            publish.refuse(Unavailable("a timeline switch took too long; try again", retry_after=1))
