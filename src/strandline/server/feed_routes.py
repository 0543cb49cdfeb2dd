"""The routes of feeds, in JSON and MessagePack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from strandline.errors import Invalid
from strandline.feeds import wire
from strandline.feeds.operation_log import OPERATIONS
from strandline.feeds.room import Feeds
from strandline.log.serving import ServedLog
from strandline.server.bodies import MSGPACK
from strandline.server.pools import Pool
from strandline.server.routing import Call, Endpoint, declaring, json_response
from strandline.server.schedule_routes import refuse_if_draining
from strandline.server.storage_calls import find_storages, parts_of

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "feeds")
_FEED = "/feeds/{feed}"
_JSON = "application/json"


async def _pool_of_writes(call: Call[Feeds]) -> Pool:
    """The pool of calls that may wait for the storage of the recorded operations and for the store of feeds."""
    refuse_if_draining(call.state)
    log = cast("ServedLog", call.state.rooms["log"])
    storages = await find_storages(call.state, log, [OPERATIONS], active=True)
    return call.state.pools.of(["the feeds", *parts_of(storages)])


async def _write(call: Call[Feeds], work: Callable[..., Any], *given: Any, **times: Any) -> Any:
    pool = await _pool_of_writes(call)
    return await pool.run(lambda: work(*given, **times))


async def _read(call: Call[Feeds], work: Callable[[bool], Any]) -> Response:
    """Run a read, which makes the answer for JSON or MessagePack, and encode it in the same thread."""
    msgpack = prefers_msgpack(call.header("accept"))

    def read() -> bytes:
        found = work(msgpack)
        return msgspec.msgpack.encode(found) if msgpack else msgspec.json.encode(found)

    body = await call.run(read)
    return Response(body, media_type=MSGPACK if msgpack else _JSON, headers={"Vary": "Accept"})


def _accepted(call: Call[Feeds], accepted: int) -> Response:
    found = wire.AcceptedFeeds(int(accepted))
    if prefers_msgpack(call.header("accept")):
        return Response(msgspec.msgpack.encode(found), media_type=MSGPACK, headers={"Vary": "Accept"})
    return json_response(found, headers={"Vary": "Accept"})


def prefers_msgpack(accept: str | None) -> bool:
    """Whether a header Accept prefers MessagePack to JSON.

    The most specific range decides about each of them. In a tie MessagePack must be named, and JSON not.
    """
    ranges: dict[str, float] = {}
    for part in (accept or "").lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        ranges[kind] = next((_quality(one[2:]) for one in parameters if one.startswith("q=")), 1.0)
    packed, plain = (_of_kind(ranges, kind) for kind in (MSGPACK, _JSON))
    return packed > plain or (packed == plain > 0 and MSGPACK in ranges and _JSON not in ranges)


def _of_kind(ranges: dict[str, float], kind: str) -> float:
    return next((ranges[one] for one in (kind, "application/*", "*/*") if one in ranges), 0.0)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


# -- one feed


class FeedQuery(msgspec.Struct, frozen=True):
    """Entries by position, or what is new since an entry."""

    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    length: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    since: wire.IdText | UnsetType = UNSET


@_endpoint("GET", _FEED, "Entries of a feed, newest first", wire.EntryList, query=FeedQuery, msgpack=True)
async def get_feed(call: Call[Feeds]) -> Response:
    name, query = call.path("feed"), call.query
    if query.since is not UNSET and (query.offset is not UNSET or query.length is not UNSET):
        raise Invalid("give either since, or offset and length")

    def read(msgpack: bool) -> dict[str, Any]:
        if query.since is not UNSET:
            found = call.room.get_since(name, wire.number(query.since))
        else:
            offset = 0 if query.offset is UNSET else query.offset
            found = call.room.get(name, offset, 20 if query.length is UNSET else query.length)
        return {"entries": wire.entries(found, msgpack=msgpack)}

    return await _read(call, read)


@_endpoint(
    "PUT", _FEED, "Create a feed, or replace it", {204: None}, body=wire.FeedEntries, problems=(507,), msgpack=True
)
async def set_feed(call: Call[Feeds]) -> Response:
    given: wire.FeedEntries = call.body
    entries = [item.to_entry() for item in given.entries]
    await _write(call, call.room.set, call.path("feed"), entries, **given.times())
    return Response(status_code=204)


class DropQuery(msgspec.Struct, frozen=True):
    """The time of the drop, for a replay."""

    operation_time: wire.TimeText | UnsetType = UNSET
    operation_ms: wire.Milliseconds | UnsetType = UNSET


@_endpoint("DELETE", _FEED, "Remove a feed", {204: None}, query=DropQuery, problems=(507,))
async def drop_feed(call: Call[Feeds]) -> Response:
    time, ms = call.query.operation_time, call.query.operation_ms
    times = {
        "operation_time": None if time is UNSET else wire.number(time),
        "operation_ms": None if ms is UNSET else ms,
    }
    await _write(call, call.room.drop, call.path("feed"), **times)
    return Response(status_code=204)


@_endpoint(
    "POST", f"{_FEED}/merge", "Add history to a feed if it exists", wire.AcceptedFeeds, body=wire.FeedEntries,
    problems=(507,), msgpack=True,
)  # fmt: skip
async def merge_entries(call: Call[Feeds]) -> Response:
    given: wire.FeedEntries = call.body
    entries = [item.to_entry() for item in given.entries]
    return _accepted(call, await _write(call, call.room.merge, call.path("feed"), entries, **given.times()))


@_endpoint(
    "POST", f"{_FEED}/unmerge", "Take entries out of a feed; a later merge can bring them back",
    wire.AcceptedFeeds, body=wire.FeedEntries, problems=(507,), msgpack=True,
)  # fmt: skip
async def unmerge_entries(call: Call[Feeds]) -> Response:
    given: wire.FeedEntries = call.body
    entries = [item.to_entry() for item in given.entries]
    return _accepted(call, await _write(call, call.room.unmerge, call.path("feed"), entries, **given.times()))


# -- many feeds


@_endpoint(
    "POST", "/feed-entries", "Append an entry to those of the feeds that exist", wire.AcceptedFeeds,
    body=wire.EntryForFeeds, problems=(507,), msgpack=True,
)  # fmt: skip
async def append_entry(call: Call[Feeds]) -> Response:
    given: wire.EntryForFeeds = call.body
    entry = given.entry.to_entry()
    return _accepted(call, await _write(call, call.room.append, entry, given.feeds, **given.times()))


@_endpoint(
    "POST", "/feed-entries/delete", "Remove an entry from feeds for good", wire.AcceptedFeeds,
    body=wire.IdForFeeds, problems=(507,), msgpack=True,
)  # fmt: skip
async def delete_entry(call: Call[Feeds]) -> Response:
    given: wire.IdForFeeds = call.body
    entry_id = wire.number(given.id)
    return _accepted(call, await _write(call, call.room.delete, entry_id, given.feeds, **given.times()))


@_endpoint("POST", "/feeds/get", "Read several feeds", wire.FeedViews, body=wire.FeedsQuery, msgpack=True)
async def get_feeds(call: Call[Feeds]) -> Response:
    asked: wire.FeedsQuery = call.body

    def read(msgpack: bool) -> dict[str, Any]:
        found = call.room.get_many(asked.feeds, asked.offset, asked.length)
        return wire.feeds(found, msgpack=msgpack)

    return await _read(call, read)


@_endpoint("POST", "/feed-times", "A new operation time, for writes that may be repeated", wire.TimeView)
async def new_operation_time(call: Call[Feeds]) -> Response:
    return json_response(wire.TimeView(str(call.room.operation_time())))


# -- dead letters


class DeadOperationQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


@_endpoint(
    "GET", "/feed-dead-letters", "Operations on feeds that were refused or given up", wire.DeadOperationList,
    query=DeadOperationQuery,
)  # fmt: skip
async def list_dead_operations(call: Call[Feeds]) -> Response:
    def read() -> wire.DeadOperationList:
        found = call.room.dead_letters(limit=call.query.limit, after=call.query.after)
        return wire.DeadOperationList([wire.DeadOperationView.of(letter) for letter in found])

    return json_response(await call.run(read))


class FanoutLetterQuery(msgspec.Struct, frozen=True):
    """`after` is source/partition/cursor of the last record that is known."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str = ""


@_endpoint(
    "GET", "/fanout-dead-letters", "Records that the job `fanout` has set aside", wire.FanoutLetterList,
    query=FanoutLetterQuery,
)  # fmt: skip
async def list_fanout_letters(call: Call[Feeds]) -> Response:
    def read() -> wire.FanoutLetterList:
        found = call.room.fanout_letters(limit=call.query.limit, after=call.query.after)
        return wire.FanoutLetterList([wire.FanoutLetterView.of(letter) for letter in found])

    return json_response(await call.run(read))
