"""Event types whose records are actions of journals: records with keys and headers, placed by the caller.

They are for other rooms of this process. Publishing, reading and changing them as ordinary event types is refused.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

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


class _Stored(PublishReport, frozen=True):
    """Where the records of an append are."""

    positions: tuple[Position, ...] = ()


class _Records(Prepared, frozen=True):
    """The records of one append, for one partition."""

    def outcome(self, placed: Mapping[int, Placed], orders: Orders) -> PublishReport | StrandlineError:
        ((partition, part),) = placed.items()
        if UNKNOWN in part.offsets:
            return self.unknown(part.error)
        if part.error is not None:
            # A part of the records may be stored.
            return part.error if max(part.offsets) < 0 else self.unknown(part.error)
        each = [orders] * len(part.offsets) if isinstance(orders, int) else orders[partition]
        return _Stored(len(each), positions=tuple(map(Position, each, part.offsets)))

    def unknown(self, cause: StrandlineError | None = None) -> StrandlineError:
        error = OutcomeUnknown("it is unknown whether the records are stored")
        error.__cause__ = cause
        return error


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
        """Cheap, and always as the catalog has it."""
        return RawTopic.of(self._entry(name))

    def topics(self) -> list[RawTopic]:
        """All of them by name."""
        return [RawTopic.of(entry) for entry in self._event_types.entries() if entry.event_type.journal]

    # -- records

    def append(self, name: str, partition: int, records: NewRecords) -> list[Position]:
        """Store records and return their positions, once they are durable and readers find them there.

        OutcomeUnknown if they, or a part of them, may be stored; after any other error none of them is.
        """
        prepared = _Records((), {partition: records}, {})
        report = self._publisher.store(name, prepared, partial(self._usable, name))
        return [*report.positions] if isinstance(report, _Stored) else []

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
        entry = self._event_types.entry(name)
        if entry.event_type.journal is None:
            raise NotFound(f"event type {name!r} holds no journals")
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
    own = (found.partitions, found.storage_id, found.kafka_topic)
    asked = (partitions, storage_id, kafka_topic)
    if any(value not in {None, has} for value, has in zip(asked, own, strict=True)):
        adopted = f" over the Kafka topic {found.kafka_topic!r}" if found.adopted else ""
        raise Conflict(
            f"{name!r} exists already, with {found.partitions} partitions in storage {found.storage_id!r}{adopted}"
        )
    return found


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
