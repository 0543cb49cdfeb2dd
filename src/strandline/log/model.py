"""The values of the log room. Their JSON form is Nakadi's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from strandline.errors import Invalid, OutcomeUnknown, PublishFailed
from strandline.log.storage.registry import StorageConfiguration, StorageConfigurations, StorageTypeName
from strandline.log.switching import State

NAME_PATTERN = r"^[a-zA-Z][-0-9a-zA-Z_]*(\.[0-9a-zA-Z][-0-9a-zA-Z_]*)*$"
#: The longest name of an event type, as in Nakadi.
MAX_NAME_LENGTH = 255
STORAGE_ID_PATTERN = r"^[a-zA-Z0-9][-_.0-9a-zA-Z]*$"

Category = Literal["undefined", "business", "data"]
Strategy = Literal["random", "hash", "user_defined"]
CompatibilityMode = Literal["forward", "compatible", "none"]
CleanupPolicy = Literal["delete"]
Step = Literal["none", "validating", "partitioning", "enriching", "publishing"]
PublishingStatus = Literal["submitted", "failed", "aborted"]
SwitchKind = Literal["switch", "grow"]
JournalKind = Literal["own", "adopted"]

OUTCOME_UNKNOWN = "outcome_unknown"
_NON_NEGATIVE = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Schema(msgspec.Struct, frozen=True, omit_defaults=False):
    """A JSON schema as text, in Nakadi's form. The platform assigns the version."""

    type: Literal["json_schema"] = "json_schema"
    schema: str = "{}"
    version: str = "1.0.0"
    created_at: str | None = None

    @classmethod
    def json(cls, schema: Mapping[str, Any]) -> Schema:
        """`Schema.json({"type": "object"})`."""
        return cls(schema=msgspec.json.encode(schema).decode())


class Statistics(msgspec.Struct, frozen=True):
    """Nakadi's way to request partitions: as many as the larger of the two parallelisms."""

    messages_per_minute: _NON_NEGATIVE = 1
    message_size: _NON_NEGATIVE = 1
    read_parallelism: _NON_NEGATIVE = 1
    write_parallelism: _NON_NEGATIVE = 1


class Options(msgspec.Struct, frozen=True):
    retention_time: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class EventType(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The definition of an event type: the schema of its events, and how they are distributed over partitions."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
    owning_application: str = ""
    category: Category = "undefined"
    partitions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    partition_strategy: Strategy = "random"
    partition_key_fields: tuple[str, ...] = ()
    schema: Schema = Schema()
    compatibility_mode: CompatibilityMode = "forward"
    cleanup_policy: CleanupPolicy = "delete"
    enrichment_strategies: tuple[Literal["metadata_enrichment"], ...] = ()
    default_statistic: Statistics | None = None
    options: Options = Options()
    ordering_key_fields: tuple[str, ...] = ()
    ordering_instance_ids: tuple[str, ...] = ()
    authorization: dict[str, Any] | None = None  # stored and returned, but not enforced
    audience: str | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    created_at: str | None = None
    updated_at: str | None = None
    #: Set if the records are actions of journals, in topics of the platform or in an adopted Kafka topic. Clients
    #: cannot change it.
    journal: JournalKind | None = None

    @property
    def partition_count(self) -> int:
        """The number of partitions that the definition requests; default 1."""
        if self.partitions is not None:
            return self.partitions
        asked = self.default_statistic or Statistics()
        return max(asked.read_parallelism, asked.write_parallelism, 1)

    def retention_ms(self, default_ms: int) -> int | None:
        """How long records are kept; None if they never expire."""
        if self.journal is not None:  # they are trimmed after their replication
            return None
        return self.options.retention_time or default_ms


class StorageInfo(StorageConfigurations, frozen=True, omit_defaults=True):
    """A named storage for records. The configuration of its type must be set."""

    id: Annotated[str, Meta(pattern=STORAGE_ID_PATTERN, max_length=36)]
    storage_type: StorageTypeName
    default: bool = False
    created_at: str | None = None

    @property
    def configuration(self) -> StorageConfiguration:
        """The configuration of the storage's own type; Invalid if it is missing."""
        found: StorageConfiguration | None = getattr(self, f"{self.storage_type}_configuration")
        if found is None:
            raise Invalid(f"a storage of type {self.storage_type} needs {self.storage_type}_configuration")
        return found


class Timeline(msgspec.Struct, frozen=True):
    """One storage epoch of an event type. `closed_at` and `latest_position` are set when it is closed."""

    id: str
    event_type: str
    order: int
    storage_id: str
    topic: str
    created_at: str
    #: When it became the active timeline.
    switched_at: str | None = None
    closed_at: str | None = None
    cleaned_up_at: str | None = None
    latest_position: dict[str, int] | None = None


class Switch(msgspec.Struct, frozen=True):
    """A change of an event type's storage or partition count that all nodes take part in."""

    token: str
    event_type: str
    kind: SwitchKind
    state: State
    storage_id: str
    topic: str
    partitions: int
    initiator: str
    started_at: str


class WaitingNode(msgspec.Struct, frozen=True):
    """A node that has not confirmed a switch yet, and its process; of older releases only the id is known."""

    node: str
    host: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.node} (process {self.pid} on {self.host})" if self.host else self.node


class RunningSwitch(Switch, frozen=True):
    """The newest switch of an event type, with the nodes that it waits for; none if it is decided."""

    unconfirmed: tuple[WaitingNode, ...] = ()


class CatalogEntry(msgspec.Struct, frozen=True):
    """An event type as stored in the catalog. An event type that is deleted and created again gets a new id."""

    id: str
    event_type: EventType
    timelines: tuple[Timeline, ...]
    #: The newest switch, in any state.
    switch: Switch | None = None

    @property
    def active(self) -> Timeline:
        return self.timelines[-1]


class CursorText(msgspec.Struct, frozen=True):
    """A cursor as clients write it."""

    partition: str | None = None
    offset: str | None = None


class ShiftedCursor(CursorText, frozen=True):
    shift: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0


class DistanceQuery(msgspec.Struct, frozen=True):
    initial_cursor: CursorText
    final_cursor: CursorText


class Distance(DistanceQuery, frozen=True):
    distance: int


class PartitionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The oldest and newest record of a partition; `unconsumed_events` is set if a cursor was given."""

    partition: str
    oldest_available_offset: str
    newest_available_offset: str
    unconsumed_events: int | None = None


class ItemResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one event of a publish."""

    publishing_status: PublishingStatus
    step: Step
    detail: str = ""
    eid: str | None = None


class PublishReport(msgspec.Struct, frozen=True):
    """The outcome of a publish. `items` is empty if every event was submitted."""

    count: int
    items: tuple[ItemResult, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.items

    @property
    def rejected(self) -> bool:
        """Whether an event broke a rule. Then nothing was written."""
        return any(item.publishing_status == "aborted" or _broke_a_rule(item) for item in self.items)

    @property
    def submitted(self) -> int:
        if self.ok:
            return self.count
        return sum(item.publishing_status == "submitted" for item in self.items)

    def raise_for_failed(self) -> PublishReport:
        """Return self if all events are stored, else raise an error with the first failure."""
        if self.ok:
            return self
        bad = next(item for item in self.items if item.publishing_status == "failed")
        detail = f"{self.submitted} of {self.count} events published; first failure at {bad.step}: {bad.detail}"
        if any(item.detail == OUTCOME_UNKNOWN for item in self.items):
            raise OutcomeUnknown(detail, items=list(self.items))
        raise PublishFailed(detail, items=list(self.items))


def _broke_a_rule(item: ItemResult) -> bool:
    return item.publishing_status == "failed" and item.step != "publishing"
