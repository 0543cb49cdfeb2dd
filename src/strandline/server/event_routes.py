"""Publishing, partitions and cursor arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from strandline.errors import InvalidCursor, Malformed, NotFound, Unavailable
from strandline.log.model import (
    CursorText,
    Distance,
    DistanceQuery,
    ItemResult,
    PartitionInfo,
    PublishReport,
    ShiftedCursor,
)
from strandline.log.preparation import unanswered_report
from strandline.log.publish_attempt import Done
from strandline.log.serving import ServedLog
from strandline.room import CounterMetric
from strandline.server.flow import flow_id
from strandline.server.routing import INLINE_BYTES, RAW, Call, Endpoint, declaring, json_response
from strandline.server.storage_calls import active_storage, pool_of, run_in_storages

ENDPOINTS: list[Endpoint] = []
_events = declaring(ENDPOINTS, "events")
_cursors = declaring(ENDPOINTS, "cursors")

_T = TypeVar("_T")
_EVENTS = {"type": "array", "items": {"type": "object", "additionalProperties": True}}
_OK = Response(status_code=200)
_PUBLISHED = CounterMetric("strandline_published_events", "Events published.", "event_type")
_REJECTED = CounterMetric(
    "strandline_rejected_events", "Events that failed, were aborted, or have an unknown outcome.", "event_type"
)


class PartitionsQuery(msgspec.Struct, frozen=True):
    cursors: str | None = None


class PartitionQuery(msgspec.Struct, frozen=True):
    consumed_offset: str | None = None


@_events(
    "POST", "/event-types/{name}/events", "Publish a batch of events",
    {200: None, 207: list[ItemResult], 422: list[ItemResult]}, body=RAW(_EVENTS),
    headers={"X-Flow-Id": "Stored in the metadata of the events, if they have any."}, problems=(507,),
)  # fmt: skip
async def publish(call: Call[ServedLog]) -> Response:
    if call.state.draining.is_set():
        raise Unavailable("this node is stopping; publish to another node", retry_after=1)
    name = call.path("name")
    call.state.open_publishes += 1
    try:
        async with asyncio.timeout(call.room.publish_deadline_ms / 1000):
            report = await _report(call, name, flow_id(call.scope))
    except TimeoutError:
        report = await call.state.pool_of_bodies.run(unanswered_report, call.body)
    finally:
        call.state.open_publishes -= 1
    call.state.metrics.count(_PUBLISHED, name, report.submitted)
    if report.count > report.submitted:
        call.state.metrics.count(_REJECTED, name, report.count - report.submitted)
    return _published(report)


async def _report(call: Call[ServedLog], name: str, flow: str) -> PublishReport:
    # Also before a small publish: after this lookup it runs in the threads of its storage.
    storages = await active_storage(call)
    if len(call.body) <= INLINE_BYTES:
        return await call.state.answers.of(partial(_start, call, name, flow))
    # Not on the event loop: a lookup in the catalog may take long.
    pool = pool_of(call.state, storages)
    return await call.state.answers.of_future(
        await pool.run(lambda: call.room.submit(name, call.body, flow_id=flow))
    )


def _start(call: Call[ServedLog], name: str, flow: str, done: Done) -> None:
    """Start a small publish. Its client is answered by the thread that has the outcome, before the event loop."""

    def answer(outcome: PublishReport | BaseException) -> None:
        try:
            if isinstance(outcome, PublishReport):
                call.reply.send_now(_published(outcome))
        finally:
            done(outcome)

    call.room.submit_small(name, call.body, flow, answer)


def _published(report: PublishReport) -> Response:
    return _OK if report.ok else json_response(report.items, 422 if report.rejected else 207)


@_cursors(
    "GET", "/event-types/{name}/partitions", "Oldest and newest offsets", list[PartitionInfo],
    query=PartitionsQuery, json_parameters={"cursors": list[CursorText]}, problems=(400,),
)  # fmt: skip
async def list_partitions(call: Call[ServedLog]) -> Response:
    cursors = decode_cursors("cursors", call.query.cursors) if call.query.cursors else []
    return json_response(await _read(call, call.room.partitions, cursors))


async def _read(call: Call[ServedLog], work: Callable[[str, Any], _T], given: Any) -> _T:
    """Run a call that reads the event type."""
    name = call.path("name")
    return await run_in_storages(call, [name], work, name, given)


def decode_cursors(name: str, text: str) -> list[CursorText]:
    """Decode cursors from the JSON of a header or a query parameter."""
    try:
        return msgspec.json.decode(text, type=list[CursorText])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Malformed(f'{name} must be JSON like [{{"partition": "0", "offset": "BEGIN"}}]: {error}') from None


@_cursors(
    "GET", "/event-types/{name}/partitions/{partition}", "One partition", PartitionInfo, query=PartitionQuery
)
async def get_partition(call: Call[ServedLog]) -> Response:
    name, wanted = call.path("name"), call.path("partition")
    consumed = call.query.consumed_offset
    cursors = [CursorText(wanted, consumed)] if consumed is not None else []
    try:
        found = await _read(call, call.room.partitions, cursors)
    except InvalidCursor as error:
        if error.reason == "PARTITION_NOT_FOUND":
            raise NotFound(error.detail) from None
        raise
    for info in found:
        if info.partition == wanted:
            return json_response(info)
    raise NotFound(f"event type {name!r} has no partition {wanted!r}; it has 0 to {len(found) - 1}")


@_cursors(
    "POST", "/event-types/{name}/cursor-distances", "Events between two cursors", list[Distance],
    body=list[DistanceQuery],
)  # fmt: skip
async def cursor_distances(call: Call[ServedLog]) -> Response:
    return json_response(await _read(call, call.room.distances, call.body))


@_cursors(
    "POST", "/event-types/{name}/shifted-cursors", "Cursors moved by n events", list[CursorText],
    body=list[ShiftedCursor],
)  # fmt: skip
async def shifted_cursors(call: Call[ServedLog]) -> Response:
    return json_response(await _read(call, call.room.shift, call.body))


@_cursors(
    "POST", "/event-types/{name}/cursors-lag", "Number of events after each cursor", list[PartitionInfo],
    body=list[CursorText],
)  # fmt: skip
async def cursors_lag(call: Call[ServedLog]) -> Response:
    return json_response(await _read(call, call.room.lag, call.body))
