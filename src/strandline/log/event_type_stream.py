"""One open stream of an event type in this process: reads records and sends them when they are due."""

from __future__ import annotations

import uuid

from strandline.clock import Clock
from strandline.log.reading import Reader
from strandline.log.serving import Wake
from strandline.log.streaming import StreamChunk, StreamState

_READ_BYTES = 8 << 20


class EventTypeStream:
    """A `PushStream` that starts at cursors of the client."""

    has_partitions = True

    def __init__(self, reader: Reader, state: StreamState, clock: Clock, wake: Wake) -> None:
        self.id = str(uuid.uuid4())
        self.finished = False
        self.idle = False
        self._reader = reader
        self._state = state
        self._clock = clock
        self.close = reader.watch(wake)

    def step(self) -> list[StreamChunk]:
        wanted = self._state.wanted()
        found = self._reader.poll(wanted, _READ_BYTES) if wanted else []
        for batch in found:
            self._state.add(batch)
        chunks = self._state.take(self._clock.steady_ms())
        self.finished = self._state.finished
        self.idle = not found
        return chunks

    def wait_ms(self) -> int:
        return self._state.wait_ms(self._clock.steady_ms())
