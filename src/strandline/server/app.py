"""The Starlette application: all routes of all rooms."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strandline.server import (
    archive_routes,
    event_routes,
    event_type_routes,
    openapi,
    ops_routes,
    stream_routes,
    subscription_routes,
    subscription_stream,
    timeline_routes,
)
from strandline.server.problems import problem
from strandline.server.routing import Call, Endpoint, Node, to_route

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def endpoints() -> list[Endpoint]:
    """Every endpoint the server has."""
    declared = [
        *event_type_routes.ENDPOINTS,
        *timeline_routes.ENDPOINTS,
        *event_routes.ENDPOINTS,
        *stream_routes.ENDPOINTS,
        *subscription_routes.ENDPOINTS,
        *subscription_stream.ENDPOINTS,
        *archive_routes.ENDPOINTS,
        *ops_routes.ENDPOINTS,
    ]

    async def openapi_document(_: Call) -> Response:
        return Response(text, media_type="application/json")

    own = Endpoint(
        "GET", "/openapi.json", openapi_document, "This description", "operations", returns={200: dict[str, Any]}
    )
    declared.append(own)
    text = msgspec.json.encode(openapi.document(declared))
    return declared


def build(node: Node) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    app = Starlette(
        routes=routes(endpoints(), node),
        exception_handlers={HTTPException: _http_problem},
    )
    # Below, slashes are dealt with; a redirect would only take a request elsewhere.
    app.router.redirect_slashes = False
    limit = node.settings.server.max_header_bytes

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # Existing clients write a slash at the end of a path now and then.
            if len(scope["path"]) > 1:
                scope["path"] = scope["path"].rstrip("/") or "/"
            if _head_bytes(scope) > limit:
                await problem(431, f"the request head is larger than {limit} bytes")(scope, receive, send)
                return
        await app(scope, receive, send)

    return entry


def _head_bytes(scope: Scope) -> int:
    target = len(scope["path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])


def routes(declared: Sequence[Endpoint], node: Node) -> list[Route]:
    """One route per path, so that a method nobody declared is 405 with all methods that exist."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in (to_route(endpoint, node) for endpoint in declared):
        for method in route.methods or ():
            by_path.setdefault(route.path, {})[method] = route
    return [_dispatching(path, methods) for path, methods in by_path.items()]


def _dispatching(path: str, methods: dict[str, Route]) -> Route:
    async def serve(request: Request) -> Response:
        answer: Response = await methods[request.method].endpoint(request)
        return answer

    return Route(path, serve, methods=sorted(methods))


async def _http_problem(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status == 405:  # noqa: PLR2004 - method not allowed
        allowed = headers.get("Allow", "")
        return problem(status, f"{request.method} is not possible here; allowed are {allowed}", headers=headers)
    if status == 404:  # noqa: PLR2004 - not found
        return problem(status, f"there is nothing at {request.scope['path']}; /openapi.json lists what there is")
    return problem(status, str(error), headers=headers)
