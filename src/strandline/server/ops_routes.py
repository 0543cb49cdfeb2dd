"""Health, readiness and metrics of the node."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from strandline.errors import Unavailable
from strandline.progress import Readiness
from strandline.server import metrics
from strandline.server.routing import Call, Endpoint, declaring, json_response

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "operations")


class Health(msgspec.Struct, frozen=True):
    status: str


@_endpoint("GET", "/health", "The process is alive", Health)
async def health(_: Call[None]) -> Response:
    return json_response(Health("ok"))


@_endpoint("GET", "/ready", "The node accepts requests", Readiness, problems=(503,))
async def ready(call: Call[None]) -> Response:
    if call.state.draining.is_set():
        raise Unavailable("this node is stopping", retry_after=5)
    for name, room in call.state.rooms.items():
        await call.state.pool_of_room(name).run(room.check_ready)
    # A node serves without its jobs, so a load balancer must not take it away because of them.
    jobs = [*call.state.jobs()]
    return json_response(Readiness("degraded" if any(job.is_wrong for job in jobs) else "ready", jobs))


@_endpoint("GET", "/metrics", "Prometheus metrics", str, media_type=metrics.MEDIA_TYPE)
async def metrics_page(call: Call[None]) -> Response:
    return Response(call.state.metrics.render(), media_type=metrics.MEDIA_TYPE)
