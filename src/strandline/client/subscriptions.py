"""Subscriptions over HTTP, and consumers that reconnect."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import httpx
import msgspec
import pyarrow as pa

from strandline.client.reading import ARROW_STREAM, record_batches
from strandline.client.transport import Params, Transport
from strandline.errors import Conflict, NotFound, Unavailable
from strandline.log.records import READ
from strandline.log.subscriptions.model import (
    CommitResult,
    DeliveredBatch,
    EventTypeStats,
    StreamParameters,
    Subscription,
    SubscriptionCursor,
)
from strandline.log.subscriptions.room import SDK_PARAMETERS, Consumer, Subscriptions

_T = TypeVar("_T")
_PLACE = ("event_type", "partition", "timeline")


def _path(subscription_id: str, *rest: str) -> str:
    # An invalid id such as "../storages" would lead to another resource.
    try:
        uuid.UUID(subscription_id)
    except ValueError:
        raise NotFound(
            f"subscription {subscription_id!r} does not exist; list the subscriptions to find it"
        ) from None
    return "/".join(("/subscriptions", subscription_id, *rest))


def _items(items: Sequence[SubscriptionCursor]) -> bytes:
    return msgspec.json.encode({"items": list(items)})


class HttpSubscriptions(Subscriptions):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, subscription: Subscription) -> tuple[Subscription, bool]:
        body = msgspec.json.encode(subscription)
        response = self._transport.repeatable("POST", "/subscriptions", writes=True, body=body)
        created = response.status_code == httpx.codes.CREATED
        return msgspec.json.decode(response.content, type=Subscription), created

    def get(self, subscription_id: str) -> Subscription:
        return self._transport.get(_path(subscription_id), Subscription)

    def search(
        self,
        owning_application: str | None = None,
        event_types: Sequence[str] = (),
        *,
        limit: int = 1000,
        offset: int = 0,
    ) -> list[Subscription]:
        query: dict[str, Any] = {"event_type": [*event_types], "limit": limit, "offset": offset}
        if owning_application is not None:
            query["owning_application"] = owning_application
        return self._items("/subscriptions", Subscription, query)

    def update(self, subscription: Subscription) -> None:
        path, body = _path(str(subscription.id)), msgspec.json.encode(subscription)
        self._transport.repeatable("PUT", path, writes=True, body=body)

    def delete(self, subscription_id: str) -> None:
        self._transport.repeatable("DELETE", _path(subscription_id), writes=True)

    def cursors(self, subscription_id: str) -> list[SubscriptionCursor]:
        return self._items(_path(subscription_id, "cursors"), SubscriptionCursor)

    def commit(
        self, subscription_id: str, stream_id: str, cursors: Sequence[SubscriptionCursor]
    ) -> list[CommitResult]:
        path, headers = _path(subscription_id, "cursors"), {"X-Nakadi-StreamId": stream_id}
        response = self._transport.repeatable("POST", path, writes=True, body=_items(cursors), headers=headers)
        if response.status_code == httpx.codes.NO_CONTENT:
            return [CommitResult(cursor, "committed") for cursor in cursors]
        return msgspec.convert(msgspec.json.decode(response.content)["items"], list[CommitResult])

    def reset(self, subscription_id: str, cursors: Sequence[SubscriptionCursor] = ()) -> None:
        path = _path(subscription_id, "cursors")
        self._transport.repeatable("PATCH", path, writes=True, body=_items(cursors))

    def stats(self, subscription_id: str, *, show_time_lag: bool = False) -> list[EventTypeStats]:
        query = {"show_time_lag": str(show_time_lag).lower()}
        return self._items(_path(subscription_id, "stats"), EventTypeStats, query)

    def _items(self, path: str, kind: type[_T], query: Params | None = None) -> list[_T]:
        return [msgspec.convert(item, kind) for item in self._transport.get(path, dict[str, Any], query)["items"]]

    def consume(self, subscription_id: str, parameters: StreamParameters = SDK_PARAMETERS) -> Consumer:
        return HttpConsumer(self, self._transport, self.get(subscription_id), parameters)


class HttpConsumer(Consumer):
    _transient = (Conflict, Unavailable)

    def __init__(
        self,
        room: HttpSubscriptions,
        transport: Transport,
        subscription: Subscription,
        parameters: StreamParameters,
    ) -> None:
        self.subscription = subscription
        self._room = room
        self._transport = transport
        self._query = {name: value for name, value in msgspec.to_builtins(parameters).items() if value}
        self._opened = ExitStack()
        self._stream_id = ""
        self._incoming: Iterator[pa.RecordBatch] = iter(())
        self._open()

    def _open(self) -> None:
        path = _path(str(self.subscription.id), "events")
        with ExitStack() as opening:
            response = opening.enter_context(self._transport.stream(path, self._query, {"Accept": ARROW_STREAM}))
            self._stream_id = response.headers["X-Nakadi-StreamId"]
            self._incoming = record_batches(response)
            self._opened = opening.pop_all()

    def receive(self, timeout: float | None = None) -> DeliveredBatch | None:
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            records = self._next()
            if records is None:
                self._reopen()
            elif records.num_rows:
                name, partition, timeline = (records[column][0].as_py() for column in _PLACE)
                return DeliveredBatch(name, partition, timeline, records.select(READ.names), self._stream_id)
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def _next(self) -> pa.RecordBatch | None:
        """The next batch, which may be empty; None if the stream has ended or is broken."""
        try:
            return next(self._incoming, None)
        except (Unavailable, httpx.TransportError):
            return None

    def _end(self) -> None:
        self._opened.close()

    def _check_open(self) -> None:
        super()._check_open()
        self._transport.check_open()
