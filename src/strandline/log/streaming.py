"""When a stream sends which records: Nakadi's limits and timeouts as a state machine, with the time passed in."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Meta

from strandline.errors import Invalid
from strandline.log.cursors import Position
from strandline.log.reading import Batch

_FLUSH_S = 30
_LONGEST_S = 4200
_HOUR_MS = 3_600_000
# Existing clients close a stream that sends nothing for 30 s.
_QUIET_MS = 15_000
#: The bytes that a stream reads and buffers if it is not told otherwise.
MOST_BYTES = 8 << 20
_LEAST_LANE_BYTES = 1 << 14
_LEAST_READ = 1000

_Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class StreamLimits(msgspec.Struct, frozen=True):
    """The query parameters of a stream. Zero means the default, as in Nakadi."""

    batch_limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1
    stream_limit: _Seconds = 0
    batch_flush_timeout: _Seconds = _FLUSH_S
    stream_timeout: _Seconds = 0
    stream_keep_alive_limit: _Seconds = 0

    def check(self) -> None:
        """Refuse limits that contradict each other."""
        if self.stream_limit and self.stream_limit < self.batch_limit:
            raise Invalid(f"stream_limit {self.stream_limit} is lower than batch_limit {self.batch_limit}")
        flush = self.batch_flush_timeout or _FLUSH_S
        if self.stream_timeout and self.stream_timeout < flush:
            raise Invalid(f"stream_timeout {self.stream_timeout} is lower than batch_flush_timeout {flush}")

    @property
    def flush_ms(self) -> int:
        return min((self.batch_flush_timeout or _FLUSH_S) * 1000, _QUIET_MS)

    @property
    def lifetime_ms(self) -> int:
        if 0 < self.stream_timeout <= _LONGEST_S:
            return self.stream_timeout * 1000
        # One hour, plus or minus ten minutes, so that streams opened together do not end together.
        return _HOUR_MS + random.randint(-600_000, 600_000)  # noqa: S311 - jitter


@dataclass(frozen=True)
class StreamChunk:
    """One batch to send: records of one partition, or None as a keep-alive."""

    event_type: str
    partition: int
    position: Position
    records: pa.RecordBatch | None


class RecordBuffer:
    """The records of one partition that were read but not sent yet."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self._batches: deque[Batch] = deque()

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.count += len(batch)
        self.bytes += batch.records.nbytes

    def clear(self) -> None:
        self._batches.clear()
        self.count = self.bytes = 0

    def take(self, most: int) -> tuple[Position, pa.RecordBatch]:
        """Up to `most` records of one timeline, and the position of the last one. The buffer must not be empty."""
        order = self._batches[0].timeline
        parts: list[pa.RecordBatch] = []
        while most and self._batches and self._batches[0].timeline == order:
            parts.append(self._take_from_first(most))
            most -= parts[-1].num_rows
        records = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return Position(order, records["offset"][-1].as_py()), records

    def _take_from_first(self, most: int) -> pa.RecordBatch:
        batch = self._batches.popleft()
        records = batch.records.slice(0, most)
        if len(batch) > most:
            rest = batch.records.slice(most)
            self._batches.appendleft(Batch(batch.event_type, batch.partition, batch.timeline, rest))
        self.bytes -= self.bytes * records.num_rows // self.count
        self.count -= records.num_rows
        return records


class Lane:
    """One partition of a stream."""

    def __init__(self, event_type: str, partition: int, position: Position, now_ms: int) -> None:
        self.event_type = event_type
        self.partition = partition
        self.sent = position
        self.flushed_ms = now_ms
        self.keep_alives = 0
        self.buffer = RecordBuffer()

    def take(self, most: int, now_ms: int) -> StreamChunk:
        """Up to `most` records of one timeline; a keep-alive if there are none."""
        self.flushed_ms = now_ms
        if not self.buffer.count or not most:
            self.keep_alives += 1
            return StreamChunk(self.event_type, self.partition, self.sent, None)
        self.keep_alives = 0
        self.sent, records = self.buffer.take(most)
        return StreamChunk(self.event_type, self.partition, self.sent, records)


_Key = TypeVar("_Key")
_Lane = TypeVar("_Lane", bound=Lane)


class SendPlan(Generic[_Key, _Lane]):
    """Collects records that were read and decides what to send now, how long to wait and when to stop.

    An eager stream sends records at once instead of waiting to fill a batch.
    """

    def __init__(self, limits: StreamLimits, now_ms: int, *, eager: bool) -> None:
        self._limits = limits
        self._eager = eager
        self._flush_ms = limits.flush_ms
        self._now_ms = now_ms  # of the last `take`
        self._ends_ms = now_ms + limits.lifetime_ms
        self._left = limits.stream_limit or None
        self._lanes: dict[_Key, _Lane] = {}
        self.finished = False
        #: Buffered records above this size are sent early, which limits the memory of a stream.
        self.most_bytes = MOST_BYTES

    @property
    def limited(self) -> bool:
        """Whether the stream ends after a number of records."""
        return self._left is not None

    @property
    def _at_limit(self) -> bool:
        """Whether the number of records is reached that ends the stream."""
        return self._left == 0

    def end(self) -> None:
        """Send what was read, then stop."""
        self._ends_ms = self._now_ms

    def wanted(self) -> int:
        """The number of records to read now."""
        waiting = sum(lane.buffer.count for lane in self._lanes.values())
        room = max(self._limits.batch_limit * len(self._lanes), _LEAST_READ) - waiting
        return max(room if self._left is None else min(room, self._left - waiting), 0)

    def wanted_bytes(self) -> int:
        """The number of bytes to read now."""
        return max(self.most_bytes - sum(lane.buffer.bytes for lane in self._lanes.values()), 1)

    def take(self, now_ms: int) -> list[StreamChunk]:
        """All chunks that are due now, in order within each partition."""
        self._now_ms = now_ms
        ending = now_ms >= self._ends_ms
        chunks = self._chunks(now_ms, ending=ending)
        alive = self._limits.stream_keep_alive_limit
        if alive and self._lanes and all(lane.keep_alives >= alive for lane in self._lanes.values()):
            ending = True
        self.finished = ending or self._at_limit
        return chunks

    def _chunks(self, now_ms: int, *, ending: bool) -> list[StreamChunk]:
        chunks: list[StreamChunk] = []
        for lane in self._lanes.values():
            while self._due(lane, now_ms, ending=ending):
                chunks.append(self._chunk(lane, now_ms))
        return chunks

    def _due(self, lane: _Lane, now_ms: int, *, ending: bool) -> bool:
        if self._at_limit:
            return False
        most = self._most(lane)
        full = lane.buffer.count >= most or lane.buffer.bytes >= self._lane_bytes()
        if lane.buffer.count and most and (ending or self._eager or full):
            return True
        return now_ms - lane.flushed_ms >= self._flush_ms and not ending

    def _most(self, lane: _Lane) -> int:  # noqa: ARG002 - for subclasses
        """The most records that the next chunk of the partition may have."""
        return self._limits.batch_limit if self._left is None else min(self._limits.batch_limit, self._left)

    def _lane_bytes(self) -> int:
        return max(self.most_bytes // max(len(self._lanes), 1), _LEAST_LANE_BYTES)

    def _chunk(self, lane: _Lane, now_ms: int) -> StreamChunk:
        chunk = lane.take(self._most(lane), now_ms)
        if self._left is not None and chunk.records is not None:
            self._left -= chunk.records.num_rows
        return chunk

    def wait_ms(self, now_ms: int) -> int:
        """The time until a chunk is due if no more records arrive."""
        due = [self._ends_ms, *(lane.flushed_ms + self._flush_ms for lane in self._lanes.values())]
        return max(min(due) - now_ms, 0)


class StreamState(SendPlan[int, Lane]):
    """The schedule of a stream that starts at cursors of the client."""

    def __init__(
        self,
        event_type: str,
        limits: StreamLimits,
        start: Mapping[int, Position],
        now_ms: int,
        *,
        eager: bool = False,
    ) -> None:
        super().__init__(limits, now_ms, eager=eager)
        self._lanes = {p: Lane(event_type, p, position, now_ms) for p, position in start.items()}

    def add(self, batch: Batch) -> None:
        partition = int(batch.partition)
        if partition not in self._lanes:  # the event type has grown
            start = Position(batch.timeline, -1)
            self._lanes[partition] = Lane(batch.event_type, partition, start, self._now_ms)
        self._lanes[partition].buffer.add(batch)
