"""The journal room over HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec
from msgspec import UNSET, Raw

from strandline.client import problems
from strandline.client.retries import persistent
from strandline.client.transport import Transport, check
from strandline.errors import NotFound, OutcomeUnknown
from strandline.journal import rules, wire
from strandline.journal.model import (
    Appended,
    DeadLetter,
    JournalEvent,
    JournalTopic,
    NewEvent,
    Payload,
    Pointer,
    Snapshot,
)
from strandline.journal.room import Journal, Journals

_LARGEST_PAGE = 1000
# A failure after the first line has no status of its own.
_INCOMPLETE = 500


class HttpJournals(Journals):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        storage: str | None = None,
        kafka_topic: str | None = None,
    ) -> JournalTopic:
        asked = {"partitions": partitions, "storage": storage, "kafka_topic": kafka_topic}
        body = msgspec.json.encode({name: value for name, value in asked.items() if value is not None})
        response = self._transport.repeatable("PUT", _path("journals", topic), writes=True, body=body)
        return msgspec.json.decode(response.content, type=JournalTopic)

    def topics(self) -> list[JournalTopic]:
        return self._transport.get("/journals", dict[str, list[JournalTopic]])["items"]

    def of(self, topic: str) -> HttpJournal:
        return HttpJournal(topic, self._transport)

    def dead_letters(self, topic: str, *, limit: int = 100, after: str | None = None) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        while len(found) < limit:
            query = {"limit": min(limit - len(found), _LARGEST_PAGE)} | ({} if after is None else {"after": after})
            page = self._transport.get(_path("dead-letters", topic), _DeadLetterPage, query)
            found += [view.to_letter() for view in page.items]
            after = page.next
            if after is None:
                break
        return found

    def close(self) -> None:
        """Nothing to do: `Remote` closes the transport."""


class _DeadLetterPage(msgspec.Struct):
    items: list[wire.DeadLetterView]
    next: str | None = None


class HttpJournal(Journal):
    """A change is sent again, for a few seconds, while no server answers.

    If its answer was lost, it is sent again only if it has an id (each append has one) or names a life of the
    journal (`since`). Any other change could act on what another writer has done since.
    """

    def __init__(self, topic: str, transport: Transport) -> None:
        self.name = topic
        self._transport = transport

    # -- events

    def append(
        self,
        entity: str,
        events: Sequence[NewEvent | Any],
        *,
        expected: int | None = None,
        since: str | None = None,
        expire_after_ms: int | None = None,
        metadata: Any = None,
        append_id: str | None = None,
    ) -> Appended:
        complete = rules.numbered(events, expected)
        rules.check_expiry(expire_after_ms)
        rules.life(since)
        if append_id is not None:
            rules.check_append_id(append_id)
        request = wire.AppendRequest(
            [wire.EventItem.of(event) for event in complete],
            expected=expected,
            expire_after=expire_after_ms,
            metadata=UNSET if metadata is None else Raw(rules.json_of(metadata, "the metadata")),
            since=since,
            append_id=uuid.uuid4().hex if append_id is None else append_id,
        )
        path, body = self._path(entity, "events"), msgspec.json.encode(request)

        def send() -> httpx.Response:
            response = self._transport.write("POST", path, body)
            check(response, writes=True)
            return response

        return msgspec.json.decode(persistent(send, self._transport.timeout).content, type=Appended)

    def read(
        self, entity: str, first: int = 1, last: int | None = None, *, limit: int | None = None
    ) -> Iterator[JournalEvent]:
        rules.check_range(first, last, limit)
        query = {"from": first}
        query |= {} if last is None else {"to": last}
        query |= {} if limit is None else {"limit": limit}
        events = self._events(self._path(entity, "events"), query)
        # The request is sent now, so that the read has everything that was acknowledged before this call.
        begun = next(events, None)
        return events if begun is None else _after(begun, events)

    def _events(self, path: str, query: dict[str, int]) -> Iterator[JournalEvent]:
        with self._transport.stream(path, query, {}) as response:
            for line in _lines(response):
                found = _decode_line(line)
                if isinstance(found, wire.EventLine):
                    yield found.to_event()
                else:
                    raise problems.to_error(_INCOMPLETE, {}, bytes(found.problem), writes=False)

    def pointer(self, entity: str) -> Pointer:
        return self._transport.get(self._path(entity, "pointer"), Pointer)

    def delete(self, entity: str, to: int, *, since: str | None = None) -> None:
        rules.life(since)
        query = {"to": str(rules.seq_nr(to))} | ({} if since is None else {"since": since})
        path = f"{self._path(entity, 'events')}?{urlencode(query)}"
        self._change("DELETE", path, since, "the pointer's `delete_to` says what is deleted")

    def purge(self, entity: str) -> None:
        self._change("DELETE", self._path(entity), None, "after a purge the pointer has another `since`, or none")

    # -- snapshots

    def save_snapshot(self, entity: str, seq_nr: int, payload: Payload | Any, *, since: str | None = None) -> None:
        rules.life(since)
        body = wire.SnapshotRequest(since=since, **wire.to_members(rules.payload(payload)))
        path = self._path(entity, "snapshots", str(rules.seq_nr(seq_nr)))
        self._change("PUT", path, since, "load the snapshot to see which it is", msgspec.json.encode(body))

    def snapshot(self, entity: str, at_most: int | None = None) -> Snapshot | None:
        if at_most is not None:
            rules.check_number("at_most", at_most)
        query = {} if at_most is None else {"at_most": at_most}
        try:
            path = self._path(entity, "snapshots", "latest")
            return self._transport.get(path, wire.SnapshotView, query).to_snapshot()
        except NotFound as error:
            if error.info.get("missing") == wire.SNAPSHOT:
                return None
            raise

    def delete_snapshot(self, entity: str, seq_nr: int) -> None:
        path = self._path(entity, "snapshots", str(rules.seq_nr(seq_nr)))
        self._change("DELETE", path, None, "load the snapshot to see whether it is there")

    def _change(self, method: str, path: str, since: str | None, hint: str, body: bytes = b"") -> None:
        """`since`: the life that the change is limited to. Then it may be repeated. `hint`: how to check it."""

        def send() -> None:
            check(self._transport.write(method, path, body), writes=True)

        try:
            persistent(send, self._transport.timeout, repeatable=since is not None)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(f"{error.detail} ({hint})", **error.info) from error

    def _path(self, entity: str, *parts: str) -> str:
        return _path("journals", self.name, rules.entity(entity), *parts)


class _ProblemLine(msgspec.Struct):
    problem: Raw


def _decode_line(line: bytes) -> wire.EventLine | _ProblemLine:
    try:
        return msgspec.json.decode(line, type=wire.EventLine)
    except msgspec.ValidationError:  # without a seq_nr
        return msgspec.json.decode(line, type=_ProblemLine)


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """The lines of a response, which end with line feeds alone."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


def _after(first: JournalEvent, rest: Iterator[JournalEvent]) -> Iterator[JournalEvent]:
    yield first
    yield from rest


def _path(*parts: str) -> str:
    # A client removes the segments `.` and `..` from a path.
    return "".join("/" + quote(part, safe="").replace(".", "%2E") for part in parts)
