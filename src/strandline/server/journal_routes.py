"""The routes of journals and their snapshots."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from strandline.errors import Invalid, NotFound
from strandline.journal import wire
from strandline.journal.model import MAX_SEQ_NR, SEQ_NR_PATTERN, Appended, JournalTopic, Pointer, SeqNr, Snapshot
from strandline.journal.room import Journal
from strandline.journal.serving import ServedJournals
from strandline.log.serving import ServedLog
from strandline.server.journal_lines import LINES, EventLines, streamed
from strandline.server.pages import PageQuery, page
from strandline.server.pools import Pool
from strandline.server.routing import Call, Endpoint, declaring, json_response
from strandline.server.schedule_routes import refuse_if_draining
from strandline.server.storage_calls import find_storages, parts_of

ENDPOINTS: list[Endpoint] = []
_endpoint = declaring(ENDPOINTS, "journals")
_JOURNAL = "/journals/{topic}/{id}"
_SNAPSHOTS = f"{_JOURNAL}/snapshots"

_is_seq_nr = re.compile(SEQ_NR_PATTERN).fullmatch
_AnySeqNr = Annotated[int, Meta(ge=0, le=MAX_SEQ_NR)]


async def _pool(call: Call[ServedJournals], topic: str, *, streams: bool = False) -> Pool:
    """The pool of calls that may wait for the storages of the topic and for the store of journals."""
    storages = await find_storages(call.state, cast("ServedLog", call.state.rooms["log"]), [topic])
    parts = ["the journals", *parts_of(storages)]
    return call.state.pools.of_streams(parts) if streams else call.state.pools.of(parts)


async def _journal(call: Call[ServedJournals]) -> tuple[Pool, Journal, str]:
    topic = call.path("topic")
    return await _pool(call, topic), call.room.of(topic), call.path("id")


# -- topics


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to create a topic. `kafka_topic` is an existing topic of a Kafka storage that is used as it is."""

    partitions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    storage: str | None = None
    kafka_topic: str | None = None
    name: str | None = None  # so that the answer of a GET can be sent


class TopicList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Topics by name. `next` is there if more follow; it is the `after` of the next request."""

    items: list[JournalTopic]
    next: str | None = None


@_endpoint("GET", "/journals", "All topics of journals; with `limit` a page", TopicList, query=PageQuery)
async def list_topics(call: Call[ServedJournals]) -> Response:
    return json_response(TopicList(*page(await call.run(call.room.topics), call.query)))


@_endpoint(
    "PUT", "/journals/{topic}", "Create a topic for journals, or check that it is as given",
    {200: JournalTopic, 201: JournalTopic}, body=TopicSettings, body_optional=True, problems=(409, 507),
)  # fmt: skip
async def put_topic(call: Call[ServedJournals]) -> Response:
    given, topic = call.body, call.path("topic")
    if given.name not in {None, topic}:
        raise Invalid("the name in the body is not the name in the path; a topic cannot be renamed")
    storages = [given.storage] if given.storage is not None else []
    pool = call.state.pools.of(["the journals", *parts_of(storages)])

    def put() -> tuple[JournalTopic, bool]:
        return call.room.put(
            topic, partitions=given.partitions, storage=given.storage, kafka_topic=given.kafka_topic
        )

    made, is_new = await pool.run(put)
    return json_response(made, 201 if is_new else 200)


@_endpoint("GET", "/journals/{topic}", "A topic of journals", JournalTopic)
async def get_topic(call: Call[ServedJournals]) -> Response:
    topic = call.path("topic")
    for found in await call.run(call.room.topics):
        if found.name == topic:
            return json_response(found)
    raise NotFound(f"there is no topic {topic!r:.80} of journals; create it first (PUT /journals/{{topic}})")


# -- events


@_endpoint(
    "POST", f"{_JOURNAL}/events", "Append events, together or not at all", {201: Appended},
    body=wire.AppendRequest, problems=(409, 507),
)  # fmt: skip
async def append_events(call: Call[ServedJournals]) -> Response:
    refuse_if_draining(call.state)
    pool, journal, entity = await _journal(call)
    given: wire.AppendRequest = call.body

    def append() -> Appended:
        return journal.append(
            entity,
            [item.to_event() for item in given.events],
            expected=given.expected,
            since=given.since,
            expire_after_ms=given.expire_after,
            metadata=given.stored_metadata,
            append_id=given.append_id,
        )

    return json_response(await pool.run(append), 201)


class EventsQuery(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """The events from `from` to `to`, both included."""

    first: _AnySeqNr = 1
    last: _AnySeqNr | UnsetType = UNSET  # None would accept the text "null"
    limit: Annotated[int, Meta(ge=0, le=MAX_SEQ_NR)] | UnsetType = UNSET


@_endpoint(
    "GET", f"{_JOURNAL}/events", "Read events, one JSON object per line", wire.EventLine, query=EventsQuery,
    problems=(409,), media_type=LINES,
)  # fmt: skip
async def read_events(call: Call[ServedJournals]) -> Response:
    query, topic = call.query, call.path("topic")
    journal, entity = call.room.of(topic), call.path("id")

    def begin() -> EventLines:
        last = None if query.last is UNSET else query.last
        limit = None if query.limit is UNSET else query.limit
        return EventLines(journal.read(entity, max(query.first, 1), last, limit=limit), call.state.stream_share())

    pool = await _pool(call, topic, streams=True)
    return await streamed(call, pool, await pool.run(begin))


class DeleteQuery(msgspec.Struct, frozen=True):
    """The last event to delete, and the life of the journal that it belongs to."""

    to: SeqNr
    since: str | UnsetType = UNSET


@_endpoint(
    "DELETE", f"{_JOURNAL}/events", "Delete events up to and including `to`", {204: None}, query=DeleteQuery,
    problems=(409, 507),
)  # fmt: skip
async def delete_events(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    since = None if call.query.since is UNSET else call.query.since
    await pool.run(partial(journal.delete, entity, call.query.to, since=since))
    return Response(status_code=204)


@_endpoint("GET", f"{_JOURNAL}/pointer", "The newest seqNr and what is deleted", Pointer, problems=(409, 422))
async def get_pointer(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    return json_response(await pool.run(journal.pointer, entity))


@_endpoint("DELETE", _JOURNAL, "Delete a journal and its snapshots", {204: None}, problems=(409, 422, 507))
async def purge_journal(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    await pool.run(journal.purge, entity)
    return Response(status_code=204)


# -- snapshots


class SnapshotQuery(msgspec.Struct, frozen=True):
    """The largest seqNr of the snapshot."""

    at_most: _AnySeqNr = MAX_SEQ_NR


@_endpoint(
    "GET", f"{_SNAPSHOTS}/latest", "The newest snapshot", wire.SnapshotView, query=SnapshotQuery, problems=(409,)
)
async def latest_snapshot(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    return _snapshot(await pool.run(journal.snapshot, entity, call.query.at_most))


@_endpoint("GET", f"{_SNAPSHOTS}/{{seq_nr}}", "The snapshot of a seqNr", wire.SnapshotView, problems=(409, 422))
async def get_snapshot(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    seq_nr = _seq_nr(call)
    found = await pool.run(journal.snapshot, entity, seq_nr)
    return _snapshot(found if found is not None and found.seq_nr == seq_nr else None)


@_endpoint(
    "PUT", f"{_SNAPSHOTS}/{{seq_nr}}", "Save the state of the entity at a seqNr", {204: None},
    body=wire.SnapshotRequest, problems=(409, 507),
)  # fmt: skip
async def put_snapshot(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    seq_nr = _seq_nr(call)
    if call.body.seq_nr not in {UNSET, seq_nr}:
        raise Invalid("the seq_nr in the body is not the one in the path")
    payload = wire.to_payload(call.body)
    if payload is None:
        raise Invalid("a snapshot needs a payload, a payload_text or a payload_base64")
    await pool.run(partial(journal.save_snapshot, entity, seq_nr, payload, since=call.body.since))
    return Response(status_code=204)


@_endpoint(
    "DELETE", f"{_SNAPSHOTS}/{{seq_nr}}", "Delete the snapshot of a seqNr", {204: None}, problems=(409, 422, 507)
)
async def delete_snapshot(call: Call[ServedJournals]) -> Response:
    pool, journal, entity = await _journal(call)
    await pool.run(journal.delete_snapshot, entity, _seq_nr(call))
    return Response(status_code=204)


def _snapshot(found: Snapshot | None) -> Response:
    if found is None:
        raise NotFound("the journal has no such snapshot", missing=wire.SNAPSHOT)
    return json_response(wire.SnapshotView.of(found))


def _seq_nr(call: Call[ServedJournals]) -> int:
    text = call.path("seq_nr")
    if not _is_seq_nr(text) or int(text) > MAX_SEQ_NR:
        raise Invalid(f"{text!r:.40} is not a seqNr; write a number from 1 to {MAX_SEQ_NR}")
    return int(text)


# -- dead letters


class DeadLetterQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: str | None = None


class DeadLetterList(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dead letters. `next` is there if more may follow; it is the `after` of the next request."""

    items: list[wire.DeadLetterView]
    next: str | None = None


@_endpoint(
    "GET", "/dead-letters/{topic}", "Records of a topic that are no actions of journals", DeadLetterList,
    query=DeadLetterQuery,
)  # fmt: skip
async def list_dead_letters(call: Call[ServedJournals]) -> Response:
    query = call.query

    def read() -> DeadLetterList:
        found = call.room.dead_letters(call.path("topic"), limit=query.limit, after=query.after)
        views = [wire.DeadLetterView.of(letter) for letter in found]
        return DeadLetterList(views, views[-1].place if len(views) == query.limit else None)

    return json_response(await call.run(read))
