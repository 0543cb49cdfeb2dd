"""The routes of the archive: its event types, the state of hours, manifests and checks. They are read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import urlencode

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.archive.model import DAY_MS, HOUR_PATTERN
from strandline.archive.room import (
    MAX_PERIODS_MS,
    MAX_WAIT_MS,
    Archive,
    ArchiveStatus,
    HourCheck,
    HourReport,
    HourState,
    HourStatus,
    PeriodStatus,
    parse_span,
)
from strandline.errors import Invalid
from strandline.log.serving import ServedLog
from strandline.server.routing import Call, Endpoint, declaring, json_response
from strandline.server.storage_calls import find_storages, parts_of

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "archive")

_POLL_SECONDS = 1.0
_T = TypeVar("_T")

_Hour = Annotated[str, Meta(pattern=HOUR_PATTERN)]
_SPAN = {"start": "from", "end": "to"}


class HoursQuery(msgspec.Struct, frozen=True, rename=_SPAN):
    start: _Hour | None = None
    end: _Hour | None = None
    state: HourState | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class PeriodsQuery(msgspec.Struct, frozen=True, rename=_SPAN):
    start: _Hour
    end: _Hour


class WaitQuery(msgspec.Struct, frozen=True):
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0


class CheckQuery(msgspec.Struct, frozen=True):
    after: str = ""


class HourPage(msgspec.Struct, frozen=True):
    items: list[HourStatus]
    _links: dict[str, dict[str, str]]


@_endpoint("GET", "/archive", "Archived event types: lag, last ready hour, due hours", list[ArchiveStatus])
async def archive_status(call: Call[Archive]) -> Response:
    pool = call.state.pools.of(["the archive", "all storages"])
    return json_response(await pool.run(call.room.status))


@_endpoint(
    "GET", "/archive/periods", "Flagged directories of hours and days, for up to 31 days", list[PeriodStatus],
    query=PeriodsQuery,
)  # fmt: skip
async def list_periods(call: Call[Archive]) -> Response:
    start, end = call.query.start, call.query.end
    from_ms, to_ms = parse_span(start, end)
    if to_ms - from_ms > MAX_PERIODS_MS:
        raise Invalid(f"the span is longer than {MAX_PERIODS_MS // DAY_MS} days; request a shorter span")
    return json_response(await call.run(lambda: [*call.room.periods(start, end)]))


@_endpoint(
    "GET", "/archive/{name}/hours", "Hours of an event type and their state, oldest first", HourPage,
    query=HoursQuery,
)  # fmt: skip
async def list_hours(call: Call[Archive]) -> Response:
    name, query = call.path("name"), call.query

    def read_page() -> list[HourStatus]:
        found = call.room.hours(name, query.start, query.end, query.state)
        return [*islice(found, query.limit + 1)]

    found = await _run_in_storages(call, read_page)
    links = {}
    if len(found) > query.limit:
        given = msgspec.to_builtins(query) | {"from": found[query.limit].hour}
        following = urlencode({key: value for key, value in given.items() if value is not None})
        links["next"] = {"href": f"/archive/{name}/hours?{following}"}
    return json_response({"_links": links, "items": found[: query.limit]})


@_endpoint(
    "GET", "/archive/{name}/hours/{hour}", "One hour with its manifest; can wait until it is ready", HourReport,
    query=WaitQuery,
)  # fmt: skip
async def get_hour(call: Call[Archive]) -> Response:
    place = (call.path("name"), call.path("hour"))
    await _wait_until_ready(call, *place)
    return json_response(await _run_in_storages(call, call.room.hour, *place))


async def _run_in_storages(call: Call[Archive], work: Callable[..., _T], *given: Any) -> _T:
    """Run a call that may also wait for the storages of the event type: what is not archived yet is in the log."""
    state = call.state
    log = cast("ServedLog", state.rooms["log"])
    storages = await find_storages(state, log, [call.path("name")])
    return await state.pools.of(["the archive", *parts_of(storages)]).run(work, *given)


async def _wait_until_ready(call: Call[Archive], name: str, hour: str) -> None:
    """Poll until the hour is ready, `wait_ms` is over or the node stops. No thread is blocked between polls."""
    now = asyncio.get_running_loop().time
    deadline = now() + call.query.wait_ms / 1000
    draining = call.state.draining
    while (left := deadline - now()) > 0 and not draining.is_set():
        if await call.run(call.room.is_ready, name, hour):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(draining.wait(), min(_POLL_SECONDS, left))


@_endpoint(
    "POST", "/archive/{name}/hours/{hour}/verify",
    "Check files of a ready hour for some seconds; continue after `next`", HourCheck, query=CheckQuery,
    problems=(409,),
)  # fmt: skip
async def check_hour(call: Call[Archive]) -> Response:
    place = (call.path("name"), call.path("hour"))
    return json_response(await call.run(call.room.check, *place, call.query.after))
