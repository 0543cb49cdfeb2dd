"""The schedule room over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from strandline.client import schedule_wire as wire
from strandline.client.pages import read_pages
from strandline.client.retries import persistent
from strandline.client.transport import Transport, check
from strandline.clock import system_clock
from strandline.errors import Conflict, NotFound, OutcomeUnknown, StrandlineError
from strandline.schedule import rules
from strandline.schedule.model import (
    ChosenMessage,
    ClockReport,
    ItemAnswer,
    Lease,
    LeaseAct,
    ListQuery,
    LoadCounts,
    NewMessage,
    OwnerAct,
    Schedule,
    StoredMessage,
)
from strandline.schedule.relay.values import RelayLetter, RelayLetterList
from strandline.schedule.room import LeaseFeed, ScheduleMessages, Schedules

_LARGEST_PAGE = 1000
# What the bodies of one request may have together: far below what a node accepts, also in base64.
_MOST_BYTES = 8 << 20
_I = TypeVar("_I", bound=rules.Item)
_A = TypeVar("_A")


class HttpSchedules(Schedules):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, schedule: Schedule) -> bool:
        rules.check_schedule(schedule)
        settings = msgspec.to_builtins(schedule)
        path = _path(settings.pop("name"))
        response = self._transport.repeatable("PUT", path, writes=True, body=msgspec.json.encode(settings))
        return response.status_code == httpx.codes.CREATED

    def create(self, schedule: Schedule) -> None:
        try:
            existing = self.get(schedule.name)
        except NotFound:
            self.put(schedule)
        else:
            if existing != schedule:
                raise Conflict(
                    f"the schedule {schedule.name} exists with other settings; change them with put"
                ) from None

    def get(self, name: str) -> Schedule:
        return self._transport.get(_path(name), Schedule)

    def all(self) -> list[Schedule]:
        return self._transport.get("/schedules", dict[str, list[Schedule]])["items"]

    def delete(self, name: str) -> None:
        # Not sent again: somebody else may have created the schedule again since.
        check(self._transport.write("DELETE", _path(name)), writes=True)

    def of(self, name: str) -> HttpMessages:
        if not rules.is_name(rules.split_view(name)[0]):
            raise _no_schedule(name)
        return HttpMessages(name, self._transport)

    def relay_letters(self, name: str, *, limit: int = 100, after: str = "") -> list[RelayLetter]:
        path, place = f"{_path(name)}/relay-dead-letters", attrgetter("id")
        found = read_pages(self._transport, path, RelayLetterList, limit, after, place)
        return [view.to_letter() for view in found]

    def clocks(self) -> ClockReport:
        return self._transport.get("/clocks", ClockReport)

    def close(self) -> None:
        """Nothing to do: `Remote` closes the transport."""


class HttpMessages(ScheduleMessages):
    """Changes are sent again after a broken connection, for a few seconds: ids and versions make that safe.

    A change by version that was stored before its answer was lost is answered with `stale_version` then.
    """

    def __init__(self, name: str, transport: Transport) -> None:
        self.name = name
        self._transport = transport
        self._path = f"/schedules/{quote(name, safe='')}"

    def check_open(self) -> None:
        self._transport.check_open()

    # -- changes

    def create(self, items: Sequence[NewMessage]) -> list[ItemAnswer]:
        # A message without an id would be stored twice if the request is sent twice.
        now_ms = system_clock().now_ms()
        named = [item if item.id else msgspec.structs.replace(item, id=rules.new_id(now_ms)) for item in items]
        return self._change("messages", named, wire.new_items)

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._change("extend", items, wire.timed_acts)

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._change("release", items, wire.timed_acts)

    def delete(self, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        return self._change("delete", items, wire.acts)

    def move(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._change("move", items, wire.timed_acts)

    def put_back(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._change("put-back", items, wire.acts)

    def _change(
        self, verb: str, items: Sequence[_I], encode: Callable[[Sequence[_I]], list[dict[str, Any]]]
    ) -> list[ItemAnswer]:
        def change(asked: Sequence[_I]) -> list[ItemAnswer]:
            body = msgspec.json.encode({"items": encode(asked)})

            def send() -> httpx.Response:
                path = f"{self._path}/{verb}"
                return self._transport.repeatable("POST", path, writes=True, body=body, answers=(422,))

            response = persistent(send, self._transport.timeout)
            return msgspec.json.decode(response.content, type=wire.AnswerPage).items

        return _each(items, change)

    # -- leases

    def lease(self, consumer: str, lease_ms: int, items: Sequence[ChosenMessage]) -> list[Lease | ItemAnswer]:
        rules.check_consumer(consumer)

        def take(asked: Sequence[ChosenMessage]) -> list[Lease | ItemAnswer]:
            named = [msgspec.to_builtins(item) for item in asked]
            request = msgspec.json.encode({"consumer": consumer, "lease_ms": lease_ms, "items": named})
            # Not sent again: the second answer would be that the message is not available.
            response = self._transport.write("POST", f"{self._path}/leases", request)
            check(response, writes=True, answers=(422,))
            return [_lease_or_answer(item, consumer) for item in _raw_items(response)]

        return _each(items, take)

    def pull(self, consumer: str, lease_ms: int, limit: int, wait_ms: int = 0) -> list[Lease]:
        rules.check_consumer(consumer)
        rules.check_pull(limit, wait_ms)
        request = {"consumer": consumer, "lease_ms": lease_ms, "limit": limit, "wait_ms": wait_ms}
        body, path = msgspec.json.encode(request), f"{self._path}/leases"
        response = self._transport.repeatable("POST", path, writes=True, body=body, wait_s=wait_ms / 1000)
        return [
            msgspec.json.decode(item, type=wire.ReceivedLease).to_lease(consumer) for item in _raw_items(response)
        ]

    def subscribe(self, consumer: str, lease_ms: int, credit: int) -> LeaseFeed:
        from strandline.client.schedule_feed import WebSocketFeed  # noqa: PLC0415 - slow to load

        rules.check_consumer(consumer)
        rules.check_credit(credit)
        path = f"{self._path}/subscribe"
        return WebSocketFeed(self._transport, path, consumer, lease_ms, credit, self.release)

    # -- reads

    def get(self, message_id: str) -> StoredMessage:
        return self._transport.get(self._message_path(message_id), StoredMessage)

    def read(self, claim: LeaseAct | OwnerAct) -> Lease:
        path, query = self._message_path(claim.id), wire.claim_query(claim)
        return self._transport.get(path, wire.ReceivedMessage, query).to_lease()

    def _message_path(self, message_id: str) -> str:
        if rules.malformed(ChosenMessage(message_id)):
            raise NotFound(f"there is no message {message_id!r:.80} in the schedule {self.name}")
        # A client removes the segments `.` and `..` from a path.
        return f"{self._path}/messages/{quote(message_id, safe='').replace('.', '%2E')}"

    def list(self, query: ListQuery) -> Iterator[StoredMessage]:
        rules.check_query(query)
        return self._pages(query, self._page(query))

    def _pages(self, query: ListQuery, page: wire.MessagePage) -> Iterator[StoredMessage]:
        while True:
            yield from page.items
            if page.next is None:
                return
            page = self._page(msgspec.structs.replace(query, after=page.next))

    def _page(self, query: ListQuery) -> wire.MessagePage:
        given = msgspec.to_builtins(query) | {"limit": min(query.limit, _LARGEST_PAGE)}
        wanted = {name: value for name, value in given.items() if value is not None}
        if not query.after:
            del wanted["after"]
        return self._transport.get(f"{self._path}/messages", wire.MessagePage, wanted)

    def counts(self, from_ms: int, to_ms: int, step_ms: int | None = None) -> LoadCounts:
        query = {"from": from_ms, "to": to_ms} | ({} if step_ms is None else {"step": step_ms})
        return self._transport.get(f"{self._path}/counts", wire.ReceivedCounts, query).to_counts(from_ms)


def _path(name: str) -> str:
    if not rules.is_name(name):
        raise _no_schedule(name)
    return f"/schedules/{quote(name, safe='')}"


def _no_schedule(name: str) -> NotFound:
    return NotFound(f"there is no schedule {name!r:.80}; create it first")


def _each(items: Sequence[_I], send: Callable[[list[_I]], Sequence[_A]]) -> list[_A | ItemAnswer]:
    """The answers to all items. Malformed ones are not sent: JSON would change some of them, such as NaN."""
    problems = [rules.malformed(item) for item in items]
    asked = [item for item, problem in zip(items, problems, strict=True) if problem is None]
    answers = iter(_in_parts(asked, send))
    return [
        next(answers) if problem is None else ItemAnswer(item.id, "error", code="invalid", detail=problem)
        for item, problem in zip(items, problems, strict=True)
    ]


def _in_parts(items: Sequence[_I], send: Callable[[list[_I]], Sequence[_A]]) -> list[_A]:
    """The answers to all items, which may be more than one request can have."""
    answers: list[_A] = []
    for part in _parts(items):
        try:
            answers += send(part)
        except StrandlineError as error:
            if not answers:
                raise
            raise OutcomeUnknown(f"only a part of the batch was stored: {error}") from error
    return answers


def _parts(items: Sequence[_I]) -> Iterator[list[_I]]:
    part: list[_I] = []
    size = 0
    for item in items:
        weight = len(item.body.content) if isinstance(item, NewMessage) else 0
        if part and (len(part) == rules.MAX_ITEMS or size + weight > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += weight
    if part:
        yield part


def _raw_items(response: httpx.Response) -> Sequence[msgspec.Raw]:
    return msgspec.json.decode(response.content, type=wire.LeasePage).items


def _lease_or_answer(item: msgspec.Raw, consumer: str) -> Lease | ItemAnswer:
    found = msgspec.json.decode(item, type=wire.ReceivedLease)
    return found.to_lease(consumer) if found.status == "ok" else msgspec.json.decode(item, type=ItemAnswer)
