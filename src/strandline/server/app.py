"""The Starlette application: all routes of all rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from strandline.server import (
    archive_routes,
    event_routes,
    event_type_routes,
    openapi,
    ops_routes,
    start_page,
    stream_routes,
    subscription_routes,
    timeline_routes,
)
from strandline.server.guard import Guard
from strandline.server.problems import problem
from strandline.server.routing import Call, Endpoint, Serve, ServerState, serving

#: The route modules of every room; each one defines `ENDPOINTS`.
ROUTES: dict[str, tuple[ModuleType, ...]] = {
    "log": (event_type_routes, timeline_routes, event_routes, subscription_routes, stream_routes, start_page),
    "archive": (archive_routes,),
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
    app = Starlette(routes=routes(endpoints(), state), exception_handlers={HTTPException: _http_problem})
    # `entry` removes trailing slashes, so no redirect is needed.
    app.router.redirect_slashes = False
    limit = state.settings.max_header_bytes
    guard = Guard(host, state.settings.hosts)

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Some existing clients append a slash to the path.
            if len(scope["path"]) > 1:
                scope["path"] = scope["path"].rstrip("/") or "/"
            if _head_bytes(scope) > limit:
                await problem(431, f"the request head is larger than {limit} bytes")(scope, receive, send)
                return
            if (refusal := guard.refusal(scope)) is not None:
                await refusal(scope, receive, send)
                return
        state.open_requests += 1
        try:
            await app(scope, receive, send)
        finally:
            state.open_requests -= 1

    return entry


def _head_bytes(scope: Scope) -> int:
    target = len(scope["path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])


def routes(declared: Sequence[Endpoint], state: ServerState) -> list[Route]:
    """One route per path: an undeclared method is answered 405, with all declared methods in `Allow`."""
    by_path: dict[str, dict[str, Serve]] = {}
    for endpoint in declared:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = serving(endpoint, state)
    return [_dispatching(path, methods) for path, methods in by_path.items()]


def _dispatching(path: str, methods: dict[str, Serve]) -> Route:
    async def serve(request: Request) -> Response:
        # Starlette adds HEAD to a GET route.
        return await methods["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, serve, methods=sorted(methods))


async def _http_problem(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status == 405:  # noqa: PLR2004 - method not allowed
        allowed = headers.get("Allow", "")
        return problem(status, f"{request.method} is not allowed for this path; use {allowed}", headers=headers)
    if status == 404:  # noqa: PLR2004 - not found
        return problem(status, f"there is no route {request.scope['path']}; /openapi.json lists all routes")
    return problem(status, str(error), headers=headers)
