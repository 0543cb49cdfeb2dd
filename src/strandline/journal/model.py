"""The values of the journal room.

A journal is the history of one entity. Its key is (topic, id). Changes are actions in the log; the position of an
action in its partition is its cursor, and cursors of one partition compare as `Position`s do.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from strandline.log.cursors import Position

MAX_SEQ_NR = 2**63 - 1
#: The length of the id of a journal, in characters.
MAX_ID = 255
#: The longest expiry. It is the longest duration of Scala, 292 years, in milliseconds.
MAX_EXPIRY_MS = (2**63 - 1) // 1_000_000
#: The seqNr in a path, without the upper limit.
SEQ_NR_PATTERN = "^[1-9][0-9]{0,18}$"
SeqNr = Annotated[int, Meta(ge=1, le=MAX_SEQ_NR)]
ExpireAfter = Annotated[int, Meta(ge=0, le=MAX_EXPIRY_MS)]
PayloadKind = Literal["json", "text", "binary"]


class Payload(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a payload, exactly as they were written: JSON text, UTF-8 text or any bytes."""

    kind: PayloadKind
    data: bytes


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append. Without `seq_nr` it is numbered from `expected` on."""

    payload: Payload | None = None
    tags: tuple[str, ...] = ()
    seq_nr: SeqNr | None = None


class JournalEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as it is read. `metadata` is the JSON that was appended together with the event, if any."""

    seq_nr: int
    payload: Payload | None
    tags: tuple[str, ...]
    timestamp_ms: int
    metadata: bytes | None = None


# -- actions: one record of the log each


class Append(msgspec.Struct, frozen=True, gc=False, tag="append"):
    """Events `first` to `last`, which are added together or not at all.

    `id`, `expected` and `since` are not known to kafka-journal, whose decoder ignores them. `id` identifies the
    append when it is retried. `expected` is the pointer that the writer saw, 0 for an empty journal; `since` is
    the life that it saw. The append is void if one of them differs at its place in the log, or if `first` is not
    above the pointer there.
    """

    first: int
    last: int
    payload_type: PayloadKind = "json"
    id: str | None = None
    expected: int | None = None
    since: Position | None = None
    expire_after_ms: int | None = None


class Mark(msgspec.Struct, frozen=True, tag="mark"):
    """Changes nothing. A reader writes it to learn where the log ends."""

    id: str


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """Deletes the events up to and including `to`; void if `since` is given and the journal has another life."""

    to: int
    since: Position | None = None


class Purge(msgspec.Struct, frozen=True, tag="purge"):
    """Deletes the journal; void if `if_cursor` is given and is not the cursor of the journal's last action."""

    if_cursor: Position | None = None


Action = Append | Mark | Delete | Purge


class LoggedAction(msgspec.Struct, frozen=True, gc=False):
    """An action of the journal `entity` at its place in the log.

    `value` is the record's value, which only an append has; None in a cache, which keeps no values. `headers` are
    the other headers of the record. `metadata` are those that an append of a JVM service has in its header.
    """

    entity: str
    cursor: Position
    timestamp_ms: int
    action: Action
    value: bytes | None = None
    origin: str | None = None
    version: str | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    metadata: bytes | None = None


# -- what the actions result in


class Head(msgspec.Struct, frozen=True, gc=False):
    """A journal after its actions up to and including the one at `cursor`. A journal without a head is absent.

    `since` is the cursor of the action that created it: the identity of its life. Events above `delete_to` up to
    `seq_nr` exist, with gaps where numbers were left out.
    """

    since: Position
    cursor: Position
    seq_nr: int
    delete_to: int | None
    created_ms: int
    updated_ms: int
    expire_after_ms: int | None = None
    expire_on_ms: int | None = None
    origin: str | None = None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """A row of the store. `append_id` is the id of its append, which a retried append is recognised by.

    `headers` are the other headers of the append's record.
    """

    event: JournalEvent
    cursor: Position
    append_id: str | None = None
    origin: str | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class DeadLetter(msgspec.Struct, frozen=True):
    """A record that could not be decoded. It was set aside and did not stop the replication."""

    partition: int
    cursor: Position
    timestamp_ms: int
    reason: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """The state of an entity at a seqNr. It is visible only in the life of the journal in which it was saved."""

    seq_nr: SeqNr
    payload: Payload | None


class Pointer(msgspec.Struct, frozen=True):
    """The newest seqNr of a journal and what is deleted; all None if the journal is absent."""

    seq_nr: int | None = None
    delete_to: int | None = None
    since: str | None = None

    @classmethod
    def of(cls, head: Head | None) -> Pointer:
        return cls() if head is None else cls(head.seq_nr, head.delete_to, str(head.since))


class Appended(msgspec.Struct, frozen=True):
    """The last seqNr of an append and the cursor of its action."""

    seq_nr: int
    cursor: str


class JournalTopic(msgspec.Struct, frozen=True):
    """An event type that holds the actions of journals. `kafka_topic` is the existing topic that it adopted."""

    name: str
    partitions: int
    storage: str
    kafka_topic: str | None = None
