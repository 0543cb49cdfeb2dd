"""The clocks of a node, its peers and its clients, compared with the database's, which is the one that decides.

A node's own clock only decides when the node wakes up. A node gives no leases while its clock is far off, or after
the time of the database was set back: messages that were leased by the earlier time may be lost with a failover.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from strandline.clock import Clock, SystemClock, boot_ms
from strandline.schedule.model import ClockOffset, ClockReport
from strandline.schedule.storage import ScheduleStore

_SAMPLES = 8
# Clocks have a resolution of one millisecond.
_RESOLUTION_MS = 1.0
# How fast two clocks may diverge without being set.
_DRIFT = 0.0002
_MAX_CLIENTS = 1_000


class ClockSamples:
    """The last measurements of one clock. The one with the smallest error counts, as in NTP."""

    def __init__(self) -> None:
        self._samples: deque[ClockOffset] = deque(maxlen=_SAMPLES)
        #: There is none before the first measurement.
        self.best: ClockOffset

    def add(self, sample: ClockOffset) -> None:
        if self._samples and abs(sample.offset_ms - self.best.offset_ms) > sample.error_ms + self.best.error_ms:
            self._samples.clear()  # the clock was set
        self._samples.append(sample)
        self.best = min(reversed(self._samples), key=lambda one: one.error_ms)


class ClientSamples:
    """The last pings of one client. Only the way to the server is measured: the shortest delay counts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def add(self, offset_ms: float, measured_ms: int) -> None:
        self._samples.append((offset_ms, measured_ms))

    @property
    def best(self) -> ClockOffset:
        """A delay makes a client look late, so the largest offset is the nearest. Its own delay is not known."""
        offset_ms, measured_ms = max(self._samples)
        spread = offset_ms - min(self._samples)[0]
        return ClockOffset(self._name, offset_ms, max(spread, _RESOLUTION_MS), measured_ms)


class StoreTime:
    """The time of the store, estimated without asking it, and whether it was set back. Thread-safe.

    `steady` counts milliseconds and is never set; `sent` and `received` are on it.
    """

    def __init__(self, steady: Callable[[], int], limit_ms: int) -> None:
        self._steady = steady
        self._limit_ms = limit_ms
        self._lock = threading.Lock()
        self._last: tuple[int, int] | None = None
        self._ahead = (float("-inf"), float("inf"))
        self._ahead_ms = 0
        self._jump_ms = 0
        self._jumped_at = 0

    def observe(self, sent: int, store_ms: int, received: int) -> None:
        """The store said `store_ms` at a moment between `sent` and `received`."""
        with self._lock:
            if self._last is not None:
                last_ms, last_received = self._last
                # At least this much time has passed since the last observation, even if this process was paused.
                jump_ms = last_ms + (sent - last_received) - store_ms
                if jump_ms > self._limit_ms:
                    self._jump_ms, self._jumped_at = max(jump_ms, self._held_ms(received)), received
                elif received < last_received:
                    return
            self._narrow(sent, store_ms, received)
            self._last = (store_ms, received)

    def _narrow(self, sent: int, store_ms: int, received: int) -> None:
        """How far the store is ahead of the steady clock: each observation is a range, and all must agree."""
        low, high = store_ms - received, store_ms + 1 - sent
        drift = (received - self._last[1]) * _DRIFT + _RESOLUTION_MS if self._last is not None else 0.0
        least, most = max(low, self._ahead[0] - drift), min(high, self._ahead[1] + drift)
        self._ahead = (least, most) if least <= most else (low, high)  # otherwise the time was set
        self._ahead_ms = round(sum(self._ahead) / 2)

    def now_ms(self) -> int:
        """Wrong before the first observation."""
        return self._steady() + self._ahead_ms

    def held_ms(self, longest_ms: int) -> int:
        """For how long no leases may be given because the time was set back."""
        with self._lock:
            return self._held_ms(self._steady(), longest_ms)

    def _held_ms(self, now: int, longest_ms: int | None = None) -> int:
        length = self._jump_ms if longest_ms is None else min(self._jump_ms, longest_ms)
        return max(0, self._jumped_at + length - now)


class NodeClocks:
    """What one node knows about clocks. Only `look`, `measure` and `beat` ask the store."""

    def __init__(self, node: str, store: ScheduleStore, clock: Clock, limit_ms: int) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._limit_ms = limit_ms
        # The boot clock runs while the machine sleeps; a clock of a test is as fast as its steady clock.
        self.steady = boot_ms if isinstance(clock, SystemClock) else clock.steady_ms
        self.store_time = StoreTime(self.steady, limit_ms)
        self._own = ClockSamples()
        self._peers: Sequence[ClockOffset] = ()
        self._clients: dict[str, ClientSamples] = {}
        self._lock = threading.Lock()

    def look(self) -> None:
        """Find out whether the time of the store was set back."""
        sent = self.steady()
        store_ms = self._store.now_ms()
        self.store_time.observe(sent, store_ms, self.steady())

    def measure(self) -> ClockOffset:
        """Compare this node's clock with the store's."""
        sent, before_ms = self.steady(), self._clock.now_ms()
        store_ms = self._store.now_ms()
        after_ms, received = self._clock.now_ms(), self.steady()
        self.store_time.observe(sent, store_ms, received)
        error_ms = max(0, after_ms - before_ms) / 2 + _RESOLUTION_MS
        with self._lock:
            self._own.add(ClockOffset(self._node, (before_ms + after_ms) / 2 - store_ms, error_ms, store_ms))
            return self._own.best

    def beat(self, lives_ms: int) -> None:
        """Measure, publish the result with the heartbeat, and learn the clocks of the other nodes."""
        self._store.sessions.beat(self._node, lives_ms, self.measure())
        self._peers = [peer for peer in self._store.sessions.nodes() if peer.name != self._node]

    @property
    def has_peers(self) -> bool:
        """Whether there were other nodes at the last heartbeat."""
        return bool(self._peers)

    def now_ms(self) -> int:
        """The time of the store, without asking it."""
        return self.store_time.now_ms()

    def ping(self, client: str, client_ms: int, received_ms: int) -> int:
        with self._lock:
            offset_ms = client_ms - received_ms + self._own.best.offset_ms
            samples = self._clients.pop(client, None) or ClientSamples(client)
            self._clients[client] = samples  # the last one has pinged last
            samples.add(offset_ms, self.now_ms())
            if len(self._clients) > _MAX_CLIENTS:
                del self._clients[next(iter(self._clients))]
        return self.now_ms()

    def problem(self, longest_ms: int) -> str | None:
        """Why this node must not give leases of at most `longest_ms`, if so."""
        own = self._own.best
        if abs(own.offset_ms) - own.error_ms > self._limit_ms:
            return f"the clock of this node is {own.offset_ms:.0f} ms ahead of the database's; set it"
        if held_ms := self.store_time.held_ms(longest_ms):
            return f"the time of the database was set back; leases are given again in {held_ms} ms"
        return None

    def report(self, degraded: str | None) -> ClockReport:
        with self._lock:
            clients = [samples.best for samples in self._clients.values()]
            return ClockReport(self._own.best, [*self._peers], clients, degraded)
