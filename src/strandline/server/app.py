"""The application: all routes of all rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from types import ModuleType
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from strandline.server import (
    archive_routes,
    event_routes,
    event_type_routes,
    feed_routes,
    flow,
    journal_routes,
    lease_routes,
    openapi,
    ops_routes,
    schedule_routes,
    schedule_socket,
    start_page,
    stream_routes,
    subscription_routes,
    timeline_routes,
)
from strandline.server.guard import Guard
from strandline.server.problems import problem
from strandline.server.route_table import Route, RouteTable, Serve
from strandline.server.routing import Call, Endpoint, ServerState, serving

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Instead of the path, in the metrics of requests that have no route or are refused before.
_NO_ROUTE = "none"

#: The route modules of every room; each one defines `ENDPOINTS`.
ROUTES: dict[str, tuple[ModuleType, ...]] = {
    "log": (event_type_routes, timeline_routes, event_routes, subscription_routes, stream_routes, start_page),
    "archive": (archive_routes,),
    "schedules": (schedule_routes, lease_routes, schedule_socket),
    "journals": (journal_routes,),
    "feeds": (feed_routes,),
}


def endpoints() -> list[Endpoint]:
    """All endpoints of the server."""
    declared = [
        replace(endpoint, room=room)
        for room, files in ROUTES.items()
        for file in files
        for endpoint in file.ENDPOINTS
    ]
    declared += ops_routes.ENDPOINTS

    async def openapi_document(_: Call[None]) -> Response:
        return Response(text, media_type="application/json")

    own = Endpoint(
        "GET", "/openapi.json", openapi_document, "This document", "operations", returns={200: dict[str, Any]}
    )
    declared.append(own)
    text = msgspec.json.encode(openapi.document(declared))
    return declared


def build(state: ServerState, host: str) -> ASGIApp:
    """The application of a node that listens on `host`."""
    table = RouteTable(routes(endpoints(), state), openapi.PATTERNS)
    limit = state.settings.max_header_bytes
    guard = Guard(host, state.settings.hosts)

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            scope["method"] = "GET"  # of every handshake
        if len(scope["path"]) > 1:  # some existing clients append a slash
            scope["path"] = scope["path"].rstrip("/") or "/"
        state.open_requests += 1
        send = flow.named(scope, send)
        try:
            if _head_bytes(scope) > limit:
                refusal = problem(431, f"the request head is larger than {limit} bytes")
            elif (refused := guard.refusal(scope)) is not None:
                refusal = refused
            else:
                await _dispatch(table, state, scope, receive, send)
                return
            _count(state, scope, _NO_ROUTE, refusal)
            await refusal(scope, receive, send)
        finally:
            state.open_requests -= 1

    return entry


async def _dispatch(table: RouteTable, state: ServerState, scope: Scope, receive: Receive, send: Send) -> None:
    found = table.find(scope["path"], scope["raw_path"], scope["method"])
    path = _NO_ROUTE
    # The server puts U+FFFD in place of bytes that are not UTF-8: different paths would name the same thing.
    if "\ufffd" in scope["path"] and not _is_utf8(unquote_to_bytes(scope["raw_path"])):
        refusal = problem(
            400, "the path is not UTF-8 after percent-decoding; encode text as UTF-8", code="malformed"
        )
    elif found is None:
        refusal = problem(404, f"there is no route {scope['path']}; /openapi.json lists all routes")
    else:
        route, parameters = found
        method = scope["method"]
        serve = route.serve.get("GET" if method == "HEAD" else method)
        if serve is not None:
            await serve(scope, receive, send, parameters)
            return
        path, refusal = route.path, _not_allowed(route, method)
    _count(state, scope, path, refusal)
    state.request_log.add(scope, refusal.status_code, 0.0)
    await refusal(scope, receive, send)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _count(state: ServerState, scope: Scope, path: str, refusal: Response) -> None:
    """Count a request that reached no route. Its method and path can be anything, so they are not shown."""
    method = scope["method"] if scope["method"] in _METHODS else "other"
    state.metrics.request(method, path, refusal.status_code, 0.0)


def _not_allowed(route: Route, method: str) -> Response:
    allowed = ", ".join(sorted(route.methods))
    return problem(405, f"{method} is not allowed for this path; use {allowed}", headers={"Allow": allowed})


def _head_bytes(scope: Scope) -> int:
    return len(scope["path"]) + len(scope["query_string"]) + sum(map(len, chain.from_iterable(scope["headers"])))


def routes(declared: Sequence[Endpoint], state: ServerState) -> list[Route]:
    """One route per path, so that an undeclared method is answered 405, with all declared methods in `Allow`."""
    by_path: dict[str, dict[str, Serve]] = {}
    for endpoint in declared:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = serving(endpoint, state)
    return [Route(path, methods) for path, methods in by_path.items()]
