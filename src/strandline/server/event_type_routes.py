"""Event types and their schemas."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.errors import Invalid, NotFound
from strandline.log import schemas
from strandline.log.model import EventType, Schema
from strandline.log.room import Log
from strandline.server.routing import Call, Endpoint, json_response


class EventTypeQuery(msgspec.Struct, frozen=True):
    owning_application: str | None = None


class Paging(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class FetchQuery(msgspec.Struct, frozen=True):
    fetch: bool = False


class SchemaPage(msgspec.Struct, frozen=True):
    items: list[Schema]
    _links: dict[str, dict[str, str]]


async def list_event_types(call: Call[Log]) -> Response:
    owner = call.query.owning_application
    found = await call.run(call.room.event_types)
    return json_response([kind for kind in found if owner is None or kind.owning_application == owner])


async def create_event_type(call: Call[Log]) -> Response:
    created = await call.run(call.room.create, call.body)
    return json_response(created, 201, {"Location": f"/event-types/{created.name}"})


async def get_event_type(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.get, call.path("name")))


async def update_event_type(call: Call[Log]) -> Response:
    name = call.path("name")
    if call.body.name != name:
        await call.run(call.room.get, name)
        raise Invalid(f"the name of an event type cannot change (from {name!r} to {call.body.name!r})")
    return json_response(await call.run(call.room.update, call.body))


async def delete_event_type(call: Call[Log]) -> Response:
    await call.run(call.room.delete, call.path("name"))
    return Response(status_code=200)


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


async def get_schema(call: Call[Log]) -> Response:
    found = await call.run(call.room.schemas, call.path("name"))
    version = call.path("version")
    for schema in found:
        if version in {schema.version, "latest"}:
            return json_response(schema)
    raise NotFound(f"there is no schema version {version!r}; the latest is {found[0].version}")


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


async def enrichment_strategies(_: Call[Log]) -> Response:
    return json_response(["metadata_enrichment"])


async def partition_strategies(_: Call[Log]) -> Response:
    return json_response(["hash", "random", "user_defined"])


_TYPES = "event types"

ENDPOINTS = [
    Endpoint(
        "GET", "/event-types", list_event_types, "All event types", _TYPES,
        query=EventTypeQuery, returns={200: list[EventType]},
    ),
    Endpoint(
        "POST", "/event-types", create_event_type, "Create an event type", _TYPES,
        body=EventType, returns={201: EventType}, problems=(409, 507),
        answer_headers={201: {"Location": "The path of the new event type."}},
    ),
    Endpoint(
        "GET", "/event-types/{name}", get_event_type, "One event type", _TYPES,
        returns={200: EventType}, problems=(404,),
    ),
    Endpoint(
        "PUT", "/event-types/{name}", update_event_type, "Change an event type", _TYPES,
        body=EventType, returns={200: EventType}, problems=(404, 409, 507),
    ),
    Endpoint(
        "DELETE", "/event-types/{name}", delete_event_type, "Delete an event type with its events", _TYPES,
        returns={200: None}, problems=(404, 409, 507),
    ),
    Endpoint(
        "GET", "/event-types/{name}/schemas", list_schemas, "All schemas, newest first", _TYPES,
        query=Paging, returns={200: SchemaPage}, problems=(404,),
    ),
    Endpoint(
        "POST", "/event-types/{name}/schemas", add_schema, "Add a schema, or find an equal one", _TYPES,
        query=FetchQuery, body=Schema, returns={200: Schema, 201: Schema},
        problems=(404, 409, 507),
    ),
    Endpoint(
        "GET", "/event-types/{name}/schemas/{version}", get_schema, "One schema version, or `latest`", _TYPES,
        returns={200: Schema}, problems=(404,),
    ),
    Endpoint(
        "GET", "/registry/enrichment-strategies", enrichment_strategies, "Known enrichment strategies", _TYPES,
        returns={200: list[str]},
    ),
    Endpoint(
        "GET", "/registry/partition-strategies", partition_strategies, "Known partition strategies", _TYPES,
        returns={200: list[str]},
    ),
]  # fmt: skip
