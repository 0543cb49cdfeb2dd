"""The values of subscriptions. Their JSON form is Nakadi's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from strandline.errors import Invalid
from strandline.log.cursors import Position
from strandline.log.model import MAX_NAME_LENGTH, NAME_PATTERN
from strandline.log.reading import Batch
from strandline.log.streaming import StreamLimits

ReadFrom = Literal["begin", "end", "cursors"]
PartitionState = Literal["unassigned", "reassigning", "assigned"]
AssignmentType = Literal["direct", "auto"]
Verdict = Literal["committed", "outdated"]

_Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
_Text = Annotated[str, Meta(min_length=1, max_length=1000)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_FLUSH_S = 30
_COMMIT_S = 60


class EventTypePartition(msgspec.Struct, frozen=True):
    event_type: str
    partition: str


class SubscriptionCursor(EventTypePartition, frozen=True, omit_defaults=True):
    """A place in one partition of one event type. The token is opaque and comes from the server."""

    offset: str
    cursor_token: str | None = None


class Subscription(msgspec.Struct, frozen=True):
    """Who reads which event types. The owner, the event types and the group identify it."""

    owning_application: _Text
    event_types: Annotated[tuple[_Name, ...], Meta(min_length=1)]
    consumer_group: _Text | None = "default"
    read_from: ReadFrom | None = "end"
    initial_cursors: tuple[SubscriptionCursor, ...] | None = ()
    authorization: dict[str, Any] | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    id: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    status: list[EventTypeStats] | None = None


class PartitionStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition as the subscription sees it.

    `skipped_events` expired before they were read; `unavailable` means that the event type of the cursor was
    deleted. Both are absent if they are 0 and false.
    """

    partition: str
    state: PartitionState
    stream_id: str
    assignment_type: AssignmentType | None = None
    unconsumed_events: int | None = None
    consumer_lag_seconds: int | None = None
    skipped_events: int = 0
    unavailable: bool = False


class EventTypeStats(msgspec.Struct, frozen=True):
    event_type: str
    partitions: list[PartitionStats]


class CommitResult(msgspec.Struct, frozen=True):
    """The result of committing one cursor."""

    cursor: SubscriptionCursor
    result: Verdict


class StreamParameters(msgspec.Struct, frozen=True):
    """The parameters of a stream. Zero means the default. `stream_limit` counts committed events, as in Nakadi."""

    max_uncommitted_events: _Count = 10
    batch_limit: _Count = 1
    stream_limit: _Count = 0
    batch_flush_timeout: _Count = _FLUSH_S
    stream_timeout: _Count = 0
    stream_keep_alive_limit: _Count = 0
    commit_timeout: Annotated[int, Meta(ge=0, le=_COMMIT_S)] = _COMMIT_S

    @property
    def window(self) -> int:
        """How many events may be sent and not committed."""
        return self.max_uncommitted_events or 10

    @property
    def commit_timeout_ms(self) -> int:
        return (self.commit_timeout or _COMMIT_S) * 1000

    @property
    def limits(self) -> StreamLimits:
        """The limits that every kind of stream has; Invalid if they contradict each other."""
        flush = self.batch_flush_timeout
        if self.stream_timeout and flush in (0, _FLUSH_S):  # the default contradicts nothing: clients leave it out
            flush = min(_FLUSH_S, self.stream_timeout)
        limits = StreamLimits(
            self.batch_limit or 1,
            self.stream_limit,
            flush,
            self.stream_timeout,
            self.stream_keep_alive_limit,
        )
        limits.check()
        return limits


class Slot(NamedTuple):
    """One partition of one incarnation of an event type: the unit that is assigned to a stream."""

    event_type_id: str
    partition: int


@dataclass(frozen=True)
class Share:
    """A slot with its committed cursor; `owner` is the stream that reads it, `heir` the one that gets it next."""

    slot: Slot
    event_type: str
    position: Position
    skipped: int = 0
    owner: str | None = None
    heir: str | None = None


@dataclass(frozen=True)
class Member:
    """An open stream; `direct` has the slots that it asked for, None if it takes any."""

    id: str
    direct: frozenset[Slot] | None = None


@dataclass(frozen=True)
class Stored:
    """A stored subscription. `epoch` grows with every reset."""

    subscription: Subscription
    epoch: int


@dataclass(frozen=True, repr=False)
class DeliveredBatch(Batch):
    """A batch, and the id of the stream to commit it with."""

    stream_id: str

    @property
    def subscription_cursor(self) -> SubscriptionCursor:
        return SubscriptionCursor(self.event_type, self.partition, self.offset)


def complete(asked: Subscription, subscription_id: str, now: str) -> Subscription:
    """A new subscription as it is stored, with defaults for fields that are missing or null."""
    read_from = asked.read_from or "end"
    initial = asked.initial_cursors or ()
    if read_from == "cursors" and not initial:
        raise Invalid("read_from 'cursors' requires initial_cursors, one for every partition")
    return msgspec.structs.replace(
        asked,
        event_types=tuple(dict.fromkeys(asked.event_types)),
        consumer_group=asked.consumer_group or "default",
        read_from=read_from,
        initial_cursors=initial if read_from == "cursors" else (),
        id=subscription_id,
        created_at=now,
        updated_at=now,
        status=None,
    )
