"""The log room in this process, over a catalog and its storages."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future

from strandline.clock import Clock, to_rfc3339
from strandline.config import LogSettings
from strandline.engine.watcher import Watcher
from strandline.errors import Conflict, InvalidCursor, NotFound
from strandline.log import cursors as rules
from strandline.log import definitions
from strandline.log.admin import LocalAdmin
from strandline.log.catalog import Catalog
from strandline.log.cursors import Position, Span
from strandline.log.initiator import Initiator
from strandline.log.model import (
    CatalogEntry,
    CursorText,
    Distance,
    DistanceQuery,
    EventType,
    PartitionInfo,
    PublishReport,
    Schema,
    ShiftedCursor,
    StorageInfo,
    Timeline,
)
from strandline.log.node import Node
from strandline.log.publication import Surroundings
from strandline.log.publisher import Publisher
from strandline.log.publishing import Events, Plan
from strandline.log.reading import Batch, Ends, Reader, View
from strandline.log.room import Log, Start
from strandline.log.storages import Storages
from strandline.log.subscriptions.local import LocalSubscriptions
from strandline.log.upkeep import Upkeep

# A topic that no event type owns after this long was left behind by a crash.
_CREATION_MS = 600_000
_READ_BYTES = 64 << 20
_IDLE_SECONDS = 5

#: A partition and a position in it; None is BEGIN.
_Place = tuple[int, Position | None]


class LocalLog(Log):
    subscriptions: LocalSubscriptions

    def __init__(
        self, catalog: Catalog, storages: Storages, node: Node, settings: LogSettings, clock: Clock
    ) -> None:
        self._catalog = catalog
        self._storages = storages
        self._settings = settings
        self._clock = clock
        self._plans: dict[str, tuple[int, Plan]] = {}
        self._visible = Ends()
        self._changes = Watcher(
            lambda names: dict.fromkeys(names, catalog.version()), settings.poll_interval_ms / 1000
        )
        self.node = node
        self._publisher = Publisher(Surroundings(node, catalog, storages, self.plan, clock), settings)
        self.upkeep = Upkeep(catalog, storages, settings, clock)
        self.admin = LocalAdmin(self, catalog, Initiator(node, catalog, storages, settings, clock))

    # -- event types

    def create(self, event_type: EventType) -> EventType:
        now_ms = self._clock.now_ms()
        complete = definitions.new(event_type, self._settings, now_ms)
        storage = next((s for s in self._catalog.storages.list() if s.default), None)
        if storage is None:
            raise Conflict("there is no storage for events yet; add one of type kafka first (POST /storages)")
        topic = f"{complete.name[:120]}.{uuid.uuid4().hex}"
        timeline = Timeline(str(uuid.uuid4()), complete.name, 1, storage.id, topic, created_at=to_rfc3339(now_ms))
        # Announced before it is made: whatever crashes from here on, the topic is owned or swept.
        self._catalog.doom_topic(storage.id, topic, now_ms + _CREATION_MS)
        retention_ms = complete.retention_ms(self._settings.retention_ms)
        self._storages.get(storage.id).create_topic(topic, complete.partition_count, retention_ms)
        try:
            self._catalog.create(str(uuid.uuid4()), complete, timeline)
        except Conflict:
            # Only now it is certain that nobody owns the topic; after any other error it waits for the sweep.
            self._catalog.doom_topic(storage.id, topic, now_ms)
            self.upkeep.sweep([(storage.id, topic)])
            raise
        return complete

    def get(self, name: str) -> EventType:
        return self.entry(name).event_type

    def event_types(self) -> list[EventType]:
        return [entry.event_type for entry in self._catalog.entries()]

    def update(self, event_type: EventType) -> EventType:
        entry = self.entry(event_type.name)
        changed = definitions.changed(entry.event_type, event_type, self._settings, self._clock.now_ms())
        self._catalog.update(entry, changed)
        return changed

    def delete(self, name: str) -> None:
        entry = self.entry(name)
        # One that is created at this very moment finds its cursors unavailable.
        if readers := self.subscriptions.search(event_types=[name], limit=1):
            raise Conflict(f"event type {name!r} has subscriptions, {readers[0].id} among them; delete them first")
        self._catalog.delete(entry, self._clock.now_ms())
        self.upkeep.sweep({(timeline.storage_id, timeline.topic) for timeline in entry.timelines})

    def schemas(self, name: str) -> list[Schema]:
        return self._catalog.schemas(self.entry(name))

    # -- events

    def submit(self, name: str, events: Events, *, flow_id: str | None = None) -> Future[PublishReport]:
        return self._publisher.submit(name, events, flow_id)

    def publish(self, name: str, events: Events, *, flow_id: str | None = None) -> PublishReport:
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
        reader = self.reader(name, start)
        ends = {} if follow else self._ends(name)
        return self._batches(reader, ends, follow=follow, limit=limit, batch_size=batch_size)

    def _batches(
        self,
        reader: Reader,
        ends: Mapping[int, Position],
        *,
        follow: bool,
        limit: int | None,
        batch_size: int,
    ) -> Iterator[Batch]:
        left = limit
        news = threading.Event()
        unwatch = reader.watch(news.set) if follow else None
        try:
            while left is None or left > 0:
                news.clear()
                batches = reader.poll(batch_size if left is None else min(batch_size, left), _READ_BYTES)
                for batch in batches:
                    left = None if left is None else left - len(batch)
                    yield batch
                if follow and not batches:
                    # Not for ever: that the event type was deleted is no news of its topic.
                    news.wait(_IDLE_SECONDS)
                elif not follow and (not batches or reader.reached(ends)):
                    return
        finally:
            if unwatch is not None:
                unwatch()

    def _ends(self, name: str) -> dict[int, Position]:
        spans = self.view(name).spans()
        return {p: rules.at_index(s, rules.end_index(s)) for p, s in enumerate(spans)}

    def reader(self, name: str, start: Start) -> Reader:
        """A reader from the given start, every position checked to be available."""
        view = self.view(name)
        entry_id = view.entry.id
        positions: dict[int, Position]
        whole = isinstance(start, str) and start.upper() in {"BEGIN", "END"}
        if isinstance(start, str) and whole:
            place = rules.begin_index if start.upper() == "BEGIN" else rules.end_index
            positions = {p: rules.at_index(s, place(s)) for p, s in enumerate(view.spans())}
        else:
            given = view.positions(_cursor_list(start))
            spans = view.spans(given.items())
            positions = {p: rules.available(spans[p], position) for p, position in given.items()}
        return Reader(lambda: self._same(name, entry_id), positions, self._changes, whole=whole)

    def _same(self, name: str, entry_id: str) -> View:
        view = self.view(name)
        if view.entry.id != entry_id:
            raise InvalidCursor(f"event type {name!r} was deleted and made anew", reason="UNAVAILABLE")
        return view

    def partitions(self, name: str, cursors: Sequence[CursorText] = ()) -> list[PartitionInfo]:
        view = self.view(name)
        given = view.positions(cursors)
        spans = view.spans(given.items())
        lags = {p: rules.lag(spans[p], position) for p, position in given.items()}
        return [_info(p, s, lags.get(p)) for p, s in enumerate(spans)]

    # -- cursors

    def distances(self, name: str, queries: Sequence[DistanceQuery]) -> list[Distance]:
        view = self.view(name)
        pairs = [(_parsed(view, query.initial_cursor), _parsed(view, query.final_cursor)) for query in queries]
        spans = view.spans(itertools.chain(*pairs))

        def distance(query: DistanceQuery, pair: tuple[_Place, _Place]) -> Distance:
            (partition, initial), (other, final) = pair
            if partition != other:
                raise InvalidCursor(
                    f"the cursors are of partitions {partition} and {other}",
                    reason="CURSORS_WITH_DIFFERENT_PARTITION",
                )
            own = spans[partition]
            begin = rules.at_index(own, rules.begin_index(own))
            between = rules.distance(own, initial or begin, final or begin)
            return Distance(query.initial_cursor, query.final_cursor, between)

        return [distance(query, pair) for query, pair in zip(queries, pairs, strict=True)]

    def shift(self, name: str, cursors: Sequence[ShiftedCursor]) -> list[CursorText]:
        view = self.view(name)
        given = [_parsed(view, CursorText(cursor.partition, cursor.offset)) for cursor in cursors]
        spans = view.spans(given)
        shifted = []
        for cursor, (partition, position) in zip(cursors, given, strict=True):
            moved = rules.shift(spans[partition], position, cursor.shift)
            shifted.append(CursorText(str(partition), str(moved)))
        return shifted

    def lag(self, name: str, cursors: Sequence[CursorText]) -> list[PartitionInfo]:
        asked = {cursor.partition for cursor in cursors}
        return [info for info in self.partitions(name, cursors) if info.partition in asked]

    # -- where it is stored

    def timelines(self, name: str) -> list[Timeline]:
        return [*self.entry(name).timelines]

    def storages(self) -> list[StorageInfo]:
        return self._catalog.storages.list()

    # -- shared by the methods above and the server

    def entry(self, name: str) -> CatalogEntry:
        return self.plan(name).entry

    def view(self, name: str) -> View:
        return View(lambda: self.entry(name), self._storages.get, self._visible)

    def plan(self, name: str) -> Plan:
        """The event type compiled for publishing, as fresh as the catalog is now."""
        version = self._catalog.version()
        cached = self._plans.get(name)
        if cached is not None and cached[0] == version:
            return cached[1]
        entry = self._catalog.get(name)
        if entry is None:
            self._plans.pop(name, None)
            raise NotFound(f"event type {name!r} does not exist")
        unchanged = cached is not None and cached[1].entry == entry
        plan = cached[1] if cached is not None and unchanged else Plan.of(entry, self._settings.max_event_bytes)
        self._plans[name] = (version, plan)
        return plan

    def close(self) -> None:
        self._publisher.close()
        self.node.close()
        self._changes.close()
        self._storages.close()
        self._catalog.close()


def _cursor_list(start: Start) -> Sequence[CursorText]:
    if isinstance(start, str):
        raise InvalidCursor(
            f"start must be BEGIN, END or offsets by partition, not {start!r}", reason="INVALID_FORMAT"
        )
    if isinstance(start, Mapping):
        return [CursorText(partition, offset) for partition, offset in start.items()]
    return start


def _parsed(view: View, cursor: CursorText) -> _Place:
    """A cursor for arithmetic, whose texts have their own name for a broken form."""
    try:
        return view.position(cursor)
    except InvalidCursor as error:
        if error.reason == "INVALID_FORMAT":
            raise InvalidCursor(error.detail, reason="CURSOR_FORMAT_EXCEPTION") from None
        raise


def _info(partition: int, spans: Sequence[Span], unconsumed: int | None) -> PartitionInfo:
    return PartitionInfo(str(partition), rules.oldest_text(spans), rules.newest_text(spans), unconsumed)
