"""Push sessions of schedules: WebSockets that get leases and take what consumers do with them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from strandline.schedule.room import MAX_CREDIT
from strandline.schedule.serving import ServedSchedules
from strandline.server.problems import problem
from strandline.server.push_socket import PushSocket
from strandline.server.routing import Call, Endpoint, declaring
from strandline.server.schedule_routes import Text, refuse_if_draining

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "schedules")


class SubscribeQuery(msgspec.Struct, frozen=True):
    consumer: Text
    lease_ms: int
    credit: Annotated[int, Meta(ge=0, le=MAX_CREDIT)]


@_endpoint(
    "GET", "/schedules/{schedule}/subscribe", "A WebSocket that gets leases and takes extend, release and delete",
    {101: None}, query=SubscribeQuery, problems=(409, 426), socket=True,
)  # fmt: skip
async def subscribe(call: Call[ServedSchedules]) -> Response:
    messages, given = call.room.of(call.path("schedule")), call.query
    if call.scope["type"] != "websocket":
        return problem(426, "this path is a WebSocket; connect to it with ws://", headers={"Upgrade": "websocket"})
    refuse_if_draining(call.state)
    if (refused := call.state.refused_stream()) is not None:
        return refused
    socket = PushSocket(call, messages, given.consumer)
    await socket.open(given.lease_ms, given.credit)
    return socket
