"""A route is declared once. What serves it and the OpenAPI entry are made from the declaration."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strandline.clock import Clock
from strandline.errors import Malformed, OutcomeUnknown, StrandlineError, Unavailable
from strandline.logging_setup import fields
from strandline.progress import JobState
from strandline.room import Room
from strandline.server import bodies
from strandline.server.answers import Answers
from strandline.server.byte_budget import ByteBudget, Holding
from strandline.server.compression import compressed
from strandline.server.flow import flow_id
from strandline.server.metrics import Metrics
from strandline.server.pools import Pool, Pools
from strandline.server.problems import from_error, problem
from strandline.server.reply import Reply
from strandline.server.request_log import RequestLog
from strandline.server.route_table import Serve
from strandline.server.settings import ServerSettings
from strandline.server.shared_calls import SharedCalls

log = logging.getLogger("strandline.http")
_T = TypeVar("_T")

#: Bodies up to this size are handled on the event loop: a thread switch would cost more.
INLINE_BYTES = 32_768
# Nakadi's routes, and those of the node itself, ignore query parameters that they do not know.
_LENIENT = frozenset({"log", None})
# What a stream reads at once; more does not make it faster.
_STREAM_BYTES = 2 << 20
# So that the first streams leave something for others.
_SPARE_SHARES = 16


class ServerState:
    """State that all routes of a server process share."""

    def __init__(self, rooms: Mapping[str, Room], settings: ServerSettings, clock: Clock) -> None:
        self.rooms = rooms
        self.settings = settings
        self.clock = clock
        self.request_log = RequestLog(settings.logged_status)
        self.answers = Answers()
        self.pools = Pools(settings.threads, settings.max_waiting_calls, self.answers)
        self.shared_calls = SharedCalls(settings.max_waiting_calls)
        #: The server's `send` may be called in any thread; see `Reply`.
        self.sends_anywhere = False
        #: The bodies of all requests that are not answered yet.
        self.bodies = ByteBudget(settings.max_pending_bytes, "the requests")
        #: What all streams have read and their clients have not taken yet.
        self.buffered = ByteBudget(settings.max_stream_bytes, "the streams")
        self.draining = asyncio.Event()
        #: The states of the jobs that run beside the node.
        self.jobs: Callable[[], Sequence[JobState]] = tuple
        #: Requests that are not answered completely, open streams included.
        self.open_requests = 0
        self.open_publishes = 0
        self.open_streams = 0
        self.metrics = Metrics(rooms.values(), self.pools)
        self._add_gauges()

    def _add_gauges(self) -> None:
        for name, help_text, read in (
            ("open_streams", "Streams open now.", lambda: self.open_streams),
            (
                "open_requests",
                "Requests not answered completely, open streams included.",
                lambda: self.open_requests,
            ),
            ("open_publishes", "Publishes without an outcome yet.", lambda: self.open_publishes),
            ("pending_bytes", "Bytes of request bodies in memory.", lambda: self.bodies.held),
            ("stream_bytes", "Bytes that streams have read ahead.", lambda: self.buffered.held),
        ):
            self.metrics.gauge(f"strandline_{name}", help_text, read)

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

    def refused_stream(self) -> Response | None:
        """The answer to a new stream if there are too many; Unavailable if streams hold too many bytes."""
        if self.open_streams >= self.settings.max_streams:
            return problem(
                503,
                f"{self.open_streams} streams are open, the limit of this node; use another node or retry later",
                code="too_many_streams",
                headers={"Retry-After": "5"},
            )
        if self.buffered.held >= self.buffered.limit:
            raise self.buffered.exceeded()
        return None

    def stream_share(self) -> int:
        """The bytes that each stream may read and buffer."""
        # Records are in memory twice while they are sent: as they were read, and encoded.
        return min(_STREAM_BYTES, self.buffered.limit // (2 * (self.open_streams + _SPARE_SHARES)))

    @contextmanager
    def counted_stream(self) -> Iterator[None]:
        """Count an open stream, for the limit, the drain and the metrics."""
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1


_Room_co = TypeVar("_Room_co", covariant=True)


class Call(msgspec.Struct, Generic[_Room_co], frozen=True):
    """One request to a room, decoded as the endpoint declares it."""

    state: ServerState
    room: _Room_co
    scope: Scope
    parameters: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: Any
    query: Any
    room_name: str
    reply: Reply
    receive: Receive

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Run a blocking call in a thread. It must wait for nothing but the database of the room."""
        return await self.state.pool_of_room(self.room_name).run(call, *arguments)

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    def path(self, name: str) -> str:
        """A parameter of the path."""
        return self.parameters[name]

    def header(self, name: str) -> str | None:
        found = self.headers.get(name.lower().encode())
        return None if found is None else found.decode("latin-1")


Handler = Callable[[Call[Any]], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """`body`, `query` and the values of `returns` are types; RAW is a body that the handler decodes itself.

    With `body_optional` a request without a body is one with the body `{}`.
    Query parameters in `repeated` may occur several times. `json_parameters` are the parameters of `query` and
    `headers` whose text is JSON, with their types. `problems` are the statuses of errors, without those that
    any request, body, query or path parameter can cause. `room` is the room that the handler gets;
    `app.py` sets it. With `msgpack` the body and the answer may be MessagePack. With `socket` the path is for
    WebSockets: the handler gets their handshakes, too.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    body: Any = None
    body_optional: bool = False
    query: Any = None
    repeated: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict)
    json_parameters: Mapping[str, Any] = field(default_factory=dict)
    returns: Mapping[int, Any] = field(default_factory=dict)
    answer_headers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    problems: tuple[int, ...] = ()
    media_type: str = "application/json"
    binary_type: str | None = None
    msgpack: bool = False
    error_status: Mapping[str, int] = field(default_factory=dict)
    room: str | None = None
    socket: bool = False


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
    """A body that is passed on as bytes. `schema` describes it for OpenAPI: a JSON schema or a type."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers=headers, media_type="application/json")


def serving(endpoint: Endpoint, state: ServerState) -> Serve:
    room = state.rooms[endpoint.room] if endpoint.room is not None else None

    async def handle(
        scope: Scope, receive: Receive, reply: Reply, parameters: Mapping[str, str], held: Holding
    ) -> Response:
        if scope["type"] == "websocket" and not endpoint.socket:
            raise Malformed("this path has no WebSocket; send an HTTP request without an Upgrade header")
        given = _query(endpoint, scope)
        if endpoint.room not in _LENIENT:
            bodies.refuse_unknown(given, endpoint.query)
        query = bodies.decode_query(given, endpoint.query) if endpoint.query else None
        headers = dict(reversed(scope["headers"]))  # of a repeated header the first one counts
        body = await _body(endpoint, state, receive, headers, held) if endpoint.body is not None else None
        name = endpoint.room or "server"
        return await endpoint.handler(
            Call(state, room, scope, parameters, headers, body, query, name, reply, receive)
        )

    async def serve(scope: Scope, receive: Receive, send: Send, parameters: Mapping[str, str]) -> None:
        started = time.perf_counter()
        reply = Reply(send, anywhere=state.sends_anywhere)
        with Holding(state.bodies) as held:
            response = await _answer(endpoint, scope, handle(scope, receive, reply, parameters, held))
        seconds = time.perf_counter() - started
        state.metrics.request(endpoint.method, endpoint.path, response.status_code, seconds)
        state.request_log.add(scope, response.status_code, seconds)
        if not reply.is_sent:
            response = await compressed(response, scope, state.pool_of_bodies)
        await reply.send(response, scope, receive)

    return serve


async def _answer(endpoint: Endpoint, scope: Scope, handled: Awaitable[Response]) -> Response:
    """The response of the handler, or the problem for its error."""
    try:
        return await handled
    except StrandlineError as error:
        if isinstance(error, OutcomeUnknown) and endpoint.method == "GET":
            error = Unavailable(error.detail, retry_after=1)  # it changes nothing, so it can be repeated
        if error.status >= 500:  # noqa: PLR2004 - server errors
            log.warning("%s failed: %s", endpoint.path, error.detail, extra=fields(flow_id=flow_id(scope)))
        return from_error(error, endpoint.error_status.get(error.code))
    except ClientDisconnect:
        return problem(400, "the client disconnected before the request was complete", code=Malformed.code)
    except Exception:
        log.exception("%s %s failed", endpoint.method, endpoint.path, extra=fields(flow_id=flow_id(scope)))
        return problem(500, "internal error; the log of the node has the details", code="internal_error")


def _query(endpoint: Endpoint, scope: Scope) -> dict[str, Any]:
    given = QueryParams(scope["query_string"])
    return {name: given.getlist(name) if name in endpoint.repeated else given[name] for name in given}


async def _body(
    endpoint: Endpoint, state: ServerState, receive: Receive, headers: Mapping[bytes, bytes], held: Holding
) -> Any:
    limit = state.settings.max_body_bytes
    sent = await bodies.receive(receive, headers, limit, state.settings.stalled_client_ms / 1000, held)
    kind = headers.get(b"content-type", b"").decode("latin-1")
    decode = bodies.check_type(kind, msgpack=endpoint.msgpack) if sent else bodies.decode
    encoding = headers.get(b"content-encoding", b"").decode("latin-1")

    def read() -> Any:
        # What is sent must be whole: a compressed body that was cut off may be unpacked to nothing.
        body = bodies.unpack(sent, encoding, limit, held) if sent or not endpoint.body_optional else b"{}"
        return body if isinstance(endpoint.body, RAW) else decode(body, endpoint.body)

    # A small compressed body may be large when it is decompressed.
    return await state.pool_of_bodies.run(read) if encoding or len(sent) > INLINE_BYTES else read()
