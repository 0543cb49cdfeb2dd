"""The values of a schedule: its settings, its messages, what callers ask for, and the answer to each item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

#: `name + DEAD` is the view of the dead messages of a schedule.
DEAD = ".dead"

MessageState: TypeAlias = Literal["available", "waiting", "processing"]
#: Why an item was refused. `fenced`: a newer session of the same consumer exists.
Code: TypeAlias = Literal[
    "invalid",
    "not_found",
    "already_exists",
    "body_too_large",
    "not_holder",
    "not_owner",
    "lease_expired",
    "lease_active",
    "not_available",
    "stale_version",
    "bad_timestamp",
    "too_far",
    "forbidden",
    "fenced",
    "already_deleted",
]


class Schedule(msgspec.Struct, frozen=True):
    """A schedule and its settings. `buckets` never changes. Without `max_attempts` no message is ever dead."""

    name: str
    buckets: int = 1024
    max_future_ms: int = 365 * 86_400_000
    max_lease_ms: int = 300_000
    max_body_bytes: int = 1_048_576
    dedupe_ms: int = 86_400_000
    max_attempts: int | None = None


class Body(msgspec.Struct, frozen=True):
    """The content of a message: the text of a JSON value in UTF-8, or other bytes."""

    content: bytes
    is_json: bool = False


class Moment(msgspec.Struct, frozen=True):
    """A time in UTC milliseconds; if `relative`, milliseconds from the store's current time."""

    ms: int
    relative: bool = False


NOW = Moment(0, relative=True)


class NewMessage(msgspec.Struct, frozen=True):
    id: str
    producer_group: str
    body: Body
    moment: Moment = NOW


class LeaseAct(msgspec.Struct, frozen=True):
    """What the holder of a lease asks for: extend, release, delete. A delete has no moment."""

    id: str
    consumer: str
    version: int
    moment: Moment = NOW


class OwnerAct(msgspec.Struct, frozen=True):
    """What the owner of a message asks for: delete, move, put back. Without a version the newest one is meant."""

    id: str
    producer_group: str
    version: int | None = None
    moment: Moment = NOW


class ChosenMessage(msgspec.Struct, frozen=True):
    """A message that a consumer wants to lease by its id."""

    id: str
    version: int | None = None


class ItemAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to one item. `already_deleted` is the code of a success; other codes are errors."""

    id: str
    status: Literal["ok", "error"]
    version: int | None = None
    at_ms: int | None = None
    code: Code | None = None
    detail: str | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    """A message without its body."""

    id: str
    bucket: int
    at_ms: int
    due_ms: int
    producer_group: str
    consumer: str | None
    version: int
    delivery_count: int
    created_ms: int


class Lease(msgspec.Struct, frozen=True):
    """A message that is leased to a consumer until `at_ms`, with its body."""

    message: StoredMessage
    body: Body


class Taker(msgspec.Struct, frozen=True):
    """A consumer that waits for due messages, with the buckets dealt to it: `first` to `last`, inclusive.

    `last < first` means no buckets. A push session has an epoch; a pull has none. Without credit it takes nothing,
    but says that the consumer is on this node, so that its messages are not left to other nodes.
    """

    consumer: str
    credit: int
    lease_ms: int
    first: int
    last: int
    epoch: int | None = None


class DueMessage(msgspec.Struct, frozen=True):
    """An available message, as far as its assignment to a consumer needs it."""

    id: str
    bucket: int
    at_ms: int
    version: int
    body_bytes: int
    #: Whether it has `max_attempts` deliveries, so that it becomes dead instead of being leased.
    exhausted: bool = False


class Leased(msgspec.Struct, frozen=True):
    """New leases, oldest message first; the consumers that were fenced; and the store's time."""

    now_ms: int
    leases: list[Lease]
    fenced: frozenset[str] = frozenset()
    #: How many messages became dead instead of being leased.
    dead: int = 0
    #: How many messages were leased after the lease of another consumer had expired.
    expired: int = 0
    #: How long each leased message had been available, in the order of `leases`.
    waited_ms: Sequence[int] = ()


class NextDue(msgspec.Struct, frozen=True):
    """The moment of the oldest available message, and the next moment at which one becomes available."""

    now_ms: int
    oldest_ms: int | None
    next_ms: int | None


class LoadStep(msgspec.Struct, frozen=True):
    """The messages in one step of a forecast. The rest of `total` is available."""

    from_ms: int
    total: int
    waiting: int
    processing: int


class LoadCounts(msgspec.Struct, frozen=True):
    total: int
    waiting: int
    processing: int
    available: int
    steps: list[LoadStep]


class ListQuery(msgspec.Struct, frozen=True):
    """Which messages to list, ordered by id: of a producer group, of a consumer, or all; after the id `after`."""

    producer_group: str | None = None
    consumer: str | None = None
    state: MessageState | None = None
    after: str = ""
    limit: int = 100


class ClockOffset(msgspec.Struct, frozen=True):
    """How far a clock is ahead of the database's, and how wrong that estimate can be."""

    name: str
    offset_ms: float
    error_ms: float
    measured_ms: int


class ClockReport(msgspec.Struct, frozen=True):
    """The clocks as one node knows them. `degraded` says why the node gives no leases, if it does not."""

    node: ClockOffset
    peers: list[ClockOffset]
    clients: list[ClockOffset]
    degraded: str | None = None
