"""Event types and their schemas."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from strandline.errors import Invalid, NotFound
from strandline.log import schemas
from strandline.log.model import EventType, Schema
from strandline.log.room import Log
from strandline.log.serving import ServedLog
from strandline.server.routing import Call, Endpoint, declaring, json_response
from strandline.server.storage_calls import pool_of, run_in_storages

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "event types")


class EventTypeQuery(msgspec.Struct, frozen=True):
    owning_application: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET  # None would accept the text "null"
    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class Paging(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class FetchQuery(msgspec.Struct, frozen=True):
    fetch: bool = False


class SchemaPage(msgspec.Struct, frozen=True):
    items: list[Schema]
    _links: dict[str, dict[str, str]]


@_endpoint(
    "GET", "/event-types", "All event types; with `limit` a page, whose `Link` header leads to the next one",
    list[EventType], query=EventTypeQuery,
)  # fmt: skip
async def list_event_types(call: Call[Log]) -> Response:
    query: EventTypeQuery = call.query
    owner = query.owning_application
    found = await call.run(call.room.event_types)
    kinds = [kind for kind in found if owner is None or kind.owning_application == owner]
    if query.limit is UNSET:
        return json_response(kinds[query.offset :])
    end = query.offset + query.limit
    rest = {"limit": query.limit, "offset": end} | ({} if owner is None else {"owning_application": owner})
    headers = {"Link": f'</event-types?{urlencode(rest)}>; rel="next"'} if end < len(kinds) else {}
    return json_response(kinds[query.offset : end], headers=headers)


@_endpoint(
    "POST", "/event-types", "Create an event type", {201: EventType}, body=EventType, problems=(409, 507),
    answer_headers={201: {"Location": "The path of the new event type."}},
)  # fmt: skip
async def create_event_type(call: Call[ServedLog]) -> Response:
    storages = {storage.id for storage in await call.run(call.room.storages) if storage.default}
    created = await pool_of(call.state, storages).run(call.room.create, call.body)
    return json_response(created, 201, {"Location": f"/event-types/{created.name}"})


@_endpoint("GET", "/event-types/{name}", "One event type", EventType)
async def get_event_type(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.get, call.path("name")))


@_endpoint("PUT", "/event-types/{name}", "Change an event type", EventType, body=EventType, problems=(409, 507))
async def update_event_type(call: Call[Log]) -> Response:
    name = call.path("name")
    if call.body.name != name:
        await call.run(call.room.get, name)
        raise Invalid(f"the name of an event type cannot change (from {name!r} to {call.body.name!r})")
    return json_response(await call.run(call.room.update, call.body))


@_endpoint("DELETE", "/event-types/{name}", "Delete an event type with its events", None, problems=(409, 507))
async def delete_event_type(call: Call[ServedLog]) -> Response:
    name = call.path("name")
    await run_in_storages(call, [name], call.room.delete, name)
    return Response(status_code=200)


@_endpoint("GET", "/event-types/{name}/schemas", "All schemas, newest first", SchemaPage, query=Paging)
async def list_schemas(call: Call[Log]) -> Response:
    found = await call.run(call.room.schemas, call.path("name"))
    start, limit = call.query.offset, call.query.limit
    base = f"/event-types/{call.path('name')}/schemas"
    links = {}
    if start:
        links["prev"] = _link(base, limit, max(start - limit, 0))
    if start + limit < len(found):
        links["next"] = _link(base, limit, start + limit)
    return json_response({"_links": links, "items": found[start : start + limit]})


def _link(base: str, limit: int, offset: int) -> dict[str, str]:
    return {"href": f"{base}?{urlencode({'limit': limit, 'offset': offset})}"}


@_endpoint(
    "POST", "/event-types/{name}/schemas", "Add a schema, or find an equal one", {200: Schema, 201: Schema},
    query=FetchQuery, body=Schema, problems=(409, 507),
)  # fmt: skip
async def add_schema(call: Call[Log]) -> Response:
    name = call.path("name")
    if call.query.fetch:
        wanted = schemas.parse(call.body.schema)
        for schema in await call.run(call.room.schemas, name):
            if schemas.parse(schema.schema) == wanted:
                return json_response(schema)
        raise NotFound("no schema of this event type matches the given one")
    current = await call.run(call.room.get, name)
    changed = msgspec.structs.replace(current, schema=call.body)
    updated = await call.run(call.room.update, changed)
    return json_response(updated.schema, 201)


@_endpoint("GET", "/event-types/{name}/schemas/{version}", "One schema version, or `latest`", Schema)
async def get_schema(call: Call[Log]) -> Response:
    found = await call.run(call.room.schemas, call.path("name"))
    version = call.path("version")
    for schema in found:
        if version in {schema.version, "latest"}:
            return json_response(schema)
    raise NotFound(f"there is no schema version {version!r}; the latest is {found[0].version}")


@_endpoint("GET", "/registry/enrichment-strategies", "Known enrichment strategies", list[str])
async def enrichment_strategies(_: Call[Log]) -> Response:
    return json_response(["metadata_enrichment"])


@_endpoint("GET", "/registry/partition-strategies", "Known partition strategies", list[str])
async def partition_strategies(_: Call[Log]) -> Response:
    return json_response(["hash", "random", "user_defined"])
