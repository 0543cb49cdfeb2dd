"""Event streams: batches as lines of JSON, or as one Arrow stream for the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from starlette.responses import Response

from strandline.errors import StrandlineError
from strandline.log import records
from strandline.log.model import CursorText
from strandline.log.reading import Reader
from strandline.log.streaming import StreamChunk, StreamLimits, StreamState
from strandline.server import bodies
from strandline.server.event_stream import EventStream
from strandline.server.problems import problem
from strandline.server.routing import Call, Endpoint, Node, log

JSON_STREAM = "application/x-json-stream"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
#: What an Arrow stream carries: where a record is, and the record.
ARROW_SCHEMA = pa.schema([("partition", pa.string()), ("timeline", pa.int32()), *records.READ])

_READ_BYTES = 8 << 20
_CURSORS = "X-Nakadi-Cursors"


class StreamBatch(msgspec.Struct, frozen=True):
    """One line of a JSON stream."""

    cursor: CursorText
    events: list[dict[str, Any]] = []


class _Encoder(Protocol):
    media_type: str
    eager: bool

    def start(self) -> bytes:
        """Sent at once, before the first batch."""

    def encode(self, chunk: StreamChunk) -> bytes: ...


class _JsonLines:
    media_type = JSON_STREAM
    eager = False

    def start(self) -> bytes:
        return b""

    def encode(self, chunk: StreamChunk) -> bytes:
        cursor = b'{"cursor":{"partition":"%d","offset":"%b"}' % (chunk.partition, str(chunk.position).encode())
        if chunk.records is None:
            return cursor + b"}\n"
        return b'%b,"events":[%b]}\n' % (cursor, on_one_line(chunk.records))


def on_one_line(found: pa.RecordBatch) -> bytes:
    """The values with commas. They are as they came, and JSON may be spread over lines; its strings cannot."""
    return b",".join(found["value"].to_pylist()).replace(b"\n", b" ").replace(b"\r", b" ")


class _Arrow:
    media_type = ARROW_STREAM
    # Its batches cost little, and a reader that follows wants its records now.
    eager = True

    def start(self) -> bytes:
        return bytes(ARROW_SCHEMA.serialize())

    def encode(self, chunk: StreamChunk) -> bytes:
        found = records.empty() if chunk.records is None else chunk.records
        count = found.num_rows
        place = [
            pa.repeat(pa.scalar(str(chunk.partition)), count),
            pa.repeat(pa.scalar(chunk.position.order, pa.int32()), count),
        ]
        batch = pa.RecordBatch.from_arrays([*place, *found.columns], schema=ARROW_SCHEMA)
        return bytes(batch.serialize())


async def stream(call: Call) -> Response:
    node, name = call.node, call.path("name")
    call.query.check()
    start = _start(call.header(_CURSORS))
    encoder = _Arrow() if ARROW_STREAM in (call.header("accept") or "") else _JsonLines()
    if call.request.method == "HEAD":
        await node.run(call.log.types.reader, name, start)
        return Response(media_type=encoder.media_type)
    if (refusal := too_many(node)) is not None:
        return refusal
    wake = asyncio.Event()
    with ExitStack() as opened:
        opened.enter_context(counted(node))
        reader = await node.run(_open, call, start, wake, asyncio.get_running_loop(), opened)
        patience = node.settings.server.stalled_client_ms / 1000
        chunks = _run(call, reader, encoder, wake)
        return EventStream(chunks, patience, opened.pop_all().close, media_type=encoder.media_type)


def too_many(node: Node) -> Response | None:
    """The answer to one more stream than the node takes."""
    if node.open_streams < node.settings.server.max_streams:
        return None
    return problem(
        429,
        f"{node.open_streams} streams are open on this node, which is its limit; try another node or later",
        headers={"Retry-After": "5"},
    )


@contextmanager
def counted(node: Node) -> Iterator[None]:
    """One of the node's streams, from before it is looked up: a drain waits for it, the limit knows of it."""
    node.open_streams += 1
    node.metrics.streams.inc()
    try:
        yield
    finally:
        node.open_streams -= 1
        node.metrics.streams.dec()


def _open(
    call: Call,
    start: str | list[CursorText],
    wake: asyncio.Event,
    loop: asyncio.AbstractEventLoop,
    opened: ExitStack,
) -> Reader:
    def news() -> None:
        loop.call_soon_threadsafe(wake.set)

    reader = call.log.types.reader(call.path("name"), start)
    opened.callback(reader.watch(news))
    return reader


def _start(header: str | None) -> str | list[CursorText]:
    return (bodies.decode_cursors(_CURSORS, header) if header is not None else None) or "END"


async def _run(call: Call, reader: Reader, encoder: _Encoder, wake: asyncio.Event) -> AsyncGenerator[bytes]:
    node, name = call.node, call.path("name")
    try:
        # Headers go out with the first chunk, so there is one at once.
        yield encoder.start()
        state = StreamState(call.query, reader.positions, _now_ms(), eager=encoder.eager)
        async for chunk in _chunks(node, reader, state, wake):
            if chunk.records is not None:
                node.metrics.streamed(name, chunk.records.num_rows)
            yield encoder.encode(chunk)
    except StrandlineError as error:
        log.warning("a stream of %s ended: %s", name, error.detail)


async def _chunks(
    node: Node, reader: Reader, state: StreamState, wake: asyncio.Event
) -> AsyncIterator[StreamChunk]:
    """What is due, until the stream is over or the node stops."""
    while not state.finished and not node.draining.is_set():
        wake.clear()
        wanted = state.wanted()
        found = await node.run(reader.poll, wanted, _READ_BYTES) if wanted else []
        for batch in found:
            state.add(batch)
        for chunk in state.take(_now_ms()):
            yield chunk
        if not found and not state.finished:
            await sleep(node, wake, state.wait_ms(_now_ms()) / 1000)


async def sleep(node: Node, wake: asyncio.Event, seconds: float) -> None:
    """Until there is news, the node stops or the time is over."""
    waits = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(node.draining.wait())]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


ENDPOINTS = [
    Endpoint(
        "GET", "/event-types/{name}/events", stream, "Stream events from cursors on", "events",
        query=StreamLimits,
        headers={_CURSORS: "JSON array of cursors to start after; without it, at the end."},
        json_parameters={_CURSORS: list[CursorText]},
        returns={200: StreamBatch}, problems=(400, 404, 412, 429),
        media_type=JSON_STREAM, binary_type=ARROW_STREAM,
        error_status={"invalid_cursor": 412},
    ),
]  # fmt: skip
