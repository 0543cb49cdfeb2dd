"""A route is declared once. The Starlette route and the OpenAPI entry are made from the declaration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from strandline.errors import Malformed, OutcomeUnknown, StrandlineError, Unavailable
from strandline.logging_setup import fields
from strandline.room import Room
from strandline.server import bodies
from strandline.server.answers import Answers
from strandline.server.metrics import Metrics
from strandline.server.pools import Pool, Pools
from strandline.server.problems import from_error, problem
from strandline.server.settings import ServerSettings

log = logging.getLogger("strandline.http")
_T = TypeVar("_T")

# Bodies up to this size are decoded on the event loop: a thread switch would cost more.
_INLINE_BYTES = 32_768


class ServerState:
    """State that all routes of a server process share."""

    def __init__(self, rooms: Mapping[str, Room], settings: ServerSettings) -> None:
        self.rooms = rooms
        self.settings = settings
        self.answers = Answers()
        self.pools = Pools(settings.threads, settings.max_waiting_calls, self.answers)
        self.metrics = Metrics(rooms.values(), self.pools)
        self.draining = asyncio.Event()
        #: Requests that are not answered completely, open streams included.
        self.open_requests = 0
        self.metrics.requests.set_function(lambda: self.open_requests)
        self.open_streams = 0

    def pool_of_room(self, room: str) -> Pool:
        """The pool for calls of a room that wait for its database only."""
        return self.pools.of([f"the {room}"])

    @property
    def pool_of_bodies(self) -> Pool:
        """The pool for work on large bodies, which waits for nothing but the CPU."""
        return self.pools.of(["large bodies"])

    async def sleep(self, wake: asyncio.Event, seconds: float) -> None:
        """Wait until `wake` is set, the node stops or the time has passed."""
        waits = [asyncio.ensure_future(wake.wait()), asyncio.ensure_future(self.draining.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @contextmanager
    def counted_stream(self) -> Iterator[None]:
        """Count an open stream, for the limit, the drain and the metrics."""
        self.open_streams += 1
        self.metrics.streams.inc()
        try:
            yield
        finally:
            self.open_streams -= 1
            self.metrics.streams.dec()


_Room_co = TypeVar("_Room_co", covariant=True)


@dataclass(frozen=True)
class Call(Generic[_Room_co]):
    """One request to a room, decoded as the endpoint declares it."""

    state: ServerState
    room: _Room_co
    request: Request
    body: Any
    query: Any
    room_name: str

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Run a blocking call in a thread. It must wait for nothing but the database of the room."""
        return await self.state.pool_of_room(self.room_name).run(call, *arguments)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)


Handler = Callable[[Call[Any]], Awaitable[Response]]
Serve = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """`body`, `query` and the values of `returns` are types; RAW is a body that the handler decodes itself.

    Query parameters in `repeated` may occur several times. `json_parameters` are the parameters of `query` and
    `headers` whose text is JSON, with their types. `problems` are the statuses of errors, without those that
    any request, body, query or path parameter can cause. `room` is the room that the handler gets;
    `app.py` sets it.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    body: Any = None
    query: Any = None
    repeated: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)
    json_parameters: Mapping[str, Any] = field(default_factory=dict)
    returns: Mapping[int, Any] = field(default_factory=dict)
    answer_headers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    problems: tuple[int, ...] = ()
    media_type: str = "application/json"
    binary_type: str | None = None
    error_status: Mapping[str, int] = field(default_factory=dict)
    room: str | None = None


def declaring(endpoints: list[Endpoint], tag: str) -> Callable[..., Callable[[Handler], Handler]]:
    """A decorator that adds an endpoint for the decorated handler; its arguments are the fields of `Endpoint`.

    A type instead of a mapping in `returns` is the type of a response with status 200.
    """

    def endpoint(method: str, path: str, summary: str, returns: Any, **more: Any) -> Callable[[Handler], Handler]:
        answers = returns if isinstance(returns, dict) else {200: returns}

        def add(handler: Handler) -> Handler:
            endpoints.append(Endpoint(method, path, handler, summary, tag, returns=answers, **more))
            return handler

        return add

    return endpoint


class RAW:
    """A body that is passed on as bytes. `schema` describes it in the OpenAPI document."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")


def serving(endpoint: Endpoint, state: ServerState) -> Serve:
    room = state.rooms[endpoint.room] if endpoint.room is not None else None

    async def serve(request: Request) -> Response:
        started = time.perf_counter()
        response = await _answer(endpoint, state, room, request)
        seconds = time.perf_counter() - started
        state.metrics.request(endpoint.method, endpoint.path, response.status_code, seconds)
        more = fields(status=response.status_code, ms=round(seconds * 1000, 1))
        log.info("%s %s", request.method, quote(request.scope["path"]), extra=more)
        return response

    return serve


async def _answer(endpoint: Endpoint, state: ServerState, room: Room | None, request: Request) -> Response:
    try:
        query = bodies.decode_query(_query(endpoint, request), endpoint.query) if endpoint.query else None
        body = await _body(endpoint, state, request)
        return await endpoint.handler(Call(state, room, request, body, query, endpoint.room or "server"))
    except StrandlineError as error:
        if isinstance(error, OutcomeUnknown) and endpoint.method == "GET":
            error = Unavailable(error.detail, retry_after=1)  # it changes nothing, so it can be repeated
        if error.status >= 500:  # noqa: PLR2004 - server errors
            log.warning("%s failed: %s", endpoint.path, error.detail)
        return from_error(error, endpoint.error_status.get(error.code))
    except ClientDisconnect:
        return problem(400, "the client disconnected before the request was complete", code=Malformed.code)
    except Exception:
        log.exception("%s %s failed", endpoint.method, endpoint.path)
        return problem(500, "internal error; the log of the node has the details", code="internal_error")


def _query(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    given = request.query_params
    return {name: given.getlist(name) if name in endpoint.repeated else given[name] for name in given}


async def _body(endpoint: Endpoint, state: ServerState, request: Request) -> Any:
    if endpoint.body is None:
        return None
    limit = state.settings.max_body_bytes
    encoding = request.headers.get("content-encoding", "")
    sent = await bodies.receive(request, limit, state.settings.stalled_client_ms / 1000)
    if sent:
        bodies.check_json(request.headers.get("content-type", ""))

    def read() -> Any:
        body = bodies.unpack(sent, encoding, limit)
        return body if isinstance(endpoint.body, RAW) else bodies.decode(body, endpoint.body)

    # A small compressed body may be large when it is decompressed.
    return await state.pool_of_bodies.run(read) if encoding or len(sent) > _INLINE_BYTES else read()
