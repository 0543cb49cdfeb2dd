"""The event types of the catalog, as publishers and readers of this process use them.

Every lookup returns the current state of the catalog. Compiled schemas are kept until the event type changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from strandline.engine.watcher import Watcher
from strandline.errors import Conflict, InvalidCursor, NotFound
from strandline.log import cursors as rules
from strandline.log.catalog import Catalog
from strandline.log.model import CatalogEntry, CursorText, StorageInfo
from strandline.log.open_storages import Storages
from strandline.log.preparation import CompiledEventType
from strandline.log.reading import Reader, View, VisibleEnds
from strandline.log.room import Start
from strandline.log.settings import LogSettings

_STARTS = {"BEGIN": rules.begin_index, "END": rules.end_index}


class _Followed:
    """A watch on the active topic of an event type, which a switch replaces."""

    def __init__(self, view: Callable[[], View], callback: Callable[[], None]) -> None:
        self._view = view
        self._callback = callback
        self._lock = threading.Lock()
        self._topic = ""
        self._unwatch: Callable[[], None] | None = None
        self._stopped = False

    def look(self) -> None:
        """Watch the topic that is active now, and call back."""
        with suppress(NotFound), self._lock:
            view = self._view()
            topic = view.entry.active.topic
            if topic != self._topic and not self._stopped:
                before, self._unwatch, self._topic = self._unwatch, view.watch(self._callback), topic
                if before is not None:
                    before()
        self._callback()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._unwatch is not None:
                self._unwatch()


def refuse_actions(entry: CatalogEntry) -> None:
    """Conflict if the records are actions of journals, which only the journal room reads and writes."""
    name = entry.event_type.name
    if entry.event_type.journal is not None:
        raise Conflict(f"event type {name!r} holds the actions of journals; use the journals of topic {name!r}")


class EventTypes:
    def __init__(self, catalog: Catalog, storages: Storages, settings: LogSettings) -> None:
        self._catalog = catalog
        self._storages = storages
        self._max_event_bytes = settings.max_event_bytes
        self._compiled: dict[str, tuple[int, CompiledEventType]] = {}
        self._visible = VisibleEnds()
        self._changes = Watcher(
            lambda names: dict.fromkeys(names, catalog.version()), settings.poll_interval_ms / 1000
        )

    def compiled(self, name: str) -> CompiledEventType:
        """The event type compiled for publishing. NotFound if it does not exist."""
        version = self._catalog.version()
        cached_version, cached = self._compiled.get(name, (None, None))
        if cached is not None and cached_version == version:
            return cached
        entry = self._catalog.get(name)
        if entry is None:
            self._compiled.pop(name, None)
            raise NotFound(f"event type {name!r} does not exist")
        if cached is None or cached.entry != entry:
            cached = CompiledEventType.of(entry, self._max_event_bytes)
        self._compiled[name] = (version, cached)
        return cached

    def known(self, name: str) -> CatalogEntry | None:
        """The event type as the last lookup of this process found it; it may have changed since. Never waits."""
        _, cached = self._compiled.get(name, (None, None))
        return cached.entry if cached is not None else None

    def entry(self, name: str) -> CatalogEntry:
        """The event type as stored in the catalog. NotFound if it does not exist."""
        return self.compiled(name).entry

    def entries(self) -> list[CatalogEntry]:
        """All event types by name."""
        return self._catalog.entries()

    def view(self, name: str) -> View:
        """The timelines of the event type with their storages. NotFound if it does not exist."""
        return View(lambda: self.entry(name), self._storages.get, self._visible)

    def reader(self, name: str, start: Start) -> Reader:
        """A reader from the given start; InvalidCursor if a position is not available."""
        view = self.view(name)
        refuse_actions(view.entry)
        entry_id = view.entry.id
        if isinstance(start, str):
            if (index_of := _STARTS.get(start.upper())) is None:
                detail = f"start must be BEGIN, END or offsets by partition, not {start!r}"
                raise InvalidCursor(detail, reason="INVALID_FORMAT")
            positions = {p: rules.at_index(s, index_of(s)) for p, s in enumerate(view.spans())}
        else:
            given = view.positions(
                [CursorText(*c) for c in start.items()] if isinstance(start, Mapping) else start
            )
            spans = view.spans(given.items())
            positions = {p: rules.available(spans[p], position) for p, position in given.items()}
        return Reader(lambda: self._same(name, entry_id), positions, self._changes, whole=isinstance(start, str))

    def _same(self, name: str, entry_id: str) -> View:
        view = self.view(name)
        if view.entry.id != entry_id:
            raise InvalidCursor(f"event type {name!r} was deleted and created again", reason="UNAVAILABLE")
        return view

    def storages(self) -> dict[str, StorageInfo]:
        """All storages by id, for processes that read without the catalog."""
        return {storage.id: storage for storage in self._catalog.storages.list()}

    def watch(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in any thread, when there may be more records, in whichever timeline they are.

        Returns a function that ends this.
        """
        followed = _Followed(lambda: self.view(name), callback)
        unwatch_changes = self._changes.watch("", followed.look)

        def stop() -> None:
            unwatch_changes()
            followed.stop()

        return stop

    def close(self) -> None:
        self._changes.close()
