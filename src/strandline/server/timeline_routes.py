"""Timelines, switches, partition growth and storages."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.errors import NotFound
from strandline.log.model import StorageInfo, Switch, Timeline
from strandline.log.room import Log
from strandline.server.routing import Call, Endpoint, json_response


class TimelineRequest(msgspec.Struct, frozen=True):
    storage_id: str


class SwitchQuery(msgspec.Struct, frozen=True):
    dry_run: bool = False


class PartitionCount(msgspec.Struct, frozen=True):
    partition_count: Annotated[int, Meta(ge=1, le=2**31 - 1)]


async def list_timelines(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.timelines, call.path("name")))


async def switch_timeline(call: Call[Log]) -> Response:
    name, storage_id = call.path("name"), call.body.storage_id
    if call.query.dry_run:
        return json_response(await call.run(call.room.admin.check_switch, name, storage_id))
    return json_response(await call.run(call.room.admin.switch, name, storage_id), 201)


async def current_switch(call: Call[Log]) -> Response:
    name = call.path("name")
    switch = await call.run(call.room.admin.current_switch, name)
    if switch is None:
        raise NotFound(f"event type {name!r} was never switched")
    return json_response(switch)


async def abort_switch(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.admin.abort_switch, call.path("name")))


async def grow(call: Call[Log]) -> Response:
    await call.run(call.room.admin.grow, call.path("name"), call.body.partition_count)
    return Response(status_code=204)


async def list_storages(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.storages))


async def get_storage(call: Call[Log]) -> Response:
    for storage in await call.run(call.room.storages):
        if storage.id == call.path("id"):
            return json_response(storage)
    raise NotFound(f"storage {call.path('id')!r} does not exist")


async def add_storage(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.admin.add_storage, call.body), 201)


async def remove_storage(call: Call[Log]) -> Response:
    await call.run(call.room.admin.remove_storage, call.path("id"))
    return Response(status_code=204)


async def set_default_storage(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.admin.set_default_storage, call.path("id")))


_TAG = "timelines and storages"

ENDPOINTS = [
    Endpoint(
        "GET", "/event-types/{name}/timelines", list_timelines, "Timelines, oldest first", _TAG,
        returns={200: list[Timeline]}, problems=(404,),
    ),
    Endpoint(
        "POST", "/event-types/{name}/timelines", switch_timeline, "Switch to another storage, live", _TAG,
        query=SwitchQuery, body=TimelineRequest, returns={200: list[Timeline], 201: Timeline},
        problems=(400, 404, 409, 413, 415, 422, 503, 507),
    ),
    Endpoint(
        "GET", "/event-types/{name}/timelines/switch", current_switch, "The newest switch", _TAG,
        returns={200: Switch}, problems=(404,),
    ),
    Endpoint(
        "DELETE", "/event-types/{name}/timelines/switch", abort_switch, "Abort a switch that is not decided", _TAG,
        returns={200: Switch}, problems=(404, 409, 503),
    ),
    Endpoint(
        "PUT", "/event-types/{name}/partition-count", grow, "Grow the partition count, live", _TAG,
        body=PartitionCount, returns={204: None}, problems=(400, 404, 409, 413, 415, 422, 503),
    ),
    Endpoint("GET", "/storages", list_storages, "All storages", _TAG, returns={200: list[StorageInfo]}),
    Endpoint(
        "POST", "/storages", add_storage, "Add a storage", _TAG,
        body=StorageInfo, returns={201: StorageInfo}, problems=(400, 409, 413, 415, 422, 503, 507),
    ),
    Endpoint(
        "GET", "/storages/{id}", get_storage, "One storage", _TAG,
        returns={200: StorageInfo}, problems=(404,),
    ),
    Endpoint(
        "DELETE", "/storages/{id}", remove_storage, "Remove an unused storage", _TAG,
        returns={204: None}, problems=(400, 404), error_status={"conflict": 400},
    ),
    Endpoint(
        "PUT", "/storages/default/{id}", set_default_storage, "Set the default storage for new event types", _TAG,
        returns={200: StorageInfo}, problems=(404,),
    ),
]  # fmt: skip
