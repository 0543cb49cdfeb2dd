"""One open stream of an event type in this process: reads records and sends them when they are due."""

from __future__ import annotations

import uuid

from strandline.clock import Clock
from strandline.log.reading import Reader
from strandline.log.serving import Wake
from strandline.log.streaming import MOST_BYTES, StreamChunk, StreamState


class EventTypeStream:
    """A `PushStream` that starts at cursors of the client. Damaged if none of them can be read from."""

    has_partitions = True

    def __init__(self, reader: Reader, state: StreamState, clock: Clock, wake: Wake) -> None:
        self.id = str(uuid.uuid4())
        self.finished = False
        self.idle = False
        self._reader = reader
        self._state = state
        self._clock = clock
        self.close = reader.watch(wake)
        for batch in reader.poll(1, 1):
            state.add(batch)
        if reader.damage is not None and reader.stuck:
            self.close()
            raise reader.damage

    def step(self, most_bytes: int = MOST_BYTES) -> list[StreamChunk]:
        self._state.most_bytes = most_bytes
        wanted = self._state.wanted()
        found = self._reader.poll(wanted, self._state.wanted_bytes()) if wanted else []
        for batch in found:
            self._state.add(batch)
        # Other partitions go on. But without the damaged one the stream might never reach its limit.
        if not found and self._reader.damage is not None and (self._state.limited or self._reader.stuck):
            self._state.end()
        chunks = self._state.take(self._clock.steady_ms())
        self.finished = self._state.finished
        self.idle = not found
        return chunks

    def wait_ms(self) -> int:
        return self._state.wait_ms(self._clock.steady_ms())
