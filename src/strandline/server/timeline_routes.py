"""Timelines, switches, partition growth and storages."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.errors import NotFound
from strandline.log.model import RunningSwitch, StorageInfo, Switch, Timeline
from strandline.log.room import Log
from strandline.log.serving import ServedLog
from strandline.server.routing import Call, Endpoint, declaring, json_response
from strandline.server.storage_calls import active_storage, finish, pool_of

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "timelines and storages")


class TimelineRequest(msgspec.Struct, frozen=True):
    storage_id: str


class SwitchQuery(msgspec.Struct, frozen=True):
    dry_run: bool = False


class PartitionCount(msgspec.Struct, frozen=True):
    partition_count: Annotated[int, Meta(ge=1, le=2**31 - 1)]


@_endpoint("GET", "/event-types/{name}/timelines", "Timelines, oldest first", list[Timeline])
async def list_timelines(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.timelines, call.path("name")))


@_endpoint(
    "POST", "/event-types/{name}/timelines", "Switch to another storage, live",
    {200: list[Timeline], 201: Timeline}, query=SwitchQuery, body=TimelineRequest, problems=(409, 504, 507),
)  # fmt: skip
async def switch_timeline(call: Call[ServedLog]) -> Response:
    name, storage_id = call.path("name"), call.body.storage_id
    storages = {storage_id} | await active_storage(call)
    if call.query.dry_run:
        checked = await pool_of(call.state, storages).run(call.room.admin.check_switch, name, storage_id)
        return json_response(checked)
    switching = partial(call.room.admin.switching, name, storage_id)
    return json_response(await finish(call.state, storages, switching), 201)


@_endpoint(
    "GET", "/event-types/{name}/timelines/switch", "The newest switch, and the nodes it waits for", RunningSwitch
)
async def current_switch(call: Call[Log]) -> Response:
    name = call.path("name")
    switch = await call.run(call.room.admin.current_switch, name)
    if switch is None:
        raise NotFound(f"event type {name!r} was never switched")
    return json_response(switch)


@_endpoint(
    "DELETE", "/event-types/{name}/timelines/switch", "Abort a switch that is not decided", Switch, problems=(409,)
)
async def abort_switch(call: Call[ServedLog]) -> Response:
    pool = pool_of(call.state, await active_storage(call))
    return json_response(await pool.run(call.room.admin.abort_switch, call.path("name")))


@_endpoint(
    "PUT", "/event-types/{name}/partition-count", "Grow the partition count, live", {204: None},
    body=PartitionCount, problems=(409, 504),
)  # fmt: skip
async def grow(call: Call[ServedLog]) -> Response:
    growing = partial(call.room.admin.growing, call.path("name"), call.body.partition_count)
    await finish(call.state, await active_storage(call), growing)
    return Response(status_code=204)


@_endpoint("GET", "/storages", "All storages", list[StorageInfo])
async def list_storages(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.storages))


@_endpoint("POST", "/storages", "Add a storage", {201: StorageInfo}, body=StorageInfo, problems=(409, 507))
async def add_storage(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.admin.add_storage, call.body), 201)


@_endpoint("GET", "/storages/{id}", "One storage", StorageInfo)
async def get_storage(call: Call[Log]) -> Response:
    for storage in await call.run(call.room.storages):
        if storage.id == call.path("id"):
            return json_response(storage)
    raise NotFound(f"storage {call.path('id')!r} does not exist; list the storages to find it")


@_endpoint(
    "DELETE", "/storages/{id}", "Remove an unused storage", {204: None}, problems=(400,),
    error_status={"conflict": 400},
)  # fmt: skip
async def remove_storage(call: Call[Log]) -> Response:
    await call.run(call.room.admin.remove_storage, call.path("id"))
    return Response(status_code=204)


@_endpoint("PUT", "/storages/default/{id}", "Set the default storage for new event types", StorageInfo)
async def set_default_storage(call: Call[Log]) -> Response:
    return json_response(await call.run(call.room.admin.set_default_storage, call.path("id")))
