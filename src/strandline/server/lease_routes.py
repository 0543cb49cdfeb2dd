"""The route that leases messages: due ones, with a long poll that holds no thread, or chosen ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw
from starlette.responses import Response

from strandline.errors import Invalid
from strandline.schedule.model import Lease
from strandline.schedule.room import MAX_PULLED, MAX_WAIT_MS
from strandline.schedule.serving import Pulled, ServedMessages, ServedSchedules
from strandline.server import bodies
from strandline.server import schedule_items as items
from strandline.server.pools import Pool
from strandline.server.routing import RAW, Call, Endpoint, declaring, json_response
from strandline.server.schedule_routes import Text, refuse_if_draining

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "schedules")
_T = TypeVar("_T")


class LeaseRequest(msgspec.Struct, Generic[_T], frozen=True, forbid_unknown_fields=True):
    """Either `limit`, to lease due messages, or `items`, to lease chosen messages."""

    consumer: Text
    lease_ms: int
    limit: Annotated[int, Meta(ge=1, le=MAX_PULLED)] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)] = 0
    items: Annotated[list[_T], Meta(min_length=1, max_length=items.MAX_ITEMS)] | None = None


@_endpoint(
    "POST", "/schedules/{schedule}/leases", "Lease due messages, or chosen ones",
    {200: items.LeaseList, 207: dict[str, list[dict[str, Any]]], 422: items.AnswerList},
    body=RAW(LeaseRequest[items.ChosenItem]), problems=(409, 507),
)  # fmt: skip
async def lease_messages(call: Call[ServedSchedules]) -> Response:
    refuse_if_draining(call.state)
    request = bodies.decode(call.body, LeaseRequest[Raw])
    if (request.limit is None) == (request.items is None):
        raise Invalid("a lease needs either a limit, for due messages, or items, for chosen ones")
    messages = call.room.of(call.path("schedule"))
    if request.items is not None:
        return await call.run(_lease_chosen, messages, request)
    leases = await _pull(call, messages, request)
    return json_response(items.LeaseList([items.lease_view(lease) for lease in leases]))


def _lease_chosen(messages: ServedMessages, request: LeaseRequest[Raw]) -> Response:
    batch = items.read_items(request.items or (), items.ChosenItem, items.chosen)
    found = messages.lease(request.consumer, request.lease_ms, batch.accepted)
    answers = [items.lease_view(one, "ok") if isinstance(one, Lease) else one for one in batch.answers(found)]
    return json_response({"items": answers}, items.status_of(answers))


async def _pull(
    call: Call[ServedSchedules], messages: ServedMessages, request: LeaseRequest[Raw]
) -> Sequence[Lease]:
    """Wait until there are leases, the time is over, the client is gone or the node stops."""
    gone = asyncio.create_task(_disconnected(call))
    tasks: list[asyncio.Task[None]] = [gone]

    def start(done: Pulled) -> None:
        tasks.append(asyncio.create_task(_watch(call, messages, request, gone, done)))

    try:
        found: Sequence[Lease] = await call.state.answers.of(start)
    finally:
        for task in tasks:
            task.cancel()
    if found and gone.done():  # nobody gets them
        _background(call).start(partial(messages.give_back, found))
        return ()
    return found


async def _watch(
    call: Call[ServedSchedules],
    messages: ServedMessages,
    request: LeaseRequest[Raw],
    gone: asyncio.Task[None],
    done: Pulled,
) -> None:
    """Start a pull, and stop it when nobody needs its leases any more."""
    asked = (request.consumer, request.lease_ms, request.limit, request.wait_ms, done)
    try:
        stop = await call.run(messages.start_pull, *asked)
    except Exception as error:  # noqa: BLE001 - the waiting request gets it
        done(error)
        return
    if not request.wait_ms:
        return
    draining = asyncio.create_task(call.state.draining.wait())
    try:
        await asyncio.wait([draining, gone], return_when=asyncio.FIRST_COMPLETED)
        _background(call).start(stop)
    finally:
        draining.cancel()


def _background(call: Call[ServedSchedules]) -> Pool:
    return call.state.pools.of_streams(["the schedules"])


async def _disconnected(call: Call[ServedSchedules]) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass
