"""Streams of subscriptions: Nakadi's batches as lines of JSON, or one Arrow stream for the SDK."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from starlette.responses import Response

from strandline.errors import StrandlineError
from strandline.log import records
from strandline.log.subscriptions.delivery import DeliveryChunk
from strandline.log.subscriptions.model import EventTypePartition, StreamParameters, SubscriptionCursor
from strandline.log.subscriptions.session import StreamSession
from strandline.server.event_stream import EventStream
from strandline.server.routing import Call, Endpoint, log
from strandline.server.stream_routes import ARROW_SCHEMA as PLAIN_SCHEMA
from strandline.server.stream_routes import (
    ARROW_STREAM,
    JSON_STREAM,
    counted,
    on_one_line,
    sleep,
    too_many,
)

#: What an Arrow stream carries: where a record is, and the record.
ARROW_SCHEMA = pa.schema([("event_type", pa.string()), *PLAIN_SCHEMA])
# Some clients read the socket themselves once they have the head, and lose what arrived together with it.
_HEAD_START_S = 0.1


class StreamRequest(StreamParameters, frozen=True):
    """Without partitions the stream gets its share of all."""

    partitions: tuple[EventTypePartition, ...] | None = ()


class SubscriptionBatch(msgspec.Struct, frozen=True):
    """One line of a JSON stream."""

    cursor: SubscriptionCursor
    events: list[dict[str, Any]] = []


class _Encoder(Protocol):
    media_type: str
    eager: bool

    def start(self) -> bytes:
        """Sent at once, before the first batch."""

    def encode(self, chunk: DeliveryChunk) -> bytes: ...

    def alive(self) -> bytes | None:
        """What a stream without a partition has to say; a line of JSON would need a cursor."""


class _JsonLines:
    media_type = JSON_STREAM
    eager = False

    def start(self) -> bytes:
        return b""

    def encode(self, chunk: DeliveryChunk) -> bytes:
        place = (chunk.event_type, str(chunk.partition), str(chunk.position))
        cursor = b'{"cursor":' + msgspec.json.encode(SubscriptionCursor(*place, str(uuid.uuid4())))
        if chunk.records is None:
            return cursor + b"}\n"
        return b'%b,"events":[%b]}\n' % (cursor, on_one_line(chunk.records))

    def alive(self) -> None:
        return None


class _Arrow:
    media_type = ARROW_STREAM
    eager = True

    def start(self) -> bytes:
        return bytes(ARROW_SCHEMA.serialize())

    def encode(self, chunk: DeliveryChunk) -> bytes:
        found = records.empty() if chunk.records is None else chunk.records
        place = [
            pa.scalar(chunk.event_type),
            pa.scalar(str(chunk.partition)),
            pa.scalar(chunk.position.order, pa.int32()),
        ]
        columns = [pa.repeat(value, found.num_rows) for value in place]
        return bytes(pa.RecordBatch.from_arrays([*columns, *found.columns], schema=ARROW_SCHEMA).serialize())

    def alive(self) -> bytes:
        return bytes(pa.RecordBatch.from_pylist([], schema=ARROW_SCHEMA).serialize())


async def stream_subscription(call: Call) -> Response:
    return await _stream(call, call.query, ())


async def open_subscription_stream(call: Call) -> Response:
    return await _stream(call, call.body, call.body.partitions or ())


async def _stream(
    call: Call, parameters: StreamParameters, partitions: tuple[EventTypePartition, ...]
) -> Response:
    node, rooms, subscription_id = call.node, call.log.subscriptions, call.path("subscription_id")
    encoder = _Arrow() if ARROW_STREAM in (call.header("accept") or "") else _JsonLines()
    if call.request.method == "HEAD":
        await node.run(rooms.get, subscription_id)
        return Response(media_type=encoder.media_type)
    if (refusal := too_many(node)) is not None:
        return refusal
    wake = asyncio.Event()
    loop = asyncio.get_running_loop()

    def news() -> None:
        loop.call_soon_threadsafe(wake.set)

    with ExitStack() as opened:
        opened.enter_context(counted(node))
        session = await node.run(
            lambda: rooms.open(subscription_id, parameters, partitions, news, eager=encoder.eager)
        )
        # Not on the event loop: leaving is a write.
        opened.callback(node.threads.submit, rooms.end, session)
        patience = node.settings.server.stalled_client_ms / 1000
        chunks = _run(call, session, encoder, wake)
        response = EventStream(chunks, patience, opened.pop_all().close, media_type=encoder.media_type)
        response.headers["X-Nakadi-StreamId"] = session.id
        return response


async def _run(
    call: Call, session: StreamSession, encoder: _Encoder, wake: asyncio.Event
) -> AsyncGenerator[bytes]:
    node = call.node
    try:
        # Headers go out with the first chunk, so there is one at once.
        yield encoder.start()
        if not encoder.eager:
            await sleep(node, asyncio.Event(), _HEAD_START_S)
        while not session.finished and not node.draining.is_set():
            wake.clear()
            for chunk in await node.run(session.step):
                if chunk.records is not None:
                    node.metrics.streamed(chunk.event_type, chunk.records.num_rows)
                yield encoder.encode(chunk)
            if session.idle and not session.finished:
                await sleep(node, wake, session.wait_ms() / 1000)
                if not session.has_partitions and (sign := encoder.alive()) is not None:
                    yield sign
    except StrandlineError as error:
        log.warning("a stream of subscription %s ended: %s", session.subscription_id, error.detail)


_PATH = "/subscriptions/{subscription_id}/events"
_TAG = "subscriptions"
_ID = {200: {"X-Nakadi-StreamId": "Commits of what this stream delivers name it."}}

ENDPOINTS = [
    Endpoint(
        "GET", _PATH, stream_subscription, "Read a share of a subscription", _TAG,
        query=StreamParameters, returns={200: SubscriptionBatch}, problems=(404, 409, 429, 507),
        media_type=JSON_STREAM, binary_type=ARROW_STREAM, answer_headers=_ID,
    ),
    Endpoint(
        "POST", _PATH, open_subscription_stream, "Read a share, or partitions of one's choice", _TAG,
        body=StreamRequest, returns={200: SubscriptionBatch}, problems=(404, 409, 429, 507),
        media_type=JSON_STREAM, binary_type=ARROW_STREAM, answer_headers=_ID,
    ),
]  # fmt: skip
