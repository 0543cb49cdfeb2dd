"""The log room in this process, over a catalog and its storages."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from strandline.clock import Clock
from strandline.errors import Conflict, InvalidCursor, NotFound
from strandline.log import cursors as rules
from strandline.log import definitions, model
from strandline.log.admin import LocalAdmin
from strandline.log.catalog import Catalog
from strandline.log.creation import Creation
from strandline.log.cursors import Position
from strandline.log.event_json import Events
from strandline.log.event_type_stream import EventTypeStream
from strandline.log.event_types import EventTypes, refuse_actions
from strandline.log.fenced_publish import FencedLog
from strandline.log.gauges import MEASURE_INTERVAL_MS, LogGauges
from strandline.log.initiator import Initiator
from strandline.log.node import Node
from strandline.log.open_storages import Storages
from strandline.log.publish_attempt import Done, PublishContext
from strandline.log.publisher import Publisher
from strandline.log.raw import RawLog
from strandline.log.reading import Batch, Reader, View
from strandline.log.room import Start
from strandline.log.serving import ServedLog, Wake
from strandline.log.settings import LogSections
from strandline.log.streaming import StreamLimits, StreamState
from strandline.log.subscriptions.local import LocalSubscriptions
from strandline.log.subscriptions.port import SubscriptionStore
from strandline.log.upkeep import Upkeep
from strandline.room import Chore, CounterValues, GaugeValues, HistogramMetric, HistogramValues, Room

_READ_BYTES = 64 << 20
_IDLE_SECONDS = 5
_COMMITS = HistogramMetric(
    "strandline_commit_seconds",
    "Time to commit a group of appends to a topic, the sync to the disk included; not measured for Kafka.",
    "storage",
)


class LocalLog(ServedLog, Room):
    subscriptions: LocalSubscriptions

    def __init__(
        self,
        catalog: Catalog,
        storages: Storages,
        node: Node,
        store: SubscriptionStore,
        settings: LogSections,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._storages = storages
        self._settings = settings.log
        self.publish_deadline_ms = settings.log.publish_deadline_ms
        self._clock = clock
        self.node = node
        #: The event types, for publishing, reading and the other rooms of this process.
        self.types = EventTypes(catalog, storages, settings.log)
        self._publisher = Publisher(PublishContext(node, catalog, storages, self.types, clock), settings.log)
        self.upkeep = Upkeep(catalog, storages, store, settings.log, clock)
        self._creation = Creation(catalog, storages, self.upkeep, settings.log, clock)
        #: The event types that hold actions of journals, for the journal room.
        self.raw = RawLog(self.types, storages, self._publisher, self._creation, self.upkeep, settings.log, clock)
        #: Publishing under a fence, for the jobs of this process.
        self.fenced = FencedLog(self.types, catalog, storages, self._publisher, clock)
        self._initiator = Initiator(node, catalog, storages, settings.log, clock)
        self.admin = LocalAdmin(self.types, catalog, storages, self._initiator, clock)
        self._gauges = LogGauges(self.types, storages, store)
        self.subscriptions = LocalSubscriptions(store, self.types, settings, clock)

    # -- event types

    def create(self, event_type: model.EventType, *, exist_ok: bool = False) -> model.EventType:
        complete = definitions.new(event_type, self._settings, self._clock.now_ms())
        try:
            self._creation.create(complete, self._creation.storage(None).id)
        except Conflict:
            if not exist_ok:
                raise
            return self.get(event_type.name)
        return complete

    def get(self, name: str) -> model.EventType:
        return self.types.entry(name).event_type

    def event_types(self) -> list[model.EventType]:
        return [entry.event_type for entry in self._catalog.entries()]

    def update(self, event_type: model.EventType) -> model.EventType:
        entry = self.types.entry(event_type.name)
        refuse_actions(entry)
        changed = definitions.changed(entry.event_type, event_type, self._settings, self._clock.now_ms())
        self._catalog.update(entry, changed)
        return changed

    def delete(self, name: str) -> None:
        entry = self.types.entry(name)
        # A subscription that is created after this check gets cursors that are unavailable.
        if readers := self.subscriptions.search(event_types=[name], limit=1):
            raise Conflict(f"event type {name!r} has subscriptions (such as {readers[0].id}); delete them first")
        self._catalog.delete(entry)
        self.upkeep.sweep({(timeline.storage_id, timeline.topic) for timeline in entry.timelines})

    def schemas(self, name: str) -> list[model.Schema]:
        return self._catalog.schemas(self.types.entry(name))

    # -- events

    def submit(self, name: str, events: Events, *, flow_id: str | None = None) -> Future[model.PublishReport]:
        return self._publisher.submit(name, events, flow_id)

    def submit_small(self, name: str, events: bytes, flow_id: str | None, done: Done) -> None:
        self._publisher.submit_small(name, events, flow_id, done)

    def publish(self, name: str, events: Events, *, flow_id: str | None = None) -> model.PublishReport:
        return self._publisher.publish(name, events, flow_id)

    def read(
        self,
        name: str,
        start: Start = "BEGIN",
        *,
        follow: bool = False,
        limit: int | None = None,
        batch_size: int = 10_000,
    ) -> Iterator[Batch]:
        reader = self.types.reader(name, start)
        spans = [] if follow else self.types.view(name).spans()
        ends = {p: rules.at_index(s, rules.end_index(s)) for p, s in enumerate(spans)}
        return _batches(reader, None if follow else ends, limit, batch_size)

    def stream(self, name: str, start: Start, limits: StreamLimits, wake: Wake, *, eager: bool) -> EventTypeStream:
        reader = self.types.reader(name, start)
        state = StreamState(name, limits, reader.positions, self._clock.steady_ms(), eager=eager)
        return EventTypeStream(reader, state, self._clock, wake)

    def partitions(self, name: str, cursors: Sequence[model.CursorText] = ()) -> list[model.PartitionInfo]:
        view = self.types.view(name)
        given = view.positions(cursors)
        spans = view.spans(given.items())
        lags = {p: rules.lag(spans[p], position) for p, position in given.items()}
        return [
            model.PartitionInfo(str(p), rules.oldest_text(s), rules.newest_text(s), lags.get(p))
            for p, s in enumerate(spans)
        ]

    # -- cursors

    def distances(self, name: str, queries: Sequence[model.DistanceQuery]) -> list[model.Distance]:
        view = self.types.view(name)
        pairs = [(_parsed(view, query.initial_cursor), _parsed(view, query.final_cursor)) for query in queries]
        spans = view.spans(itertools.chain(*pairs))
        found = []
        for query, ((partition, initial), (other, final)) in zip(queries, pairs, strict=True):
            if partition != other:
                raise InvalidCursor(
                    f"the cursors belong to different partitions, {partition} and {other}",
                    reason="CURSORS_WITH_DIFFERENT_PARTITION",
                )
            own = spans[partition]
            begin = rules.at_index(own, rules.begin_index(own))
            between = rules.distance(own, initial or begin, final or begin)
            found.append(model.Distance(query.initial_cursor, query.final_cursor, between))
        return found

    def shift(self, name: str, cursors: Sequence[model.ShiftedCursor]) -> list[model.CursorText]:
        view = self.types.view(name)
        given = [_parsed(view, cursor) for cursor in cursors]
        spans = view.spans(given)
        return [
            model.CursorText(str(partition), str(rules.shift(spans[partition], position, cursor.shift)))
            for cursor, (partition, position) in zip(cursors, given, strict=True)
        ]

    def lag(self, name: str, cursors: Sequence[model.CursorText]) -> list[model.PartitionInfo]:
        asked = {cursor.partition for cursor in cursors}
        return [info for info in self.partitions(name, cursors) if info.partition in asked]

    # -- where it is stored

    def timelines(self, name: str) -> list[model.Timeline]:
        return [*self.types.entry(name).timelines]

    def storages(self) -> list[model.StorageInfo]:
        return self._catalog.storages.list()

    def known_storages(self, names: Collection[str], *, active: bool = False) -> frozenset[str] | None:
        entries = [entry for name in names if (entry := self.types.known(name)) is not None]
        return _storage_ids(entries, active=active) if len(entries) == len(names) else None

    def find_storages(self, names: Collection[str], *, active: bool = False) -> frozenset[str]:
        entries = []
        for name in names:
            with suppress(NotFound):
                entries.append(self.types.entry(name))
        return _storage_ids(entries, active=active)

    # -- for the process that runs the room

    def start(self) -> None:
        """Join the other nodes now, so that the first publish does not wait for the join."""
        self.node.join()

    def check_ready(self) -> None:
        self.storages()

    def chores(self) -> list[Chore]:
        return [
            Chore("upkeep of the log", self._settings.purge_interval_ms, self.upkeep.run),
            Chore("measuring the log", MEASURE_INTERVAL_MS, self._gauges.measure),
        ]

    def counts(self) -> CounterValues:
        return {**self.upkeep.counts(), **self._initiator.counts()}

    def gauges(self) -> GaugeValues:
        return {**self._gauges.values(), **self.upkeep.retention.gauges()}

    def histograms(self) -> HistogramValues:
        return {_COMMITS: self._storages.commit_times()}

    def give_up(self) -> None:
        self.node.refuse_waiting()

    def close(self) -> None:
        self._publisher.close()
        # Early, because what follows may wait for a storage, and other nodes would wait for this one meanwhile.
        self.node.close()
        self.subscriptions.close()
        self.types.close()
        self._storages.close()


def _batches(
    reader: Reader, ends: Mapping[int, Position] | None, limit: int | None, batch_size: int
) -> Iterator[Batch]:
    """Read up to the ends of the partitions; without them, wait for more records."""
    left = limit
    wakeup = threading.Event()
    unwatch = reader.watch(wakeup.set) if ends is None else None
    try:
        while left is None or left > 0:
            wakeup.clear()
            batches = reader.poll(batch_size if left is None else min(batch_size, left), _READ_BYTES)
            for batch in batches:
                left = None if left is None else left - len(batch)
                yield batch
            if not batches and reader.damage is not None:  # all other partitions have been read
                raise reader.damage
            if ends is not None and (not batches or reader.reached(ends)):
                return
            if not batches:
                # With a timeout: the deletion of the event type does not wake a watch on its topic.
                wakeup.wait(_IDLE_SECONDS)
    finally:
        if unwatch is not None:
            unwatch()


def _storage_ids(entries: Sequence[model.CatalogEntry], *, active: bool) -> frozenset[str]:
    if active:
        return frozenset(entry.active.storage_id for entry in entries)
    timelines = (timeline for entry in entries for timeline in entry.timelines)
    return frozenset(timeline.storage_id for timeline in timelines if timeline.cleaned_up_at is None)


def _parsed(view: View, cursor: model.CursorText) -> tuple[int, Position | None]:
    """The position of a cursor. Cursor arithmetic has its own reason for a malformed offset."""
    try:
        return view.position(cursor)
    except InvalidCursor as error:
        if error.reason == "INVALID_FORMAT":
            raise InvalidCursor(error.detail, **{**error.info, "reason": "CURSOR_FORMAT_EXCEPTION"}) from None
        raise
