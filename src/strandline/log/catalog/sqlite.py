"""The embedded catalog: one SQLite file that all processes of a machine share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.engine import sql, sqlite
from strandline.errors import Conflict, NotFound, Unavailable
from strandline.log.catalog import rows
from strandline.log.catalog.port import Catalog, StorageBook, SwitchBook, SwitchEffect
from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline
from strandline.log.switching import State

_SQL = sql.load("strandline.log.catalog", "sqlite.sql")
_LAYOUT = 2


class SqliteSwitchBook(SwitchBook):
    def __init__(self, db: sqlite.Database, reader: sqlite.Database) -> None:
        self._db = db
        self._reader = reader

    def begin(self, entry: CatalogEntry, switch: Switch, sweep_after_ms: int) -> None:
        with self._db.transaction() as db:
            now = [rows.value(text, EventType) for (text,) in db.execute(_SQL["definition"], (entry.id,))]
            timelines = [rows.value(text, Timeline) for (text,) in db.execute(_SQL["timelines"], (entry.id,))]
            if now != [entry.event_type] or timelines != [*entry.timelines]:
                raise Conflict(f"event type {switch.event_type!r} was changed meanwhile; try again")
            row = (switch.token, entry.id, switch.storage_id, switch.state, rows.text(switch))
            if not db.execute(_SQL["begin_switch"], row):
                raise Conflict(f"another switch of {switch.event_type!r} is under way")
            if switch.kind == "switch":
                db.execute(_SQL["doom"], (switch.storage_id, switch.topic, sweep_after_ms))

    def get(self, token: str) -> Switch | None:
        found = self._reader.execute(_SQL["switch"], (token,))
        return rows.switch(found[0][0], found[0][1]) if found else None

    def undecided(self) -> list[Switch]:
        return [rows.switch(*row) for row in self._reader.execute(_SQL["undecided"])]

    def close(self, token: str) -> bool:
        return self._move(token, State.CLOSING, State.PREPARING, State.PREPARING)

    def abort(self, token: str) -> bool:
        if self._move(token, State.ABORTED, State.PREPARING, State.CLOSING):
            return True
        switch = self.get(token)
        return switch is None or switch.state is State.ABORTED

    def _move(self, token: str, to: State, *before: State) -> bool:
        with self._db.transaction() as db:
            return bool(db.execute(_SQL["move_switch"], (to, token, *before)))

    def commit(self, token: str, effect: SwitchEffect) -> bool:
        with self._db.transaction() as db:
            found = db.execute(_SQL["switch"], (token,))
            if not db.execute(_SQL["move_switch"], (State.DONE, token, State.CLOSING, State.CLOSING)):
                return False
            _apply(db, found[0][2], effect)
        return True


def _apply(db: sqlite.Database, entry_id: str, effect: SwitchEffect) -> None:
    if effect.redefined is not None:
        before, after = effect.redefined
        _replace_definition(db, entry_id, before, after)
    if effect.closed is not None:
        db.execute(_SQL["update_timeline"], (rows.text(effect.closed), effect.closed.id))
    if effect.opened is not None:
        opened = effect.opened
        place = (opened.order, opened.storage_id, opened.topic)
        db.execute(_SQL["insert_timeline"], (opened.id, entry_id, *place, rows.text(opened)))
        db.execute(_SQL["forget"], (opened.storage_id, opened.topic))


def _replace_definition(db: sqlite.Database, entry_id: str, before: EventType, after: EventType) -> None:
    # Values, not texts: an older release may have written the same definition with fewer fields.
    now = [rows.value(text, EventType) for (text,) in db.execute(_SQL["definition"], (entry_id,))]
    if now != [before]:
        raise Conflict(f"event type {before.name!r} was changed meanwhile; read it again")
    db.execute(_SQL["update_event_type"], (rows.text(after), entry_id))


class SqliteStorageBook(StorageBook):
    def __init__(self, db: sqlite.Database, reader: sqlite.Database) -> None:
        self._db = db
        self._reader = reader

    def list(self) -> list[StorageInfo]:
        return [rows.storage(*row) for row in self._reader.execute(_SQL["storages"])]

    def add(self, storage: StorageInfo) -> None:
        with self._db.transaction() as db:
            if not db.execute(_SQL["add_storage"], (storage.id, rows.text(storage))):
                raise Conflict(f"storage {storage.id!r} exists already")

    def set_default(self, storage_id: str) -> None:
        with self._db.transaction() as db:
            _existing(db, storage_id)
            db.execute(_SQL["set_default"], (storage_id,))

    def remove(self, storage_id: str) -> None:
        with self._db.transaction() as db:
            if _existing(db, storage_id):
                raise Conflict(f"storage {storage_id!r} is the default; make another one the default first")
            if db.execute(_SQL["storage_in_use"], (storage_id,))[0][0]:
                raise Conflict(f"storage {storage_id!r} is in use")
            db.execute(_SQL["remove_storage"], (storage_id,))


def _existing(db: sqlite.Database, storage_id: str) -> bool:
    """Whether it is the default; NotFound if there is no such storage."""
    found = db.execute(_SQL["is_storage"], (storage_id,))
    if not found:
        raise NotFound(f"storage {storage_id!r} does not exist")
    return bool(found[0][0])


class _File(sqlite.Database):
    """Counts its own transactions: the file has other tenants, whose many commits are no news of the catalog."""

    @contextmanager
    def transaction(self) -> Iterator[sqlite.Database]:
        with super().transaction() as db:
            yield db
            db.execute(_SQL["changed"])


class SqliteCatalog(Catalog):
    def __init__(self, path: Path, first_storage: StorageInfo) -> None:
        sqlite.check_library()
        sqlite.make_directory(path.parent)
        self._db = _File(path, create=True)
        with self._db.transaction() as db:
            (layout,) = db.execute("PRAGMA user_version")[0]
            if layout > _LAYOUT:
                raise Unavailable(f"{path} was written by a newer Strandline (layout {layout}); upgrade this one")
            if layout == 1:
                db.execute(_SQL["set_layout_1_aside"])
            db.execute(_SQL["create"])
            if layout == 1:
                db.execute(_SQL["take_layout_1_over"])
            db.execute(_SQL["add_first_storage"], (first_storage.id, rows.text(first_storage)))
            db.execute(f"PRAGMA user_version = {_LAYOUT}")
        # Lookups never wait behind a commit, and see our own commits like those of anybody else.
        self._reader = sqlite.Database(path)
        self._seen: tuple[int, int] | None = None
        self.switches = SqliteSwitchBook(self._db, self._reader)
        self.storages = SqliteStorageBook(self._db, self._reader)

    def version(self) -> int:
        file_version = self._reader.data_version()
        seen = self._seen
        if seen is None or seen[0] != file_version:
            ((changes,),) = self._reader.execute(_SQL["changes"])
            seen = self._seen = file_version, changes
        return seen[1]

    def get(self, name: str) -> CatalogEntry | None:
        return next(iter(rows.entries(self._reader.execute(_SQL["entries"], (name,)))), None)

    def entries(self) -> list[CatalogEntry]:
        return rows.entries(self._reader.execute(_SQL["entries"], (None,)))

    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        with self._db.transaction() as db:
            if not db.execute(_SQL["insert_event_type"], (entry_id, event_type.name, rows.text(event_type))):
                raise Conflict(f"event type {event_type.name!r} exists already")
            if not db.execute(_SQL["forget"], (timeline.storage_id, timeline.topic)):
                raise Conflict("creating the event type took too long; try again")
            db.execute(_SQL["insert_schema"], (entry_id, rows.text(event_type.schema)))
            place = (timeline.order, timeline.storage_id, timeline.topic)
            db.execute(_SQL["insert_timeline"], (timeline.id, entry_id, *place, rows.text(timeline)))

    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        with self._db.transaction() as db:
            _replace_definition(db, entry.id, entry.event_type, changed)
            if changed.schema != entry.event_type.schema:
                db.execute(_SQL["insert_schema"], (entry.id, rows.text(changed.schema)))

    def delete(self, entry: CatalogEntry, now_ms: int) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["doom_all_of"], (now_ms, entry.id))
            if not db.execute(_SQL["delete_event_type"], (entry.id,)):
                raise NotFound(f"event type {entry.event_type.name!r} does not exist")

    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        return [rows.value(text, Schema) for (text,) in self._reader.execute(_SQL["schemas"], (entry.id,))]

    def remove_timeline(self, removed: Timeline, delete_after_ms: int) -> bool:
        with self._db.transaction() as db:
            found = db.execute(_SQL["remove_timeline"], (rows.text(removed), removed.id))
            if found:
                db.execute(_SQL["doom"], (removed.storage_id, removed.topic, delete_after_ms))
        return bool(found)

    def doom_topic(self, storage_id: str, topic: str, after_ms: int) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["doom"], (storage_id, topic, after_ms))

    def doomed_topics(self, now_ms: int) -> list[tuple[str, str]]:
        return [(storage, topic) for storage, topic in self._reader.execute(_SQL["doomed"], (now_ms,))]

    def forget_topic(self, storage_id: str, topic: str) -> None:
        with self._db.transaction() as db:
            db.execute(_SQL["forget"], (storage_id, topic))

    def close(self) -> None:
        self._reader.close()
        self._db.close()
