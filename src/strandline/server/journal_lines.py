"""The answer to a read of a journal: one line per event, streamed in parts."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
from msgspec import Raw
from starlette.responses import Response

from strandline.errors import StrandlineError, Unavailable
from strandline.journal import wire
from strandline.journal.model import JournalEvent
from strandline.server.byte_budget import Holding
from strandline.server.event_stream import EventStream
from strandline.server.pools import Pool
from strandline.server.problems import from_error
from strandline.server.routing import Call, log

LINES = "application/x-ndjson"


class EventLines:
    """The lines of a read. The constructor reads the first part, so that its errors have a status."""

    def __init__(self, events: Iterator[JournalEvent], most_bytes: int) -> None:
        self._events = events
        self._lock = threading.Lock()  # the end of the response does not wait for a step
        self.finished = False
        self.part = self.step(most_bytes)

    def step(self, most_bytes: int) -> bytes:
        """The next part, of about that many bytes."""
        lines: list[bytes] = []
        size = 0
        with self._lock:
            for event in self._events:
                line = wire.to_line(event)
                lines.append(line)
                size += len(line)
                if size >= most_bytes:
                    break
            else:
                self.finished = True
        return b"".join(lines)

    def close(self) -> None:
        """Release what the read holds, such as a transaction of the store."""
        close = getattr(self._events, "close", None)
        if close is not None:
            with self._lock:
                close()


async def streamed(call: Call[Any], pool: Pool, lines: EventLines) -> Response:
    """The response. A short journal is a plain one."""
    if lines.finished:
        return Response(lines.part, media_type=LINES)
    state = call.state
    with ExitStack() as opened:
        opened.callback(lambda: pool.start(lines.close))
        if call.method == "HEAD":
            return Response(media_type=LINES)
        if (refused := state.refused_stream()) is not None:
            return refused
        opened.enter_context(state.counted_stream())
        patience = state.settings.stalled_client_ms / 1000
        return EventStream(_parts(call, pool, lines), patience, opened.pop_all().close, media_type=LINES)


async def _parts(call: Call[Any], pool: Pool, lines: EventLines) -> AsyncGenerator[bytes]:
    """All parts. A read that cannot be completed ends with a line that says so."""
    state, part = call.state, lines.part
    lines.part = b""
    try:
        while True:
            with Holding(state.buffered) as held:
                held.add_anyway(len(part))
                yield part
            if lines.finished:
                return
            if state.draining.is_set():
                raise Unavailable("this node is stopping; read the rest from another node", retry_after=1)  # noqa: TRY301 - sent
            part = await pool.run(lines.step, state.stream_share())
    except StrandlineError as error:
        log.warning("a read of %s was not completed: %s", call.path("topic"), error.detail)
        yield _problem(error)
    except Exception:  # noqa: BLE001 - the client must not take the answer for a complete one
        log.exception("a read of %s failed", call.path("topic"))
        yield _problem(StrandlineError("internal error; the log of the node has the details"))


def _problem(error: StrandlineError) -> bytes:
    return msgspec.json.encode({"problem": Raw(from_error(error).body)}) + b"\n"
