"""The feeds room over HTTP, in MessagePack.

A write first asks the server for an operation time, unless the caller gives one. So it can be sent again after a
broken connection, for a few seconds, and stays the same operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TypeVar
from urllib.parse import quote, urlencode

import httpx
import msgspec

from strandline.client.pages import read_pages
from strandline.client.retries import persistent
from strandline.client.transport import Transport, check
from strandline.feeds import rules, wire
from strandline.feeds.fanout.values import FanoutLetter
from strandline.feeds.model import DeadOperation, Entry, FeedAnswer
from strandline.feeds.room import Feeds

_MSGPACK = "application/msgpack"
_T = TypeVar("_T")


class _Entries(msgspec.Struct, frozen=True):
    entries: list[Entry]


class _PackedFeeds(msgspec.Struct, frozen=True):
    feeds: list[wire.PackedFeed]


class HttpFeeds(Feeds):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # -- writes

    def append(
        self,
        entry: Entry,
        feeds: Sequence[str],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> int:
        names, time = [*rules.names(feeds)], self._time(operation_time, operation_ms)
        request = wire.EntryForFeeds(_item(entry), names, operation_time=time)
        return self._accepted("/feed-entries", request)

    def delete(
        self,
        entry: Entry | int,
        feeds: Sequence[str],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> int:
        names, time = [*rules.names(feeds)], self._time(operation_time, operation_ms)
        request = wire.IdForFeeds(rules.ids([entry])[0], names, operation_time=time)
        return self._accepted("/feed-entries/delete", request)

    def set(
        self,
        feed: str,
        entries: Sequence[Entry],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> None:
        time = self._time(operation_time, operation_ms)
        request = wire.FeedEntries([*map(_item, entries)], operation_time=time)
        self._write("PUT", _path(feed), request)

    def merge(
        self,
        feed: str,
        entries: Sequence[Entry],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> bool:
        time = self._time(operation_time, operation_ms)
        request = wire.FeedEntries([*map(_item, entries)], operation_time=time)
        return bool(self._accepted(f"{_path(feed)}/merge", request))

    def unmerge(
        self,
        feed: str,
        entries: Sequence[Entry | int],
        *,
        operation_time: int | None = None,
        operation_ms: int | None = None,
    ) -> bool:
        time = self._time(operation_time, operation_ms)
        request = wire.FeedEntries([*map(wire.EntryItem, rules.ids(entries))], operation_time=time)
        return bool(self._accepted(f"{_path(feed)}/unmerge", request))

    def drop(self, feed: str, *, operation_time: int | None = None, operation_ms: int | None = None) -> None:
        time = self._time(operation_time, operation_ms)
        self._write("DELETE", f"{_path(feed)}?{urlencode({'operation_time': time})}")

    def operation_time(self) -> int:
        response = self._transport.repeatable("POST", "/feed-times", writes=False)
        return int(msgspec.json.decode(response.content, type=wire.TimeView).operation_time)

    def _time(self, operation_time: int | None, operation_ms: int | None) -> int:
        given = rules.given_time(operation_time, operation_ms)
        return persistent(self.operation_time, self._transport.timeout) if given is None else given

    def _accepted(self, path: str, request: msgspec.Struct) -> int:
        return _decoded(self._write("POST", path, request), wire.AcceptedFeeds).accepted

    def _write(self, method: str, path: str, request: msgspec.Struct | None = None) -> httpx.Response:
        body = b"" if request is None else msgspec.msgpack.encode(request)
        headers = {"Accept": _MSGPACK} | ({"Content-Type": _MSGPACK} if body else {})

        def send() -> httpx.Response:
            response = self._transport.write(method, path, body, headers=headers)
            check(response, writes=True)
            return response

        return persistent(send, self._transport.timeout)

    # -- reads

    def get(self, feed: str, offset: int = 0, length: int = 20) -> list[Entry]:
        rules.page(offset, length)
        return self._get(feed, {"offset": offset, "length": length})

    def get_since(self, feed: str, entry_id: int) -> list[Entry]:
        return self._get(feed, {"since": rules.entry_id(entry_id)})

    def _get(self, feed: str, query: dict[str, int]) -> list[Entry]:
        headers = {"Accept": _MSGPACK}
        response = self._transport.repeatable("GET", _path(feed), writes=False, params=query, headers=headers)
        return _decoded(response, _Entries).entries

    def get_many(self, feeds: Sequence[str], offset: int = 0, length: int = 20) -> list[FeedAnswer]:
        rules.page(offset, length)
        body = msgspec.msgpack.encode(wire.FeedsQuery([*rules.names(feeds)], offset, length))
        headers = {"Accept": _MSGPACK, "Content-Type": _MSGPACK}
        response = self._transport.repeatable("POST", "/feeds/get", writes=False, body=body, headers=headers)
        return [feed.to_answer() for feed in _decoded(response, _PackedFeeds).feeds]

    # -- dead letters

    def dead_letters(self, *, limit: int = 100, after: int = 0) -> list[DeadOperation]:
        path, place = "/feed-dead-letters", attrgetter("number")
        found = read_pages(self._transport, path, wire.DeadOperationList, limit, after, place)
        return [view.to_letter() for view in found]

    def fanout_letters(self, *, limit: int = 100, after: str = "") -> list[FanoutLetter]:
        path, place = "/fanout-dead-letters", attrgetter("place")
        found = read_pages(self._transport, path, wire.FanoutLetterList, limit, after, place)
        return [view.to_letter() for view in found]

    def close(self) -> None:
        """Nothing to do: `Remote` closes the transport."""


def _item(entry: Entry) -> wire.EntryItem:
    return wire.EntryItem(rules.entry(entry).id, entry.metadata)


def _decoded(response: httpx.Response, kind: type[_T]) -> _T:
    return msgspec.msgpack.decode(response.content, type=kind)


def _path(feed: str) -> str:
    return "/feeds/" + quote(rules.name(feed), safe="")
