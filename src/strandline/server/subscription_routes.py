"""Subscriptions and their cursors; `stream_routes.py` has their streams."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.errors import Malformed
from strandline.log.serving import ServedLog
from strandline.log.subscriptions.model import (
    CommitResult,
    EventTypeStats,
    Subscription,
    SubscriptionCursor,
)
from strandline.server.routing import Call, Endpoint, declaring, json_response
from strandline.server.storage_calls import run_in_storages

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "subscriptions")

_STREAM_ID = "X-Nakadi-StreamId"
_WHERE = {"Location": "The path of the subscription.", "Content-Location": "The same: the body is its state."}


class SubscriptionsQuery(msgspec.Struct, frozen=True):
    owning_application: str | None = None
    event_type: tuple[str, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    show_status: bool = False


class StatsQuery(msgspec.Struct, frozen=True):
    show_time_lag: bool = False


class SubscriptionPage(msgspec.Struct, frozen=True):
    items: list[Subscription]
    _links: dict[str, dict[str, str]]


class CursorItems(msgspec.Struct, frozen=True):
    items: list[SubscriptionCursor]


class CommitItems(msgspec.Struct, frozen=True):
    items: list[CommitResult]


class StatsItems(msgspec.Struct, frozen=True):
    items: list[EventTypeStats]


@_endpoint(
    "GET", "/subscriptions", "Subscriptions, newest first", SubscriptionPage, query=SubscriptionsQuery,
    repeated=frozenset({"event_type"}),
)  # fmt: skip
async def list_subscriptions(call: Call[ServedLog]) -> Response:
    query: SubscriptionsQuery = call.query
    subscriptions = call.room.subscriptions

    def find() -> tuple[list[Subscription], bool]:
        found = subscriptions.search(
            query.owning_application, query.event_type, limit=query.limit + 1, offset=query.offset
        )
        page = found[: query.limit]
        if query.show_status:
            page = [msgspec.structs.replace(one, status=subscriptions.status(str(one.id))) for one in page]
        return page, len(found) > query.limit

    page, more = await call.run(find)
    links = {}
    if query.offset:
        links["prev"] = _link(query, max(query.offset - query.limit, 0))
    if more:
        links["next"] = _link(query, query.offset + query.limit)
    return json_response({"_links": links, "items": [_shown(one) for one in page]})


def _link(query: SubscriptionsQuery, offset: int) -> dict[str, str]:
    """The path of another page, with the same filters."""
    given: list[tuple[str, Any]] = [("event_type", name) for name in query.event_type]
    if query.owning_application is not None:
        given.append(("owning_application", query.owning_application))
    if query.show_status:
        given.append(("show_status", "true"))
    return {"href": f"/subscriptions?{urlencode([*given, ('offset', offset), ('limit', query.limit)])}"}


def _shown(subscription: Subscription) -> dict[str, Any]:
    """The members that are not null: existing clients do not expect nulls."""
    return {name: value for name, value in msgspec.to_builtins(subscription).items() if value is not None}


@_endpoint(
    "POST", "/subscriptions", "Create a subscription, or return the existing one",
    {200: Subscription, 201: Subscription}, body=Subscription, problems=(507,),
    answer_headers={200: _WHERE, 201: _WHERE},
)  # fmt: skip
async def create_subscription(call: Call[ServedLog]) -> Response:
    made, new = await run_in_storages(call, call.body.event_types, call.room.subscriptions.create, call.body)
    where = f"/subscriptions/{made.id}"
    return json_response(_shown(made), 201 if new else 200, {"Location": where, "Content-Location": where})


@_endpoint("GET", "/subscriptions/{subscription_id}", "One subscription", Subscription)
async def get_subscription(call: Call[ServedLog]) -> Response:
    return json_response(_shown(await call.run(call.room.subscriptions.get, call.path("subscription_id"))))


async def read_names(call: Call[ServedLog], subscription_id: str) -> tuple[str, ...]:
    """The names of the event types that a subscription reads."""
    return (await call.run(call.room.subscriptions.get, subscription_id)).event_types


@_endpoint(
    "PUT", "/subscriptions/{subscription_id}", "Change annotations or labels", {204: None}, body=Subscription,
    problems=(507,),
)  # fmt: skip
async def update_subscription(call: Call[ServedLog]) -> Response:
    asked = msgspec.structs.replace(call.body, id=call.path("subscription_id"))
    await call.run(call.room.subscriptions.update, asked)
    return Response(status_code=204)


@_endpoint("DELETE", "/subscriptions/{subscription_id}", "Delete it and its cursors", {204: None}, problems=(507,))
async def delete_subscription(call: Call[ServedLog]) -> Response:
    await call.run(call.room.subscriptions.delete, call.path("subscription_id"))
    return Response(status_code=204)


@_endpoint("GET", "/subscriptions/{subscription_id}/cursors", "Committed cursors", CursorItems)
async def list_subscription_cursors(call: Call[ServedLog]) -> Response:
    found = await call.run(call.room.subscriptions.cursors, call.path("subscription_id"))
    return json_response({"items": found})


@_endpoint(
    "POST", "/subscriptions/{subscription_id}/cursors", "Commit cursors of a stream",
    {200: CommitItems, 204: None}, body=CursorItems, headers={_STREAM_ID: "The stream that delivered the events."},
    problems=(409, 507),
)  # fmt: skip
async def commit_subscription_cursors(call: Call[ServedLog]) -> Response:
    stream_id = call.header(_STREAM_ID)
    if stream_id is None:
        raise Malformed(f"a commit needs the header {_STREAM_ID} with the id of its stream")
    where = (call.path("subscription_id"), stream_id)
    names = {cursor.event_type for cursor in call.body.items}
    results = await run_in_storages(call, names, call.room.subscriptions.commit, *where, call.body.items)
    if all(result.result == "committed" for result in results):
        return Response(status_code=204)
    return json_response({"items": results})


@_endpoint(
    "PATCH", "/subscriptions/{subscription_id}/cursors",
    "Reset cursors to an offset, BEGIN, END or a time; all streams end", {204: None}, body=CursorItems,
    problems=(507,),
)  # fmt: skip
async def reset_subscription_cursors(call: Call[ServedLog]) -> Response:
    subscription_id = call.path("subscription_id")
    names = await read_names(call, subscription_id)
    await run_in_storages(call, names, call.room.subscriptions.reset, subscription_id, call.body.items)
    return Response(status_code=204)


@_endpoint("GET", "/subscriptions/{subscription_id}/stats", "Readers and backlog", StatsItems, query=StatsQuery)
async def get_subscription_stats(call: Call[ServedLog]) -> Response:
    subscriptions, subscription_id = call.room.subscriptions, call.path("subscription_id")
    lag = call.query.show_time_lag
    names = await read_names(call, subscription_id)
    found = await run_in_storages(call, names, lambda: subscriptions.stats(subscription_id, show_time_lag=lag))
    return json_response({"items": found})
