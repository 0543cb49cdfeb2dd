"""Streams of event types and of subscriptions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.errors import InvalidCursor, StrandlineError
from strandline.log.model import CursorText
from strandline.log.serving import PushStream, ServedLog, Wake
from strandline.log.streaming import StreamChunk, StreamLimits
from strandline.log.subscriptions.model import EventTypePartition, StreamParameters, SubscriptionCursor
from strandline.room import CounterMetric
from strandline.server.byte_budget import Holding
from strandline.server.event_routes import decode_cursors
from strandline.server.event_stream import EventStream
from strandline.server.routing import Call, Endpoint, declaring, log
from strandline.server.storage_calls import run_in_storages, stream_pool
from strandline.server.stream_encoders import (
    ARROW_STREAM,
    JSON_STREAM,
    ArrowBatches,
    JsonLines,
    StreamEncoder,
)
from strandline.server.subscription_routes import read_names

ENDPOINTS: list[Endpoint] = []
_events = declaring(ENDPOINTS, "events")
_subscriptions = declaring(ENDPOINTS, "subscriptions")
_CURSORS = "X-Nakadi-Cursors"
_STREAM_ID = "X-Nakadi-StreamId"
_SUBSCRIPTION = "/subscriptions/{subscription_id}/events"
_ID = {200: {_STREAM_ID: "The id of the stream; commits of its batches must name it."}}
_STREAMED = CounterMetric("strandline_streamed_events", "Events sent to streams.", "event_type")
# A pause after the head: some clients take over the socket then, and lose data that arrived with the head.
_HEAD_START_S = 0.1


class StreamBatch(msgspec.Struct, frozen=True):
    """One line of a JSON stream."""

    cursor: CursorText
    events: list[dict[str, Any]] = []


class SubscriptionBatch(msgspec.Struct, frozen=True):
    """One line of a JSON stream of a subscription."""

    cursor: SubscriptionCursor
    events: list[dict[str, Any]] = []


class StreamQuery(StreamParameters, frozen=True):
    """In a query, the window and the batches must not be empty, as in Nakadi."""

    max_uncommitted_events: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 10
    batch_limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 1


class StreamRequest(StreamParameters, frozen=True):
    """Without `partitions` the stream gets its share of all partitions."""

    partitions: tuple[EventTypePartition, ...] | None = ()


def _wants_arrow(call: Call[ServedLog]) -> bool:
    return ARROW_STREAM in (call.header("accept") or "")


# -- event types


@_events(
    "GET", "/event-types/{name}/events", "Stream events, starting after cursors", StreamBatch, query=StreamLimits,
    headers={_CURSORS: "JSON array of cursors to start after; default: the end."},
    json_parameters={_CURSORS: list[CursorText]}, problems=(400, 412), media_type=JSON_STREAM,
    binary_type=ARROW_STREAM, error_status={"invalid_cursor": 412},
)  # fmt: skip
async def stream(call: Call[ServedLog]) -> Response:
    call.query.check()
    header = call.header(_CURSORS)
    start = "END" if header is None else _start(header)
    encoder = ArrowBatches(("partition", "timeline")) if _wants_arrow(call) else JsonLines(_cursor)

    def open_stream(wake: Wake) -> PushStream:
        return call.room.stream(call.path("name"), start, call.query, wake, eager=encoder.eager)

    names = (call.path("name"),)
    if call.method == "HEAD":
        await run_in_storages(call, names, lambda: open_stream(lambda: None).close())
        return Response(media_type=encoder.media_type)
    return await _push(call, names, open_stream, encoder)


def _start(header: str) -> list[CursorText]:
    if found := decode_cursors(_CURSORS, header):
        return found
    raise InvalidCursor(
        f"{_CURSORS} has no cursor; name at least one partition, or leave it out to start at the end",
        reason="INVALID_FORMAT",
    )


def _cursor(chunk: StreamChunk) -> CursorText:
    return CursorText(str(chunk.partition), str(chunk.position))


# -- subscriptions


@_subscriptions(
    "GET", _SUBSCRIPTION, "Stream a share of the partitions", SubscriptionBatch, query=StreamQuery,
    problems=(409, 507), media_type=JSON_STREAM, binary_type=ARROW_STREAM, answer_headers=_ID,
)  # fmt: skip
async def stream_subscription(call: Call[ServedLog]) -> Response:
    return await _subscription(call, call.query, ())


@_subscriptions(
    "POST", _SUBSCRIPTION, "Stream a share, or chosen partitions", SubscriptionBatch, body=StreamRequest,
    problems=(409, 507), media_type=JSON_STREAM, binary_type=ARROW_STREAM, answer_headers=_ID,
)  # fmt: skip
async def open_subscription_stream(call: Call[ServedLog]) -> Response:
    return await _subscription(call, call.body, call.body.partitions or ())


async def _subscription(
    call: Call[ServedLog], parameters: StreamParameters, partitions: tuple[EventTypePartition, ...]
) -> Response:
    subscriptions, subscription_id = call.room.subscriptions, call.path("subscription_id")
    columns = ("event_type", "partition", "timeline")
    encoder = ArrowBatches(columns) if _wants_arrow(call) else JsonLines(_subscription_cursor)
    names = await read_names(call, subscription_id)
    if call.method == "HEAD":
        return Response(media_type=encoder.media_type)

    def open_stream(wake: Wake) -> PushStream:
        return subscriptions.open(subscription_id, parameters, partitions, wake, eager=encoder.eager)

    head_start_s = 0.0 if encoder.eager else _HEAD_START_S
    return await _push(call, names, open_stream, encoder, head_start_s=head_start_s, id_header=_STREAM_ID)


def _subscription_cursor(chunk: StreamChunk) -> SubscriptionCursor:
    return SubscriptionCursor(chunk.event_type, str(chunk.partition), str(chunk.position), str(uuid.uuid4()))


# -- both


async def _push(
    call: Call[ServedLog],
    names: tuple[str, ...],
    open_stream: Callable[[Wake], PushStream],
    encoder: StreamEncoder,
    *,
    head_start_s: float = 0.0,
    id_header: str | None = None,
) -> Response:
    state = call.state
    if (refused := state.refused_stream()) is not None:
        return refused
    wake = asyncio.Event()
    loop = asyncio.get_running_loop()
    with ExitStack() as opened:
        # Counted before it is opened, so that a drain waits for it and the limit includes it.
        opened.enter_context(state.counted_stream())
        push = await run_in_storages(call, names, open_stream, lambda: loop.call_soon_threadsafe(wake.set))
        opened.callback(lambda: stream_pool(call, names).start(push.close))
        chunks = _chunks(call, names, push, encoder, wake, head_start_s)
        patience = state.settings.stalled_client_ms / 1000
        response = EventStream(chunks, patience, opened.pop_all().close, media_type=encoder.media_type)
        if id_header is not None:
            response.headers[id_header] = push.id
        return response


async def _chunks(
    call: Call[ServedLog],
    names: tuple[str, ...],
    push: PushStream,
    encoder: StreamEncoder,
    wake: asyncio.Event,
    head_start_s: float,
) -> AsyncGenerator[bytes]:
    """The encoded batches, until the stream ends or the node stops."""
    state = call.state
    try:
        # The response head is sent with the first chunk, so the first chunk must not wait.
        yield encoder.start()
        if head_start_s:
            await state.sleep(asyncio.Event(), head_start_s)
        while not push.finished and not state.draining.is_set():
            wake.clear()
            chunks = await stream_pool(call, names).run(push.step, state.stream_share())
            with Holding(state.buffered) as held:
                held.add_anyway(_memory(chunks))
                for chunk in chunks:
                    if chunk.records is not None:
                        state.metrics.count(_STREAMED, chunk.event_type, chunk.records.num_rows)
                    yield encoder.encode(chunk)
            if push.idle and not push.finished:
                await state.sleep(wake, push.wait_ms() / 1000)
                if not push.has_partitions and (sign := encoder.alive()) is not None:
                    yield sign
    except StrandlineError as error:
        log.warning("a stream of %s ended: %s", quote(call.scope["path"]), error.detail)


def _memory(chunks: Sequence[StreamChunk]) -> int:
    """The size of the records and of their encoded form."""
    return 2 * sum(int(chunk.records.nbytes) for chunk in chunks if chunk.records is not None)
