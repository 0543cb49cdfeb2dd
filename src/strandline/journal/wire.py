"""The JSON of events, snapshots and dead letters over HTTP, for the server and the client.

A payload is in one of three members: `payload` is any JSON value, `payload_text` a text, `payload_base64` bytes.
JSON values keep their bytes, because no decoder keeps all numbers.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Protocol, TypedDict

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from strandline.clock import parse_rfc3339, to_rfc3339
from strandline.errors import Invalid, InvalidCursor
from strandline.journal.model import (
    MAX_SEQ_NR,
    DeadLetter,
    ExpireAfter,
    JournalEvent,
    NewEvent,
    Payload,
    PayloadKind,
    SeqNr,
    Snapshot,
)
from strandline.log import cursors

_Text = Annotated[str, Meta(min_length=1, max_length=255)]

#: The member `missing` of the problem if a journal has no snapshot.
SNAPSHOT = "snapshot"

_encode = msgspec.json.Encoder().encode
_is_partition = re.compile(r"[0-9]{1,9}", re.ASCII).fullmatch


class WithPayload(Protocol):
    """A value with the members of a payload."""

    @property
    def payload(self) -> Raw | UnsetType: ...
    @property
    def payload_text(self) -> str | UnsetType: ...
    @property
    def payload_base64(self) -> bytes | UnsetType: ...


class _Members(TypedDict, total=False):
    payload: Raw
    payload_text: str
    payload_base64: bytes


def to_payload(item: WithPayload) -> Payload | None:
    """The payload of an item; None if it has none. Invalid if it has two."""
    given: list[tuple[PayloadKind, bytes]] = []
    if isinstance(item.payload, Raw):
        given.append(("json", _checked(bytes(item.payload))))
    if isinstance(item.payload_text, str):
        given.append(("text", item.payload_text.encode()))
    if isinstance(item.payload_base64, bytes):
        given.append(("binary", item.payload_base64))
    if len(given) > 1:
        raise Invalid("there are two payloads; give one of payload, payload_text and payload_base64")
    return Payload(*given[0]) if given else None


def _checked(text: bytes) -> bytes:
    try:
        text.decode()  # the decoder does not look into the strings of a raw value
    except UnicodeDecodeError as error:
        raise Invalid(f"a JSON value is not UTF-8: {error}") from None
    return text


def to_members(payload: Payload | None) -> _Members:
    """The member with the payload."""
    if payload is None:
        return {}
    if payload.kind == "json":
        return {"payload": Raw(payload.data)}
    return {"payload_text": payload.data.decode()} if payload.kind == "text" else {"payload_base64": payload.data}


# -- appends


class EventItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new event. Without `seq_nr` it is numbered from `expected` on."""

    seq_nr: SeqNr | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, event: NewEvent) -> EventItem:
        seq_nr = UNSET if event.seq_nr is None else event.seq_nr
        return cls(seq_nr=seq_nr, tags=tuple(event.tags), **to_members(event.payload))

    def to_event(self) -> NewEvent:
        return NewEvent(to_payload(self), self.tags, self.seq_nr or None)


class AppendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Events to append together.

    `expected` is the pointer that the writer saw, 0 for an empty journal, and `since` the life that it saw.
    `append_id` identifies the append when it is repeated. `expire_after` is in milliseconds.
    """

    events: Annotated[list[EventItem], Meta(min_length=1)]
    expected: Annotated[int, Meta(ge=0, le=MAX_SEQ_NR)] | None = None
    expire_after: ExpireAfter | None = None
    metadata: Raw | UnsetType = UNSET
    since: _Text | None = None
    append_id: _Text | None = None

    @property
    def stored_metadata(self) -> Raw | None:
        return Raw(_checked(bytes(self.metadata))) if isinstance(self.metadata, Raw) else None


# -- reads


class EventLine(msgspec.Struct, frozen=True):
    """An event as it is read: one line."""

    seq_nr: int
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    tags: tuple[str, ...] = ()
    timestamp: str = ""
    metadata: Raw | UnsetType = UNSET

    def to_event(self) -> JournalEvent:
        metadata = bytes(self.metadata) if isinstance(self.metadata, Raw) else None
        return JournalEvent(self.seq_nr, to_payload(self), self.tags, _milliseconds(self.timestamp), metadata)


# RFC 3339 has years of four digits. Another service may have written any number into a record of Kafka.
_LAST_MS = 253_402_300_799_999


@lru_cache(64)  # the events of one append have the same time
def _time(ms: int) -> str:
    return to_rfc3339(min(ms, _LAST_MS))


_milliseconds = lru_cache(64)(parse_rfc3339)


def to_line(event: JournalEvent) -> bytes:
    """One line, also if JSON in it was written in several."""
    metadata = UNSET if event.metadata is None else Raw(event.metadata)
    line = EventLine(
        event.seq_nr,
        tags=event.tags,
        timestamp=_time(event.timestamp_ms),
        metadata=metadata,
        **to_members(event.payload),
    )
    text = _encode(line)
    if b"\n" in text or b"\r" in text:  # in JSON, line breaks are only between tokens
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    return text + b"\n"


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state of an entity to save. `since` is the life of the journal that it belongs to."""

    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    since: _Text | None = None
    seq_nr: SeqNr | UnsetType = UNSET  # so that the answer of a GET can be sent


class SnapshotView(msgspec.Struct, frozen=True):
    """The state of an entity at a seqNr."""

    seq_nr: int
    payload: Raw | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotView:
        return cls(snapshot.seq_nr, **to_members(snapshot.payload))

    def to_snapshot(self) -> Snapshot:
        return Snapshot(self.seq_nr, to_payload(self))


# -- dead letters


class HeaderView(msgspec.Struct, frozen=True, rename={"value": "value_base64"}):
    key: str
    value: bytes


class DeadLetterView(msgspec.Struct, frozen=True, rename={"key": "key_base64", "value": "value_base64"}):
    """A record that could not be decoded. `place` is the `after` of a request for those that follow it."""

    place: str
    partition: int
    cursor: str
    timestamp: str
    reason: str
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderView, ...] = ()

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterView:
        return cls(
            place_of(letter),
            letter.partition,
            str(letter.cursor),
            _time(letter.timestamp_ms),
            letter.reason,
            letter.key,
            letter.value,
            tuple(HeaderView(*header) for header in letter.headers),
        )

    def to_letter(self) -> DeadLetter:
        _, cursor = parse_place(self.place)
        headers = tuple((header.key, header.value) for header in self.headers)
        time_ms = parse_rfc3339(self.timestamp)
        return DeadLetter(self.partition, cursor, time_ms, self.reason, self.key, self.value, headers)


def place_of(letter: DeadLetter) -> str:
    """Where a dead letter is in the list of all: the partition and the cursor, with a colon between them."""
    return f"{letter.partition}:{letter.cursor}"


def parse_place(text: str) -> tuple[int, cursors.Position]:
    """The partition and the cursor of a place; Invalid if the text is not a place."""
    partition, _, cursor = text.partition(":")
    with suppress(InvalidCursor):
        position = cursors.parse(cursor)
        if _is_partition(partition) and position is not None:
            return int(partition), position
    raise Invalid(f"{text!r:.60} is not the place of a dead letter; write 0:001-0001-000000000000000012")
