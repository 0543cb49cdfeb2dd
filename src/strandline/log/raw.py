"""Event types whose records are actions of journals: records with keys and headers, placed by the caller.

They are for other rooms of this process. Publishing, reading and changing them as ordinary event types is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import msgspec

from strandline.clock import Clock
from strandline.errors import Conflict, Gap, NotFound, OutcomeUnknown, StrandlineError, Unavailable
from strandline.log import cursors, definitions
from strandline.log.adoption import Adoption
from strandline.log.creation import Creation
from strandline.log.cursors import Position
from strandline.log.event_types import EventTypes
from strandline.log.model import CatalogEntry, PublishReport, StorageInfo, Timeline
from strandline.log.open_storages import Storages
from strandline.log.preparation import Orders, Prepared
from strandline.log.publisher import Publisher
from strandline.log.reading import Batch
from strandline.log.records import NewRecords
from strandline.log.settings import LogSettings
from strandline.log.storage import UNKNOWN, Placed, SealableStorage, Storage
from strandline.log.switching import State
from strandline.log.upkeep import Upkeep

_READ_BYTES = 8 << 20
_READ_RECORDS = 10_000
_DECISION_SECONDS = 0.01
_DECISION_POLLS = 1000


class RawTopic(msgspec.Struct, frozen=True):
    """An event type that holds actions. If it is deleted and created again, it gets a new id."""

    id: str
    name: str
    partitions: int
    storage_id: str
    #: The topic that existed before, if there is one.
    kafka_topic: str | None = None

    @property
    def adopted(self) -> bool:
        return self.kafka_topic is not None

    @classmethod
    def of(cls, entry: CatalogEntry) -> RawTopic:
        kind, active = entry.event_type, entry.active
        adopted = active.topic if kind.journal == "adopted" else None
        return cls(entry.id, kind.name, kind.partition_count, active.storage_id, adopted)


#: Where the records of one partition are; an error as `RawLog.append` raises it.
Stored = list[Position] | StrandlineError


class _Report(PublishReport, frozen=True):
    """What was stored, by partition."""

    stored: Mapping[int, Any] = msgspec.field(default_factory=dict)


class _Records(Prepared, frozen=True):
    """The records of one append."""

    def outcome(self, placed: Mapping[int, Placed], orders: Orders) -> PublishReport | StrandlineError:
        stored = {
            partition: _stored(part, orders if isinstance(orders, int) else orders[partition])
            for partition, part in placed.items()
        }
        return _Report(sum(map(len, self.batches.values())), stored=stored)

    def unknown(self) -> StrandlineError:
        return _unknown()


class RawLog:
    """Thread-safe. Every method is NotFound if there is no event type of that name which holds actions."""

    def __init__(
        self,
        event_types: EventTypes,
        storages: Storages,
        publisher: Publisher,
        creation: Creation,
        upkeep: Upkeep,
        settings: LogSettings,
        clock: Clock,
    ) -> None:
        self._event_types = event_types
        self._storages = storages
        self._publisher = publisher
        self._creation = creation
        self._upkeep = upkeep
        self._settings = settings
        self._clock = clock
        self._adoption = Adoption(storages, clock)

    # -- event types

    def create(
        self,
        name: str,
        partitions: int | None = None,
        storage_id: str | None = None,
        kafka_topic: str | None = None,
    ) -> tuple[RawTopic, bool]:
        """The event type, and whether this call has created it. Conflict if it exists with other values.

        Without `storage_id` it is created in the default storage, without `partitions` it has one. `kafka_topic`
        is an existing topic of the storage; Invalid or Conflict if it cannot be adopted. It is never changed,
        trimmed or deleted.
        """
        entry = self._find(name)
        if entry is not None:
            return _same(entry, partitions, storage_id, kafka_topic), False
        try:
            self._create(name, partitions, self._creation.storage(storage_id), kafka_topic)
        except Conflict:
            entry = self._find(name)
            if entry is None:
                raise
            # Another caller was first, perhaps with the same values.
            return _same(entry, partitions, storage_id, kafka_topic), False
        return self.topic(name), True

    def _find(self, name: str) -> CatalogEntry | None:
        try:
            return self._event_types.entry(name)
        except NotFound:
            return None

    def _create(self, name: str, partitions: int | None, storage: StorageInfo, kafka_topic: str | None) -> None:
        now_ms = self._clock.now_ms()
        if kafka_topic is None:
            complete = definitions.actions(
                name, 1 if partitions is None else partitions, "own", self._settings, now_ms
            )
            self._creation.create(complete, storage.id)
        else:
            count = self._adoption.check_new(storage, kafka_topic, partitions)
            complete = definitions.actions(name, count, "adopted", self._settings, now_ms)
            self._creation.adopt(complete, storage.id, kafka_topic)

    def topic(self, name: str) -> RawTopic:
        """Always as the catalog has it."""
        return RawTopic.of(self._entry(name))

    def known(self, name: str) -> RawTopic:
        """As this process has seen it last, without a query; `append` refuses one that was replaced since.

        An adopted topic is as the catalog has it, because its appends are checked before they are written.
        """
        entry = self._event_types.known(name)
        return self.topic(name) if entry is None or entry.event_type.journal != "own" else RawTopic.of(entry)

    def topics(self) -> list[RawTopic]:
        """All of them by name."""
        return [RawTopic.of(entry) for entry in self._event_types.entries() if entry.event_type.journal]

    # -- records

    def append(self, topic: RawTopic, batches: Mapping[int, NewRecords]) -> Mapping[int, Stored]:
        """Store records by partition. Returns their positions, once they are durable and readers find them.

        OutcomeUnknown, also for one partition, if its records or a part of them may be stored; after any other
        error none of them is. NotFound if the topic was deleted, also if there is another one of its name.
        """
        report = self._publisher.store(topic.name, _Records((), batches, {}), partial(self._same, topic))
        return report.stored if isinstance(report, _Report) else {}

    def shares_commits(self, topic: RawTopic) -> bool:
        """Whether a commit stores records of all partitions: then callers that share it do not wait longer."""
        return isinstance(self._storages.get(topic.storage_id), SealableStorage)

    def threads(self, name: str) -> Executor:
        """Threads for appends; their storage may not answer."""
        return self._publisher.threads(name)

    def end(self, name: str, partition: int) -> Position:
        """The newest record that readers can find, read after the call began; −1 of the first timeline if none.

        It includes every record that any process was told to be stored before the call.
        """
        for _ in range(_DECISION_POLLS):
            entry = self._usable(name)
            active = entry.active
            storage = self._storages.get(active.storage_id)
            try:
                end = storage.end(active.topic, partition)
            except NotFound:
                if self._entry(name) == entry:
                    raise
                continue  # the timeline was closed and removed meanwhile
            if isinstance(storage, SealableStorage) or self._is_settled(name, active):
                return _newest(entry, partition, end)
            time.sleep(_DECISION_SECONDS)
        raise Unavailable("a timeline switch is not decided yet", retry_after=1)

    def sure_end(self, name: str, partition: int) -> Position | None:
        """As `end`, but None if the storage may be wrong, as a Kafka broker that was cut off is."""
        entry = self._entry(name)
        storage = self._storages.get(entry.active.storage_id)
        if not isinstance(storage, SealableStorage):
            return None
        try:
            return _newest(entry, partition, storage.end(entry.active.topic, partition))
        except NotFound:
            return None  # the timeline was closed and removed meanwhile

    def _is_settled(self, name: str, active: Timeline) -> bool:
        """Whether all records of the active timeline are visible. Read after its end.

        While a switch closes the timeline, its last records may become too late for it, or may not.
        """
        now = self._entry(name)
        closing = now.switch is not None and now.switch.state is State.CLOSING
        return now.active.topic == active.topic and not closing

    def first(self, name: str, partition: int) -> Position:
        """The oldest available record, or the next one if there is none."""
        spans = self._event_types.view(name).spans()[partition]
        for span in spans:
            if span.first <= span.last:
                return Position(span.order, span.first)
        return Position(spans[-1].order, spans[-1].last + 1)

    def read(
        self, name: str, partition: int, after: Position | None, until: Position, *, max_bytes: int = _READ_BYTES
    ) -> Iterator[Batch]:
        """The records after one position up to and including another, in batches of about `max_bytes`.

        `after` None is before the first record ever. `until` must be the position of a record, as `append` and
        `end` return it. Gap if one of the records is not available any more.
        """
        entry = self._usable(name)
        after = after or Position(entry.timelines[0].order, -1)
        for timeline in entry.timelines:
            if after.order <= timeline.order <= until.order:
                first = after.offset + 1 if timeline.order == after.order else 0
                last = until.offset if timeline.order == until.order else math.inf
                if timeline.latest_position is not None:
                    last = min(last, timeline.latest_position.get(str(partition), -1))
                if first <= last:
                    yield from self._read(entry, timeline, partition, first, int(last), max_bytes)

    def _read(
        self, entry: CatalogEntry, timeline: Timeline, partition: int, first: int, last: int, max_bytes: int
    ) -> Iterator[Batch]:
        """The records of one timeline, which has records up to `last` at least."""
        name, topic = entry.event_type.name, timeline.topic
        if timeline.cleaned_up_at is not None:
            raise _gap(name, partition, Position(timeline.order, first))
        storage = self._storages.get(timeline.storage_id)
        while first <= last:
            limit = min(_READ_RECORDS, last - first + 1)
            try:
                found = storage.read(topic, partition, first, max_records=limit, max_bytes=max_bytes)
            except NotFound:
                raise _gap(name, partition, Position(timeline.order, first)) from None
            offsets = found["offset"]
            if not len(offsets) or offsets[0].as_py() > first:
                _refuse_missing(storage, topic, name, partition, Position(timeline.order, first), last)
            if not len(offsets):
                return
            found = found.slice(0, sum(1 for offset in offsets.to_pylist() if offset <= last))
            if found.num_rows:
                yield Batch(name, str(partition), timeline.order, found)
            first = offsets[-1].as_py() + 1

    def lag(self, name: str, positions: Mapping[int, Position]) -> int:
        """The number of records after these positions, of all partitions."""
        spans = self._event_types.view(name).spans()
        read = sum(cursors.index_of(spans[partition], position) for partition, position in positions.items())
        return sum(map(cursors.end_index, spans)) - read

    def trim(self, name: str, replicated: Mapping[int, Position], before_ms: int) -> int:
        """Delete records before a time, up to the position of each partition, and whole timelines likewise.

        Returns the number of deleted records without those of whole timelines. Does nothing to an adopted topic.
        """
        entry = self._entry(name)
        return 0 if entry.event_type.journal == "adopted" else self._upkeep.trim(entry, replicated, before_ms)

    def watch(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in any thread, when there may be more records. Returns a function that ends this."""
        self._entry(name)
        return self._event_types.watch(name, callback)

    def _entry(self, name: str) -> CatalogEntry:
        try:
            entry = self._event_types.entry(name)
        except NotFound:
            raise NotFound(f"there is no topic {name!r} of journals; create it first") from None
        if entry.event_type.journal is None:
            raise NotFound(f"event type {name!r} holds no journals; list the topics of journals to find one")
        return entry

    def _same(self, topic: RawTopic) -> CatalogEntry:
        entry = self._usable(topic.name)
        if entry.id != topic.id:
            raise NotFound(f"the topic {topic.name!r} was deleted and created again")
        return entry

    def _usable(self, name: str) -> CatalogEntry:
        """The event type; Conflict if its topic was adopted and has changed since."""
        entry = self._entry(name)
        if entry.event_type.journal == "adopted":
            self._adoption.check_again(entry)
        return entry


def _same(
    entry: CatalogEntry, partitions: int | None, storage_id: str | None, kafka_topic: str | None
) -> RawTopic:
    """The event type if it has these values, as far as they are given; Conflict if it has others."""
    name = entry.event_type.name
    if entry.event_type.journal is None:
        raise Conflict(f"{name!r} is an ordinary event type; choose another name for the journals")
    found = RawTopic.of(entry)
    # A request that is repeated after a switch names the storage in which the event type was created.
    storages = {None, found.storage_id, entry.timelines[0].storage_id}
    if (
        partitions not in {None, found.partitions}
        or storage_id not in storages
        or kafka_topic not in {None, found.kafka_topic}
    ):
        adopted = f" over the Kafka topic {found.kafka_topic!r}" if found.adopted else ""
        raise Conflict(
            f"{name!r} exists already, with {found.partitions} partitions in storage {found.storage_id!r}{adopted}"
        )
    return found


def _stored(part: Placed, orders: int | Sequence[int]) -> Stored:
    if UNKNOWN in part.offsets:
        return _unknown(part.error)
    if part.error is not None:
        # A part of the records may be stored.
        return part.error if max(part.offsets) < 0 else _unknown(part.error)
    each = [orders] * len(part.offsets) if isinstance(orders, int) else orders
    return [*map(Position, each, part.offsets)]


def _unknown(cause: StrandlineError | None = None) -> StrandlineError:
    error = OutcomeUnknown("it is unknown whether the records are stored")
    error.__cause__ = cause
    return error


def _newest(entry: CatalogEntry, partition: int, end: int) -> Position:
    """The newest record, where the active timeline ends before the offset `end`."""
    if end > 0:
        return Position(entry.active.order, end - 1)
    for timeline in reversed(entry.timelines[:-1]):
        last = (timeline.latest_position or {}).get(str(partition), -1)
        if last >= 0:
            return Position(timeline.order, last)
    return Position(entry.timelines[0].order, -1)


def _refuse_missing(
    storage: Storage, topic: str, name: str, partition: int, position: Position, last: int
) -> None:
    """Records from `position` on were not found. Gap or Unavailable, unless these offsets have no records."""
    bounds = storage.bounds(topic)
    if partition >= len(bounds) or bounds[partition].first > position.offset:
        raise _gap(name, partition, position)
    if bounds[partition].last < last:  # for example, the server that answered is not up to date
        raise Unavailable(f"partition {partition} of {name!r} does not have all its records yet", retry_after=1)


def _gap(name: str, partition: int, position: Position) -> Gap:
    return Gap(
        f"records of {name!r}, partition {partition}, are missing from {position} on: they were removed before "
        "they were replicated; restore the topic from a backup",
        partition=partition, position=str(position),
    )  # fmt: skip
