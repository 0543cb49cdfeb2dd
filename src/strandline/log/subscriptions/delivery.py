"""Decides what a subscription's stream sends and when: limits, timeouts and the window of uncommitted events.

A state machine without I/O, with the clock passed in. Unlike a plain stream its partitions change, it pauses when
too many events are uncommitted, and it ends when the client does not commit in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from strandline.log.cursors import Position
from strandline.log.reading import Batch
from strandline.log.streaming import RecordBuffer, StreamChunk
from strandline.log.subscriptions import rules
from strandline.log.subscriptions.model import Share, Slot, StreamParameters

# Limits the memory of a stream.
_BUFFER_BYTES = 16 << 20
_LEAST_LANE_BYTES = 1 << 18
_LEAST_READ = 1000


class Lane:
    """One partition of the stream: records read and not sent, and records sent and not committed."""

    def __init__(self, share: Share, now_ms: int) -> None:
        self.event_type = share.event_type
        self.partition = share.slot.partition
        self.leaving = share.heir is not None
        self.read = self.sent = share.position
        self.flushed_ms = now_ms
        self.keep_alives = 0
        self.buffer = RecordBuffer()
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
        """Up to `most` records of one timeline; a keep-alive if there are none."""
        self.flushed_ms = now_ms
        if not self.buffer.count or not most:
            self.keep_alives += 1
            return StreamChunk(self.event_type, self.partition, self.sent, None)
        self.keep_alives = 0
        self.sent, records = self.buffer.take(most)
        self._sent.append((self.sent, records.num_rows))
        self.uncommitted += records.num_rows
        if self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms
        return StreamChunk(self.event_type, self.partition, self.sent, records)


class Delivery:
    """Collects records that were read and decides what to send now, how long to wait and when to stop.

    An eager stream sends records at once instead of waiting to fill a batch.
    """

    def __init__(self, parameters: StreamParameters, now_ms: int, *, eager: bool = False) -> None:
        limits = parameters.limits
        self._parameters = parameters
        self._batch_limit = limits.batch_limit
        self._flush_ms = limits.flush_ms
        self._ends_ms = now_ms + limits.lifetime_ms
        self._left = limits.stream_limit or None
        self._eager = eager
        self._lanes: dict[Slot, Lane] = {}
        self.finished = False

    def hold(self, shares: Iterable[Share], now_ms: int) -> None:
        """The partitions that the stream has now, with their committed cursors."""
        held: dict[Slot, Lane] = {}
        for share in shares:
            lane = self._lanes.get(share.slot) or Lane(share, now_ms)
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
        most = self._lane_bytes()
        found: dict[str, dict[Slot, Position]] = {}
        for slot, lane in self._lanes.items():
            if not lane.leaving and lane.buffer.count < self._batch_limit and lane.buffer.bytes < most:
                found.setdefault(lane.event_type, {})[slot] = lane.read
        return found

    def _lane_bytes(self) -> int:
        return max(_BUFFER_BYTES // max(len(self._lanes), 1), _LEAST_LANE_BYTES)

    def wanted(self) -> int:
        """How many more records to read now; 0 while the window of uncommitted events is full."""
        if not self._room():
            return 0
        waiting = sum(lane.buffer.count for lane in self._lanes.values())
        room = max(self._batch_limit * len(self._lanes), _LEAST_READ) - waiting
        return max(room if self._left is None else min(room, self._left - waiting), 0)

    def add(self, slot: Slot, batch: Batch) -> None:
        lane = self._lanes.get(slot)
        if lane is not None:
            lane.add(batch)

    def overdue(self, now_ms: int) -> bool:
        """Whether the client did not commit in time."""
        timeout_ms = self._parameters.commit_timeout_ms
        return any(rules.overdue(lane.waiting_since_ms, timeout_ms, now_ms) for lane in self._lanes.values())

    def take(self, now_ms: int) -> list[StreamChunk]:
        """All chunks that are due now, in order within each partition."""
        if self.overdue(now_ms):
            self.finished = True
            return []
        ending = now_ms >= self._ends_ms
        chunks = self._chunks(now_ms, ending=ending)
        alive = self._parameters.stream_keep_alive_limit
        if alive and self._lanes and all(lane.keep_alives >= alive for lane in self._lanes.values()):
            ending = True
        self.finished = ending or self._left == 0
        return chunks

    def _chunks(self, now_ms: int, *, ending: bool) -> list[StreamChunk]:
        """Partitions take turns, one batch each, so that none with a long backlog takes the whole window."""
        chunks: list[StreamChunk] = []
        due = True
        while due:
            due = False
            for slot, lane in list(self._lanes.items()):
                if self._left != 0 and self._due(lane, now_ms, ending=ending):
                    due = True
                    chunks.append(self._chunk(lane, now_ms))
                    self._lanes[slot] = self._lanes.pop(slot)
        return chunks

    def _chunk(self, lane: Lane, now_ms: int) -> StreamChunk:
        chunk = lane.take(0 if lane.leaving else self._most(), now_ms)
        if self._left is not None and chunk.records is not None:
            self._left -= chunk.records.num_rows
        return chunk

    def _room(self) -> int:
        """How many more events may be sent without a commit."""
        return max(self._parameters.window - sum(lane.uncommitted for lane in self._lanes.values()), 0)

    def _most(self) -> int:
        most = min(self._batch_limit, self._room())
        return most if self._left is None else min(most, self._left)

    def _due(self, lane: Lane, now_ms: int, *, ending: bool) -> bool:
        most = 0 if lane.leaving else self._most()
        full = lane.buffer.count >= most or lane.buffer.bytes >= self._lane_bytes()
        if lane.buffer.count and most and (ending or self._eager or full):
            return True
        return now_ms - lane.flushed_ms >= self._flush_ms and not ending

    def wait_ms(self, now_ms: int) -> int:
        """How long until something is due if neither records nor commits come."""
        due = [self._ends_ms, *(lane.flushed_ms + self._flush_ms for lane in self._lanes.values())]
        if not self._lanes:
            due.append(now_ms + self._flush_ms)
        waiting = [lane.waiting_since_ms for lane in self._lanes.values() if lane.waiting_since_ms is not None]
        due += [since_ms + self._parameters.commit_timeout_ms for since_ms in waiting]
        return max(min(due) - now_ms, 0)
