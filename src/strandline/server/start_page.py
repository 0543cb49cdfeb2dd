"""The start page: the event types, and commands to try."""

from __future__ import annotations

import html
from importlib import resources

from starlette.responses import HTMLResponse, Response

from strandline.log.room import Log
from strandline.server.routing import Call, Endpoint, declaring

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "operations")


@_endpoint(
    "GET", "/", "Start page: the event types, and commands to try", str, media_type="text/html; charset=utf-8"
)
async def start_page(call: Call[Log]) -> Response:
    page = resources.files("strandline.server").joinpath("start.html").read_text(encoding="utf-8")
    kinds = await call.run(call.room.event_types)
    rows = "".join(
        f"<tr><td><a href='/event-types/{html.escape(kind.name)}'>{html.escape(kind.name)}</a></td>"
        f"<td>{kind.category}</td><td>{kind.partition_count}</td><td>{kind.updated_at}</td></tr>"
        for kind in kinds
    )
    empty = "<tr><td colspan='4'>None yet: create one with the first command below.</td></tr>"
    host = html.escape(call.header("host") or "127.0.0.1:8080")
    return HTMLResponse(page.replace("{{rows}}", rows or empty).replace("{{url}}", f"http://{host}"))
