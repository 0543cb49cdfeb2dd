"""Health, metrics and the start page."""

from __future__ import annotations

import html
from importlib import resources

import msgspec
from starlette.responses import HTMLResponse, Response

from strandline.errors import Unavailable
from strandline.server import metrics
from strandline.server.routing import Call, Endpoint, json_response


class Health(msgspec.Struct, frozen=True):
    status: str


async def health(_: Call) -> Response:
    return json_response(Health("ok"))


async def ready(call: Call) -> Response:
    if call.node.draining.is_set():
        raise Unavailable("this node is stopping", retry_after=5)
    await call.node.run(call.log.storages)
    return json_response(Health("ready"))


async def metrics_page(call: Call) -> Response:
    return Response(call.node.metrics.render(), media_type=metrics.MEDIA_TYPE)


async def start_page(call: Call) -> Response:
    page = resources.files("strandline.server").joinpath("start.html").read_text(encoding="utf-8")
    kinds = await call.node.run(call.log.event_types)
    rows = "".join(
        f"<tr><td><a href='/event-types/{html.escape(kind.name)}'>{html.escape(kind.name)}</a></td>"
        f"<td>{kind.category}</td><td>{kind.partition_count}</td><td>{kind.updated_at}</td></tr>"
        for kind in kinds
    )
    empty = "<tr><td colspan='4'>None yet: create one with the first command below.</td></tr>"
    host = html.escape(call.request.headers.get("host", "127.0.0.1:8080"))
    return HTMLResponse(page.replace("{{rows}}", rows or empty).replace("{{url}}", f"http://{host}"))


ENDPOINTS = [
    Endpoint("GET", "/health", health, "The process lives", "operations", returns={200: Health}),
    Endpoint(
        "GET", "/ready", ready, "The node takes requests", "operations",
        returns={200: Health}, problems=(503,),
    ),
    Endpoint(
        "GET", "/metrics", metrics_page, "Prometheus metrics", "operations",
        returns={200: str}, media_type=metrics.MEDIA_TYPE,
    ),
    Endpoint(
        "GET", "/", start_page, "What is here and how to try it", "operations",
        returns={200: str}, media_type="text/html; charset=utf-8",
    ),
]  # fmt: skip
