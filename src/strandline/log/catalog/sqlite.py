"""The embedded catalog: one SQLite file that all processes of a machine share."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from strandline.engine import sql, sqlite
from strandline.errors import Conflict, NotFound, Unavailable
from strandline.log.catalog.port import Catalog
from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Timeline

_SQL = sql.load("strandline.log.catalog", "sqlite.sql")
_LAYOUT = 1
_T = TypeVar("_T")


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _value(text: str, kind: type[_T]) -> _T:
    return msgspec.json.decode(text, type=kind)


class SqliteCatalog(Catalog):
    def __init__(self, path: Path, first_storage: StorageInfo) -> None:
        sqlite.check_library()
        sqlite.make_directory(path.parent)
        self._db = sqlite.Database(path, create=True)
        with self._db.transaction() as db:
            (layout,) = db.execute("PRAGMA user_version")[0]
            if layout > _LAYOUT:
                raise Unavailable(f"{path} was written by a newer Strandline (layout {layout}); upgrade this one")
            db.execute(_SQL["create"])
            db.execute(_SQL["add_first_storage"], (first_storage.id, _text(first_storage)))
            db.execute(f"PRAGMA user_version = {_LAYOUT}")
        # Lookups never wait behind a commit, and see our own commits like those of anybody else.
        self._reader = sqlite.Database(path)

    def version(self) -> int:
        return self._reader.data_version()

    def get(self, name: str) -> CatalogEntry | None:
        return next(iter(self._entries(name)), None)

    def entries(self) -> list[CatalogEntry]:
        return self._entries(None)

    def _entries(self, name: str | None) -> list[CatalogEntry]:
        found: dict[str, tuple[str, list[Timeline]]] = {}
        for entry_id, definition, timeline in self._reader.execute(_SQL["entries"], (name,)):
            found.setdefault(entry_id, (definition, []))[1].append(_value(timeline, Timeline))
        return [
            CatalogEntry(entry_id, _value(definition, EventType), tuple(timelines))
            for entry_id, (definition, timelines) in found.items()
        ]

    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        with self._db.transaction() as db:
            if not db.execute(_SQL["insert_event_type"], (entry_id, event_type.name, _text(event_type))):
                raise Conflict(f"event type {event_type.name!r} exists already")
            if not db.execute(_SQL["forget"], (timeline.storage_id, timeline.topic)):
                raise Conflict("creating the event type took too long; try again")
            db.execute(_SQL["insert_schema"], (entry_id, _text(event_type.schema)))
            place = (timeline.order, timeline.storage_id, timeline.topic)
            db.execute(_SQL["insert_timeline"], (timeline.id, entry_id, *place, _text(timeline)))

    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        with self._db.transaction() as db:
            # Values, not texts: an older release may have written the same definition with fewer fields.
            now = [_value(text, EventType) for (text,) in db.execute(_SQL["definition"], (entry.id,))]
            if now != [entry.event_type]:
                raise Conflict(f"event type {entry.event_type.name!r} was changed meanwhile; read it again")
            db.execute(_SQL["update_event_type"], (_text(changed), entry.id))
            if changed.schema != entry.event_type.schema:
                db.execute(_SQL["insert_schema"], (entry.id, _text(changed.schema)))

    def delete(self, entry: CatalogEntry, now_ms: int) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["doom_all_of"], (now_ms, entry.id))
            if not db.execute(_SQL["delete_event_type"], (entry.id,)):
                raise NotFound(f"event type {entry.event_type.name!r} does not exist")

    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        return [_value(text, Schema) for (text,) in self._reader.execute(_SQL["schemas"], (entry.id,))]

    def doom_topic(self, storage_id: str, topic: str, after_ms: int) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["doom"], (storage_id, topic, after_ms))

    def doomed_topics(self, now_ms: int) -> list[tuple[str, str]]:
        return [(storage, topic) for storage, topic in self._reader.execute(_SQL["doomed"], (now_ms,))]

    def forget_topic(self, storage_id: str, topic: str) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["forget"], (storage_id, topic))

    def storages(self) -> list[StorageInfo]:
        return [
            msgspec.structs.replace(_value(text, StorageInfo), default=bool(default))
            for text, default in self._reader.execute(_SQL["storages"])
        ]

    def close(self) -> None:
        self._reader.close()
        self._db.close()
