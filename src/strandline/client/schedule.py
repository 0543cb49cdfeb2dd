"""The schedule room over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from strandline.client import schedule_wire as wire
from strandline.client.retries import persistent
from strandline.client.transport import Transport, check
from strandline.clock import system_clock
from strandline.errors import Conflict, Invalid, NotFound
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
from strandline.schedule.room import LeaseFeed, ScheduleMessages, Schedules

_LARGEST_PAGE = 1000


class HttpSchedules(Schedules):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def put(self, schedule: Schedule) -> bool:
        settings = msgspec.to_builtins(schedule)
        path = _path(settings.pop("name"))
        response = self._transport.repeatable("PUT", path, body=msgspec.json.encode(settings))
        return response.status_code == httpx.codes.CREATED

    def create(self, schedule: Schedule) -> None:
        try:
            existing = self.get(schedule.name)
        except NotFound:
            rules.check_schedule(schedule)
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
        self._transport.repeatable("DELETE", _path(name))

    def of(self, name: str) -> HttpMessages:
        if not rules.is_name(rules.split_view(name)[0]):
            raise _no_schedule(name)
        return HttpMessages(name, self._transport)

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
        return self._change("messages", wire.new_items(named))

    def extend(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._change("extend", wire.act_items(items, moments=True))

    def release(self, items: Sequence[LeaseAct]) -> list[ItemAnswer]:
        return self._change("release", wire.act_items(items, moments=True))

    def delete(self, items: Sequence[LeaseAct | OwnerAct]) -> list[ItemAnswer]:
        return self._change("delete", wire.act_items(items, moments=False))

    def move(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._change("move", wire.act_items(items, moments=True))

    def put_back(self, items: Sequence[OwnerAct]) -> list[ItemAnswer]:
        return self._change("put-back", wire.act_items(items, moments=False))

    def _change(self, verb: str, items: Sequence[Any]) -> list[ItemAnswer]:
        if not items:
            return []
        body = msgspec.json.encode({"items": items})

        def send() -> httpx.Response:
            return self._transport.repeatable("POST", f"{self._path}/{verb}", body=body, answers=(422,))

        response = persistent(send, self._transport.timeout)
        return msgspec.json.decode(response.content, type=wire.AnswerPage).items

    # -- leases

    def lease(self, consumer: str, lease_ms: int, items: Sequence[ChosenMessage]) -> list[Lease | ItemAnswer]:
        if not items:
            return []
        asked = [msgspec.to_builtins(item) for item in items]
        request = msgspec.json.encode({"consumer": consumer, "lease_ms": lease_ms, "items": asked})
        # Not sent again: the second answer would be that the message is not available.
        response = self._transport.write("POST", f"{self._path}/leases", request)
        check(response, writes=True, answers=(422,))
        return [_lease_or_answer(item, consumer) for item in _raw_items(response)]

    def pull(self, consumer: str, lease_ms: int, limit: int, wait_ms: int = 0) -> list[Lease]:
        request = {"consumer": consumer, "lease_ms": lease_ms, "limit": limit, "wait_ms": wait_ms}
        response = self._transport.repeatable(
            "POST", f"{self._path}/leases", body=msgspec.json.encode(request), wait_s=wait_ms / 1000
        )
        return [
            msgspec.json.decode(item, type=wire.ReceivedLease).to_lease(consumer) for item in _raw_items(response)
        ]

    def subscribe(self, consumer: str, lease_ms: int, credit: int) -> LeaseFeed:
        from strandline.client.schedule_feed import WebSocketFeed  # noqa: PLC0415 - slow to load

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
        if query.limit < 1:
            raise Invalid(f"the limit of a list must be at least 1, not {query.limit}")
        return self._pages(query, self._page(query))

    def _pages(self, query: ListQuery, page: wire.MessagePage) -> Iterator[StoredMessage]:
        while True:
            yield from page.items
            if page.next is None:
                return
            page = self._page(msgspec.structs.replace(query, after=page.next))

    def _page(self, query: ListQuery) -> wire.MessagePage:
        given = msgspec.to_builtins(query) | {"limit": min(query.limit, _LARGEST_PAGE)}
        wanted = {name: value for name, value in given.items() if value not in {None, ""}}
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


def _raw_items(response: httpx.Response) -> Sequence[msgspec.Raw]:
    return msgspec.json.decode(response.content, type=wire.LeasePage).items


def _lease_or_answer(item: msgspec.Raw, consumer: str) -> Lease | ItemAnswer:
    found = msgspec.json.decode(item, type=wire.ReceivedLease)
    return found.to_lease(consumer) if found.status == "ok" else msgspec.json.decode(item, type=ItemAnswer)
