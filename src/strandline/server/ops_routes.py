"""Health, readiness and metrics of the node."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from strandline.errors import Unavailable
from strandline.server import metrics
from strandline.server.routing import Call, Endpoint, json_response


class Health(msgspec.Struct, frozen=True):
    status: str


async def health(_: Call[None]) -> Response:
    return json_response(Health("ok"))


async def ready(call: Call[None]) -> Response:
    if call.state.draining.is_set():
        raise Unavailable("this node is stopping", retry_after=5)
    for room in call.state.rooms.values():
        await call.run(room.check_ready)
    return json_response(Health("ready"))


async def metrics_page(call: Call[None]) -> Response:
    return Response(call.state.metrics.render(), media_type=metrics.MEDIA_TYPE)


ENDPOINTS = [
    Endpoint("GET", "/health", health, "The process is alive", "operations", returns={200: Health}),
    Endpoint(
        "GET", "/ready", ready, "The node accepts requests", "operations",
        returns={200: Health}, problems=(503,),
    ),
    Endpoint(
        "GET", "/metrics", metrics_page, "Prometheus metrics", "operations",
        returns={200: str}, media_type=metrics.MEDIA_TYPE,
    ),
]  # fmt: skip
