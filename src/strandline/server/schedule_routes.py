"""The routes of schedules and their messages. Leases are in `lease_routes`, push sessions in `schedule_socket`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from starlette.responses import Response

from strandline.errors import Invalid, Unavailable
from strandline.schedule.model import (
    ClockReport,
    ItemAnswer,
    LeaseAct,
    ListQuery,
    LoadStep,
    MessageState,
    OwnerAct,
    Schedule,
    StoredMessage,
)
from strandline.schedule.relay.values import RelayLetterList, RelayLetterView
from strandline.schedule.rules import MAX_ID_CHARACTERS, MAX_MS, split_view
from strandline.schedule.serving import ServedMessages, ServedSchedules
from strandline.server import schedule_items as items
from strandline.server.pages import PageQuery, page
from strandline.server.routing import INLINE_BYTES, RAW, Call, Endpoint, ServerState, declaring, json_response

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "schedules")
_MESSAGE = "/schedules/{schedule}/messages/{message_id}"

#: A consumer, a producer group or an id.
Text = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARACTERS, pattern=r"^[^\x00]+$")]
_Version = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Given = TypeVar("_Given")
_Item = TypeVar("_Item")


def refuse_if_draining(state: ServerState) -> None:
    """Unavailable if the node stops: it begins no new work."""
    if state.draining.is_set():
        raise Unavailable("this node is stopping; use another node", retry_after=1)


# -- schedules

#: All settings of a schedule; those left out get their defaults.
SettingsOfSchedule = msgspec.defstruct(
    "SettingsOfSchedule",
    [
        ("name", str | None, None),  # so that the answer of a GET can be sent
        *((own.name, own.type, own.default) for own in msgspec.structs.fields(Schedule) if own.name != "name"),
    ],
    frozen=True,
    forbid_unknown_fields=True,
)


class ScheduleList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Schedules by name. `next` is there if more follow; it is the `after` of the next request."""

    items: list[Schedule]
    next: str | None = None


@_endpoint(
    "GET", "/schedules", "All schedules and their settings; with `limit` a page", ScheduleList, query=PageQuery,
)  # fmt: skip
async def list_schedules(call: Call[ServedSchedules]) -> Response:
    return json_response(ScheduleList(*page(await call.run(call.room.all), call.query)))


@_endpoint(
    "PUT", "/schedules/{schedule}", "Create a schedule, or replace all its settings",
    {200: Schedule, 201: Schedule}, body=SettingsOfSchedule, body_optional=True, problems=(409, 507),
)  # fmt: skip
async def put_schedule(call: Call[ServedSchedules]) -> Response:
    given = msgspec.structs.asdict(call.body)
    if given.pop("name") not in {None, call.path("schedule")}:
        raise Invalid("the name in the body is not the name in the path; a schedule cannot be renamed")
    schedule = Schedule(call.path("schedule"), **given)
    return json_response(schedule, 201 if await call.run(call.room.put, schedule) else 200)


@_endpoint("GET", "/schedules/{schedule}", "The settings of a schedule", Schedule)
async def get_schedule(call: Call[ServedSchedules]) -> Response:
    return json_response(await call.run(call.room.get, call.path("schedule")))


@_endpoint("DELETE", "/schedules/{schedule}", "Delete a schedule with its messages", {204: None}, problems=(507,))
async def delete_schedule(call: Call[ServedSchedules]) -> Response:
    await call.run(call.room.delete, call.path("schedule"))
    return Response(status_code=204)


class RelayLetterQuery(msgspec.Struct, frozen=True):
    """`after` is the id of the last dead letter that is known."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, Meta(pattern=r"^[^\x00]*$")] = ""


@_endpoint(
    "GET", "/schedules/{schedule}/relay-dead-letters", "Events that the relay of a schedule has set aside",
    RelayLetterList, query=RelayLetterQuery,
)  # fmt: skip
async def list_relay_letters(call: Call[ServedSchedules]) -> Response:
    def read() -> RelayLetterList:
        found = call.room.relay_letters(call.path("schedule"), limit=call.query.limit, after=call.query.after)
        return RelayLetterList([RelayLetterView.of(letter) for letter in found])

    return json_response(await call.run(read))


@_endpoint("GET", "/clocks", "How far the clocks of nodes and clients are from the database's", ClockReport)
async def get_clocks(call: Call[ServedSchedules]) -> Response:
    return json_response(await call.run(call.room.clocks))


# -- changes of messages


def _changing(path: str, summary: str, kind: Any) -> Callable[..., Any]:
    """Declares a route that takes items of that kind and answers each."""
    answers = {200: items.AnswerList, 207: items.AnswerList, 422: items.AnswerList}
    body = RAW(items.ItemList[kind])
    return _endpoint("POST", f"/schedules/{{schedule}}/{path}", summary, answers, body=body, problems=(409, 507))


async def _change(
    call: Call[ServedSchedules],
    kind: type[_Given],
    convert: Callable[[_Given], _Item],
    operation: Callable[[ServedMessages], Callable[[Sequence[_Item]], Sequence[ItemAnswer]]],
) -> Response:
    if len(call.body) > INLINE_BYTES:
        batch = await call.state.pool_of_bodies.run(items.read_batch, call.body, kind, convert)
    else:
        batch = items.read_batch(call.body, kind, convert)
    messages = call.room.of(call.path("schedule"))
    found: Sequence[ItemAnswer] = ()
    if batch.accepted:
        change = operation(messages)
        pool, key = call.state.pool_of_room(call.room_name), (messages.name, change.__name__)
        found = await call.state.shared_calls.run(pool, key, change, batch.accepted)
    else:
        await call.run(operation(messages), ())  # Conflict if the view of dead messages refuses it
        await call.run(call.room.get, split_view(messages.name)[0])  # NotFound if there is no such schedule
    answers = batch.answers(found)
    return json_response(items.AnswerList(answers), items.status_of(answers))


@_changing("messages", "Create messages", items.CreateItem)
async def create_messages(call: Call[ServedSchedules]) -> Response:
    refuse_if_draining(call.state)
    return await _change(call, items.CreateItem, items.new_message, lambda messages: messages.create)


@_changing("extend", "Extend leases", items.HolderItem)
async def extend_leases(call: Call[ServedSchedules]) -> Response:
    return await _change(call, items.HolderItem, items.holder_act, lambda messages: messages.extend)


@_changing("release", "End leases; the messages become due at the given moments", items.HolderItem)
async def release_leases(call: Call[ServedSchedules]) -> Response:
    return await _change(call, items.HolderItem, items.holder_act, lambda messages: messages.release)


@_changing("delete", "Delete messages, as the holder of their leases or as their owner", items.DeleteItem)
async def delete_messages(call: Call[ServedSchedules]) -> Response:
    return await _change(call, items.DeleteItem, items.delete_act, lambda messages: messages.delete)


@_changing("move", "Move messages to other moments, as their owner", items.OwnerItem)
async def move_messages(call: Call[ServedSchedules]) -> Response:
    return await _change(call, items.OwnerItem, items.owner_move, lambda messages: messages.move)


@_changing("put-back", "Make dead messages available again; the name ends with `.dead`", items.PutBackItem)
async def put_back_messages(call: Call[ServedSchedules]) -> Response:
    return await _change(call, items.PutBackItem, items.put_back, lambda messages: messages.put_back)


# -- reads


class ClaimQuery(msgspec.Struct, frozen=True):
    """Who asks for the body: the owner by its group, or the holder of the lease with this version."""

    producer_group: Text | None = None
    consumer: Text | None = None
    version: _Version | UnsetType = UNSET  # None would accept the text "null"

    def of(self, message_id: str) -> OwnerAct | LeaseAct | None:
        if self.producer_group is not None and self.consumer is None:
            return OwnerAct(message_id, self.producer_group)
        if self.consumer is not None and self.version is not UNSET and self.producer_group is None:
            return LeaseAct(message_id, self.consumer, self.version)
        if self == ClaimQuery():
            return None
        raise Invalid("a body can be claimed with producer_group, or with consumer and version")


class MessageView(StoredMessage, frozen=True):
    """A message; with its body if the caller has the right to it."""

    body: Raw | UnsetType = UNSET
    body_base64: bytes | UnsetType = UNSET


class MessageList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages by id. `next` is there if more follow; it is the `after` of the next request."""

    items: list[StoredMessage]
    next: str | None = None


@_endpoint("GET", _MESSAGE, "One message; with its body for its owner or holder", MessageView, query=ClaimQuery)
async def get_message(call: Call[ServedSchedules]) -> Response:
    message_id = call.path("message_id")
    claim = call.query.of(message_id)
    messages = call.room.of(call.path("schedule"))
    if claim is None:
        return json_response(await call.run(messages.get, message_id))
    found = await call.run(messages.read, claim)
    text = found.body.is_json
    body = {"body": Raw(found.body.content)} if text else {"body_base64": found.body.content}
    return json_response(MessageView(**msgspec.structs.asdict(found.message), **body))


class MessagesQuery(msgspec.Struct, frozen=True):
    producer_group: Text | None = None
    consumer: Text | None = None
    state: MessageState | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Text | None = None


@_endpoint(
    "GET", "/schedules/{schedule}/messages", "Messages by id: all, of a producer group or of a consumer",
    MessageList, query=MessagesQuery,
)  # fmt: skip
async def list_messages(call: Call[ServedSchedules]) -> Response:
    given, messages = call.query, call.room.of(call.path("schedule"))
    # One more than asked for shows whether there are more.
    query = ListQuery(
        given.producer_group, given.consumer, given.state or None, given.after or "", given.limit + 1
    )

    def read() -> MessageList:
        found = [*islice(messages.list(query), query.limit)]
        more = len(found) > given.limit
        return MessageList(found[: given.limit], found[given.limit - 1].id if more else None)

    return json_response(await call.run(read))


class CountsQuery(msgspec.Struct, frozen=True, rename={"from_ms": "from", "to_ms": "to", "step_ms": "step"}):
    from_ms: Annotated[int, Meta(ge=0, le=MAX_MS)]
    to_ms: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    step_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] | UnsetType = UNSET


class StepView(msgspec.Struct, frozen=True, rename={"from_ms": "from"}):
    from_ms: int
    total: int
    waiting: int
    processing: int


class CountsView(msgspec.Struct, frozen=True):
    total: int
    waiting: int
    processing: int
    available: int
    steps: list[StepView] | UnsetType = UNSET


@_endpoint(
    "GET", "/schedules/{schedule}/counts", "How many messages a time range has, by state and by step", CountsView,
    query=CountsQuery,
)  # fmt: skip
async def count_messages(call: Call[ServedSchedules]) -> Response:
    given, messages = call.query, call.room.of(call.path("schedule"))
    found = await call.run(messages.counts, given.from_ms, given.to_ms, given.step_ms or None)
    steps = [_step(step) for step in found.steps] if given.step_ms else UNSET
    return json_response(CountsView(found.total, found.waiting, found.processing, found.available, steps))


def _step(step: LoadStep) -> StepView:
    return StepView(step.from_ms, step.total, step.waiting, step.processing)
