"""The schedule of a subscription's stream, with a window of uncommitted events.

Its partitions change while it is open. It pauses when too many events are uncommitted, and it ends when the client
does not commit in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from strandline.log.cursors import Position
from strandline.log.reading import Batch
from strandline.log.streaming import Lane, SendPlan, StreamChunk
from strandline.log.subscriptions import rules
from strandline.log.subscriptions.model import Share, Slot, StreamParameters


class LeasedLane(Lane):
    """One partition of the stream: records read and not sent, and records sent and not committed."""

    def __init__(self, share: Share, now_ms: int) -> None:
        super().__init__(share.event_type, share.slot.partition, share.position, now_ms)
        self.leaving = share.heir is not None
        self.read = share.position
        self.uncommitted = 0
        self.waiting_since_ms: int | None = None
        self._sent: deque[tuple[Position, int]] = deque()

    def add(self, batch: Batch) -> None:
        self.buffer.add(batch)
        self.read = Position(batch.timeline, batch.records["offset"][-1].as_py())

    def commit(self, position: Position, now_ms: int) -> None:
        """Records up to the position are committed, by this client or another one; they are not sent any more."""
        before = self.uncommitted
        while self._sent and self._sent[0][0] <= position:
            self.uncommitted -= self._sent.popleft()[1]
        if self.uncommitted < before:
            self.waiting_since_ms = now_ms if self.uncommitted else None
        if position > self.sent:  # another client of the partition is ahead: continue after its commit
            self.buffer.clear()
            self.read = self.sent = position

    def take(self, most: int, now_ms: int) -> StreamChunk:
        chunk = super().take(most, now_ms)
        if chunk.records is not None:
            self._sent.append((chunk.position, chunk.records.num_rows))
            self.uncommitted += chunk.records.num_rows
            if self.waiting_since_ms is None:
                self.waiting_since_ms = now_ms
        return chunk


class Delivery(SendPlan[Slot, LeasedLane]):
    def __init__(self, parameters: StreamParameters, now_ms: int, *, eager: bool = False) -> None:
        super().__init__(parameters.limits, now_ms, eager=eager)
        self._parameters = parameters

    def hold(self, shares: Iterable[Share], now_ms: int) -> None:
        """The partitions that the stream has now, with their committed cursors."""
        held: dict[Slot, LeasedLane] = {}
        for share in shares:
            lane = self._lanes.get(share.slot) or LeasedLane(share, now_ms)
            lane.leaving = share.heir is not None
            lane.commit(share.position, now_ms)
            held[share.slot] = lane
        # Known partitions keep their order, in which they take turns.
        order = dict.fromkeys([*self._lanes, *held])
        self._lanes = {slot: held[slot] for slot in order if slot in held}

    def given_up(self) -> list[Slot]:
        """Partitions that another stream waits for and that have no uncommitted events."""
        return [slot for slot, lane in self._lanes.items() if lane.leaving and not lane.uncommitted]

    def hungry(self) -> dict[str, dict[Slot, Position]]:
        """By event type, the positions to read from for partitions with space in their buffer."""
        most, most_bytes = self._limits.batch_limit, self._lane_bytes()
        found: dict[str, dict[Slot, Position]] = {}
        for slot, lane in self._lanes.items():
            if not lane.leaving and lane.buffer.count < most and lane.buffer.bytes < most_bytes:
                found.setdefault(lane.event_type, {})[slot] = lane.read
        return found

    def wanted(self) -> int:
        """The number of records to read now; 0 while the window of uncommitted events is full."""
        return super().wanted() if self._room() else 0

    def add(self, slot: Slot, batch: Batch) -> None:
        if slot in self._lanes:
            self._lanes[slot].add(batch)

    @property
    def _at_limit(self) -> bool:
        """As in Nakadi, the stream waits for the commits of its last records."""
        return super()._at_limit and not any(lane.uncommitted for lane in self._lanes.values())

    def overdue(self, now_ms: int) -> bool:
        """Whether the client did not commit in time."""
        timeout_ms = self._parameters.commit_timeout_ms
        return any(rules.overdue(lane.waiting_since_ms, timeout_ms, now_ms) for lane in self._lanes.values())

    def take(self, now_ms: int) -> list[StreamChunk]:
        if self.overdue(now_ms):
            self.finished = True
            return []
        return super().take(now_ms)

    def _chunks(self, now_ms: int, *, ending: bool) -> list[StreamChunk]:
        """Partitions take turns, one batch each, so that none with a long backlog takes the whole window."""
        chunks: list[StreamChunk] = []
        due = True
        while due:
            due = False
            for slot, lane in list(self._lanes.items()):
                if self._due(lane, now_ms, ending=ending):
                    due = True
                    chunks.append(self._chunk(lane, now_ms))
                    self._lanes[slot] = self._lanes.pop(slot)
        return chunks

    def _room(self) -> int:
        """How many more events may be sent without a commit."""
        return max(self._parameters.window - sum(lane.uncommitted for lane in self._lanes.values()), 0)

    def _most(self, lane: LeasedLane) -> int:
        return 0 if lane.leaving else min(super()._most(lane), self._room())

    def wait_ms(self, now_ms: int) -> int:
        """The time until something is due if neither records nor commits arrive."""
        due = [super().wait_ms(now_ms)]
        if not self._lanes:
            due.append(self._flush_ms)
        waiting = [lane.waiting_since_ms for lane in self._lanes.values() if lane.waiting_since_ms is not None]
        due += [since_ms + self._parameters.commit_timeout_ms - now_ms for since_ms in waiting]
        return max(min(due), 0)
