"""What a subscription's stream sends when: limits, timeouts and the window of uncommitted events.

A state machine without I/O, with the clock passed in. Beyond a plain stream its partitions come and go, it pauses
when too much is uncommitted, and it ends when the client does not commit in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from strandline.log.cursors import Position
from strandline.log.reading import Batch
from strandline.log.subscriptions import rules
from strandline.log.subscriptions.model import Share, Slot, StreamParameters

# A stream never holds much for a client.
_BUFFER_BYTES = 16 << 20
_LEAST_LANE_BYTES = 1 << 18
_LEAST_READ = 1000


@dataclass(frozen=True)
class Chunk:
    """One batch to send: records of one partition, or none as a sign of life."""

    event_type: str
    partition: int
    position: Position
    records: pa.RecordBatch | None


class Lane:
    """One partition of the stream: what is read and not sent, what is sent and not committed."""

    def __init__(self, share: Share, now_ms: int) -> None:
        self.event_type = share.event_type
        self.partition = share.slot.partition
        self.leaving = share.heir is not None
        self.read = self.sent = share.position
        self.flushed_ms = now_ms
        self.keep_alives = 0
        self.count = self.bytes = 0
        self.uncommitted = 0
        self.waiting_since_ms: int | None = None
        self._buffer: deque[Batch] = deque()
        self._sent: deque[tuple[Position, int]] = deque()

    def add(self, batch: Batch) -> None:
        self._buffer.append(batch)
        self.count += len(batch)
        self.bytes += batch.records.nbytes
        self.read = Position(batch.timeline, batch.records["offset"][-1].as_py())

    def commit(self, position: Position, now_ms: int) -> None:
        """Whoever committed: what is behind the cursor is neither waited for nor sent any more."""
        before = self.uncommitted
        while self._sent and self._sent[0][0] <= position:
            self.uncommitted -= self._sent.popleft()[1]
        if self.uncommitted < before:
            self.waiting_since_ms = now_ms if self.uncommitted else None
        if position > self.sent:
            self._forget(position)

    def _forget(self, position: Position) -> None:
        """Another client of the partition came further than this one: go on from there."""
        self._buffer.clear()
        self.count = self.bytes = 0
        self.read = self.sent = position

    def take(self, most: int, now_ms: int) -> Chunk:
        """Up to `most` records from one timeline; without any, a keep-alive."""
        self.flushed_ms = now_ms
        if not self.count or not most:
            self.keep_alives += 1
            return Chunk(self.event_type, self.partition, self.sent, None)
        self.keep_alives = 0
        order = self._buffer[0].timeline
        parts: list[pa.RecordBatch] = []
        while most and self._buffer and self._buffer[0].timeline == order:
            parts.append(self._take_from_first(most))
            most -= parts[-1].num_rows
        records = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        self.sent = Position(order, records["offset"][-1].as_py())
        self._sent.append((self.sent, records.num_rows))
        self.uncommitted += records.num_rows
        if self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms
        return Chunk(self.event_type, self.partition, self.sent, records)

    def _take_from_first(self, most: int) -> pa.RecordBatch:
        batch = self._buffer.popleft()
        records = batch.records.slice(0, most)
        if len(batch) > most:
            rest = batch.records.slice(most)
            self._buffer.appendleft(Batch(batch.event_type, batch.partition, batch.timeline, rest))
        self.bytes -= self.bytes * records.num_rows // self.count
        self.count -= records.num_rows
        return records


class Delivery:
    """Collects what was read and says what to send now, how long to wait and when to stop.

    An eager stream sends what is there instead of waiting to fill a batch.
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
        # Whose turn it is stays as it was.
        order = dict.fromkeys([*self._lanes, *held])
        self._lanes = {slot: held[slot] for slot in order if slot in held}

    def given_up(self) -> list[Slot]:
        """Partitions that another stream waits for and that nothing is uncommitted of."""
        return [slot for slot, lane in self._lanes.items() if lane.leaving and not lane.uncommitted]

    def hungry(self) -> dict[str, dict[Slot, Position]]:
        """By event type, where to read on for the partitions that have room."""
        most = self._lane_bytes()
        found: dict[str, dict[Slot, Position]] = {}
        for slot, lane in self._lanes.items():
            if not lane.leaving and lane.count < self._batch_limit and lane.bytes < most:
                found.setdefault(lane.event_type, {})[slot] = lane.read
        return found

    def _lane_bytes(self) -> int:
        return max(_BUFFER_BYTES // max(len(self._lanes), 1), _LEAST_LANE_BYTES)

    def wanted(self) -> int:
        """How many more records make sense to read now; none while the window is closed."""
        if not self._room():
            return 0
        waiting = sum(lane.count for lane in self._lanes.values())
        room = max(self._batch_limit * len(self._lanes), _LEAST_READ) - waiting
        return max(room if self._left is None else min(room, self._left - waiting), 0)

    def add(self, slot: Slot, batch: Batch) -> None:
        lane = self._lanes.get(slot)
        if lane is not None:
            lane.add(batch)

    def overdue(self, now_ms: int) -> bool:
        """Whether the client has let the time to commit pass."""
        timeout_ms = self._parameters.commit_timeout_ms
        return any(rules.overdue(lane.waiting_since_ms, timeout_ms, now_ms) for lane in self._lanes.values())

    def take(self, now_ms: int) -> list[Chunk]:
        """Everything that is due now, in order within each partition."""
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

    def _chunks(self, now_ms: int, *, ending: bool) -> list[Chunk]:
        """Partitions take turns, one batch each: the window must not go to the one with the longest backlog."""
        chunks: list[Chunk] = []
        due = True
        while due:
            due = False
            for slot, lane in list(self._lanes.items()):
                if self._left != 0 and self._due(lane, now_ms, ending=ending):
                    due = True
                    chunks.append(self._chunk(lane, now_ms))
                    self._lanes[slot] = self._lanes.pop(slot)
        return chunks

    def _chunk(self, lane: Lane, now_ms: int) -> Chunk:
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
        full = lane.count >= most or lane.bytes >= self._lane_bytes()
        if lane.count and most and (ending or self._eager or full):
            return True
        return now_ms - lane.flushed_ms >= self._flush_ms and not ending

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing will be due unless records or commits come."""
        due = [self._ends_ms, *(lane.flushed_ms + self._flush_ms for lane in self._lanes.values())]
        if not self._lanes:
            due.append(now_ms + self._flush_ms)
        waiting = [lane.waiting_since_ms for lane in self._lanes.values() if lane.waiting_since_ms is not None]
        due += [since_ms + self._parameters.commit_timeout_ms for since_ms in waiting]
        return max(min(due) - now_ms, 0)
