"""The log room over HTTP."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import httpx
import msgspec

from strandline.client.admin import HttpAdmin, event_type_path
from strandline.client.lanes import Lanes
from strandline.client.reading import HttpReader, identity, plan
from strandline.client.subscriptions import HttpSubscriptions
from strandline.client.transport import Transport, check
from strandline.errors import Conflict, InvalidCursor, OutcomeUnknown, StrandlineError, Unavailable
from strandline.log import event_json, preparation
from strandline.log.event_json import Events
from strandline.log.model import (
    OUTCOME_UNKNOWN,
    CursorText,
    Distance,
    DistanceQuery,
    EventType,
    ItemResult,
    PartitionInfo,
    PublishReport,
    Schema,
    ShiftedCursor,
    StorageInfo,
    Timeline,
)
from strandline.log.reading import Batch
from strandline.log.room import Log, Start

_REPORTS = {httpx.codes.MULTI_STATUS, httpx.codes.UNPROCESSABLE_ENTITY}
_THREADS = 8
_UNKNOWN_PAUSES_S = (0.2, 1.0, 3.0)
_split = msgspec.json.Decoder(list[msgspec.Raw])


class HttpLog(Log):
    """Publishes of one thread to one event type are sent one after the other, which keeps their order."""

    def __init__(self, transport: Transport, *, retry_unknown: bool = False) -> None:
        self._transport = transport
        self._retry_unknown = retry_unknown
        self._lanes = Lanes(_THREADS)
        self.subscriptions = HttpSubscriptions(transport)
        self.admin = HttpAdmin(transport)

    # -- event types

    def create(self, event_type: EventType, *, exist_ok: bool = False) -> EventType:
        try:
            return self._transport.change("POST", "/event-types", EventType, event_type)
        except Conflict:
            if not exist_ok:
                raise
            return self.get(event_type.name)

    def get(self, name: str) -> EventType:
        return self._transport.get(event_type_path(name), EventType)

    def event_types(self) -> list[EventType]:
        return self._transport.get("/event-types", list[EventType])

    def update(self, event_type: EventType) -> EventType:
        return self._transport.change("PUT", event_type_path(event_type.name), EventType, event_type)

    def delete(self, name: str) -> None:
        check(self._transport.write("DELETE", event_type_path(name)), writes=True)

    def schemas(self, name: str) -> list[Schema]:
        return [*self._transport.pages(event_type_path(name, "schemas"), Schema, {"limit": 1000})]

    # -- events

    def submit(self, name: str, events: Events, *, flow_id: str | None = None) -> Future[PublishReport]:
        items = event_json.to_items(events, sys.maxsize)
        return self._lanes.submit(_lane(name), lambda: self._publish(name, items, flow_id))

    def publish(self, name: str, events: Events, *, flow_id: str | None = None) -> PublishReport:
        if self._lanes.busy(_lane(name)):
            return self.submit(name, events, flow_id=flow_id).result()
        # The lane is idle, and only this thread can submit to it.
        return self._publish(name, event_json.to_items(events, sys.maxsize), flow_id)

    def _publish(self, name: str, items: Sequence[bytes], flow_id: str | None) -> PublishReport:
        body = b"[" + b",".join(items) + b"]"
        if not _holds(body, items) and (report := preparation.undecodable(items)) is not None:
            # In the array, items that are not JSON could merge with their neighbours.
            self.get(name)
            return report
        if self._retry_unknown:
            return self._post_until_known(name, body, len(items), flow_id)
        return self._post(name, body, len(items), flow_id)

    def _post(self, name: str, body: bytes, count: int, flow_id: str | None) -> PublishReport:
        response = self._transport.write("POST", event_type_path(name, "events"), body, flow_id)
        if response.status_code in _REPORTS and response.content.startswith(b"["):
            return PublishReport(count, msgspec.json.decode(response.content, type=tuple[ItemResult, ...]))
        check(response, writes=True)
        return PublishReport(count)

    def _post_until_known(self, name: str, body: bytes, count: int, flow_id: str | None) -> PublishReport:
        """Retry a few times until the outcome is known. Events may be stored more than once."""
        doubt: StrandlineError | None = None
        for pause in (*_UNKNOWN_PAUSES_S, None):
            try:
                report = self._post(name, body, count, flow_id)
            except OutcomeUnknown as error:
                doubt = error
            except Unavailable:
                if doubt is None:
                    raise
            else:
                if pause is None or all(item.detail != OUTCOME_UNKNOWN for item in report.items):
                    return report
            if pause is not None:
                time.sleep(pause)
        raise doubt or OutcomeUnknown

    def read(
        self,
        name: str,
        start: Start = "BEGIN",
        *,
        follow: bool = False,
        limit: int | None = None,
        batch_size: int = 10_000,
    ) -> Iterator[Batch]:
        known = identity(self, name)

        def check_identity() -> None:
            if identity(self, name) != known:
                raise InvalidCursor(f"event type {name!r} was deleted and created again", reason="UNAVAILABLE")

        reads = plan(self, name, start, follow=follow)
        return HttpReader(self._transport, name, reads, check_identity, batch_size, limit).batches()

    def partitions(self, name: str, cursors: Sequence[CursorText] = ()) -> list[PartitionInfo]:
        # Two requests: the cursors of a thousand partitions are too long for a URL.
        lags = {info.partition: info for info in self.lag(name, cursors)} if cursors else {}
        found = self._transport.get(event_type_path(name, "partitions"), list[PartitionInfo])
        return [lags.get(info.partition, info) for info in found]

    # -- cursors

    def distances(self, name: str, queries: Sequence[DistanceQuery]) -> list[Distance]:
        return self._transport.ask(event_type_path(name, "cursor-distances"), queries, list[Distance])

    def shift(self, name: str, cursors: Sequence[ShiftedCursor]) -> list[CursorText]:
        return self._transport.ask(event_type_path(name, "shifted-cursors"), cursors, list[CursorText])

    def lag(self, name: str, cursors: Sequence[CursorText]) -> list[PartitionInfo]:
        return self._transport.ask(event_type_path(name, "cursors-lag"), cursors, list[PartitionInfo])

    # -- where it is stored

    def timelines(self, name: str) -> list[Timeline]:
        return self._transport.get(event_type_path(name, "timelines"), list[Timeline])

    def storages(self) -> list[StorageInfo]:
        return self._transport.get("/storages", list[StorageInfo])

    def close(self) -> None:
        self._lanes.close()


def _lane(name: str) -> tuple[int, str]:
    return threading.get_ident(), name


def _holds(body: bytes, items: Sequence[bytes]) -> bool:
    """Whether the array consists of exactly these items."""
    try:
        return [bytes(raw) for raw in _split.decode(body)] == list(items)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
