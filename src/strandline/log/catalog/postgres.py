"""The catalog that nodes on several machines share: a PostgreSQL database, in a schema of its own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TypeVar

from strandline.engine import sql
from strandline.engine.postgres import Postgres, Session, is_plain
from strandline.errors import Conflict, Invalid, NotFound, StrandlineError, Unavailable
from strandline.log.catalog import rows
from strandline.log.catalog.port import Catalog, StorageBook, SwitchBook, SwitchEffect
from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline
from strandline.log.storage.registry import SHARED_TYPES
from strandline.log.switching import State

_SQL = sql.load("strandline.log.catalog", "postgres.sql")
_LAYOUT = 2
_T = TypeVar("_T")


class _Place:
    """The database: reads in one statement each, writers one after the other."""

    def __init__(self, database: Postgres) -> None:
        self._database = database
        self.fetch = database.fetch
        self._lock = threading.Lock()
        self._looks = 0
        self._seen: int | StrandlineError = 0

    def write(self, work: Callable[[Session], _T]) -> _T:
        def change(db: Session) -> _T:
            # Not the next number: after a restore or a failover that lost something it would be used twice, for
            # different contents, and caches would not notice.
            db.execute(_SQL["change"], (secrets.randbits(63),))
            return work(db)

        return self._database.transaction(change)

    def version(self) -> int:
        """Of many threads that ask at once only some look: what was found since a thread came is true for it.

        That goes for errors as well: they take long, and threads that waited for each other's would take for ever.
        """
        before = self._looks
        with self._lock:
            if self._looks == before:
                self._looks += 1
                self._seen = self._look()
            seen = self._seen
        if isinstance(seen, StrandlineError):
            raise seen
        return seen

    def _look(self) -> int | StrandlineError:
        try:
            return int(self.fetch(_SQL["version"])[0][0])
        except StrandlineError as error:
            return error


class PostgresSwitchBook(SwitchBook):
    def __init__(self, place: _Place) -> None:
        self._place = place

    def begin(self, entry: CatalogEntry, switch: Switch, sweep_after_ms: int) -> None:
        def work(db: Session) -> None:
            now = [rows.value(text, EventType) for (text,) in db.execute(_SQL["definition"], (entry.id,))]
            timelines = [rows.value(text, Timeline) for (text,) in db.execute(_SQL["timelines"], (entry.id,))]
            if now != [entry.event_type] or timelines != [*entry.timelines]:
                raise Conflict(f"event type {switch.event_type!r} was changed meanwhile; try again")
            row = (switch.token, entry.id, switch.storage_id, switch.state, rows.text(switch))
            if not db.execute(_SQL["begin_switch"], row):
                raise Conflict(f"another switch of {switch.event_type!r} is under way")
            if switch.kind == "switch":
                db.execute(_SQL["doom"], (switch.storage_id, switch.topic, sweep_after_ms))

        self._place.write(work)

    def get(self, token: str) -> Switch | None:
        found = self._place.fetch(_SQL["switch"], (token,))
        return rows.switch(*found[0]) if found else None

    def undecided(self) -> list[Switch]:
        return [rows.switch(*row) for row in self._place.fetch(_SQL["undecided"])]

    def close(self, token: str) -> bool:
        return self._place.write(lambda db: bool(_moved(db, token, State.CLOSING, State.PREPARING)))

    def abort(self, token: str) -> bool:
        before = (State.PREPARING, State.CLOSING)
        if self._place.write(lambda db: bool(_moved(db, token, State.ABORTED, *before))):
            return True
        switch = self.get(token)
        return switch is None or switch.state is State.ABORTED

    def commit(self, token: str, effect: SwitchEffect) -> bool:
        def work(db: Session) -> bool:
            moved = _moved(db, token, State.DONE, State.CLOSING)
            for entry_id in moved:
                _apply(db, entry_id, effect)
            return bool(moved)

        return self._place.write(work)


def _moved(db: Session, token: str, to: State, *before: State) -> list[str]:
    """The id of the event type whose switch has changed its state, or nothing."""
    return [found for (found,) in db.execute(_SQL["move_switch"], (to, token, [*before]))]


def _apply(db: Session, entry_id: str, effect: SwitchEffect) -> None:
    if effect.redefined is not None:
        _replace_definition(db, entry_id, *effect.redefined)
    if effect.closed is not None:
        db.execute(_SQL["update_timeline"], (rows.text(effect.closed), effect.closed.id))
    if effect.opened is not None:
        _add_timeline(db, entry_id, effect.opened)
        db.execute(_SQL["forget"], (effect.opened.storage_id, effect.opened.topic))


def _add_timeline(db: Session, entry_id: str, timeline: Timeline) -> None:
    place = (timeline.order, timeline.storage_id, timeline.topic)
    db.execute(_SQL["insert_timeline"], (timeline.id, entry_id, *place, rows.text(timeline)))


def _replace_definition(db: Session, entry_id: str, before: EventType, after: EventType) -> None:
    # Values, not texts: an older release may have written the same definition with fewer fields.
    now = [rows.value(text, EventType) for (text,) in db.execute(_SQL["definition"], (entry_id,))]
    if now != [before]:
        raise Conflict(f"event type {before.name!r} was changed meanwhile; read it again")
    db.execute(_SQL["update_event_type"], (rows.text(after), entry_id))


class PostgresStorageBook(StorageBook):
    def __init__(self, place: _Place) -> None:
        self._place = place

    def list(self) -> list[StorageInfo]:
        return [rows.storage(*row) for row in self._place.fetch(_SQL["storages"])]

    def add(self, storage: StorageInfo) -> None:
        if storage.configuration.local:
            raise Invalid(
                f"a storage of type {storage.storage_type} is on one machine, but this catalog serves several; "
                f"use {SHARED_TYPES}"
            )

        def work(db: Session) -> None:
            if not db.execute(_SQL["add_storage"], (storage.id, rows.text(storage))):
                raise Conflict(f"storage {storage.id!r} exists already")

        self._place.write(work)

    def set_default(self, storage_id: str) -> None:
        def work(db: Session) -> None:
            _existing(db, storage_id)
            db.execute(_SQL["set_default"], (storage_id,))

        self._place.write(work)

    def remove(self, storage_id: str) -> None:
        def work(db: Session) -> None:
            if _existing(db, storage_id):
                raise Conflict(f"storage {storage_id!r} is the default; make another one the default first")
            if db.execute(_SQL["storage_in_use"], (storage_id,))[0][0]:
                raise Conflict(f"storage {storage_id!r} is in use")
            db.execute(_SQL["remove_storage"], (storage_id,))

        self._place.write(work)


def _existing(db: Session, storage_id: str) -> bool:
    """Whether it is the default; NotFound if there is no such storage."""
    found = db.execute(_SQL["is_storage"], (storage_id,)) if is_plain(storage_id) else []
    if not found:
        raise NotFound(f"storage {storage_id!r} does not exist")
    return bool(found[0][0])


class PostgresCatalog(Catalog):
    """It begins without a storage: which one the machines share is for its operator to say."""

    def __init__(self, url: str) -> None:
        self._database = Postgres(url)
        try:
            self._database.transaction(self._make)
        except BaseException:
            self._database.close()
            raise
        self._place = _Place(self._database)
        self.switches = PostgresSwitchBook(self._place)
        self.storages = PostgresStorageBook(self._place)

    def _make(self, db: Session) -> None:
        db.execute(_SQL["turn"])
        ((encoding,),) = db.execute(_SQL["encoding"])
        if encoding != "UTF8":
            raise Unavailable(f"the database is encoded in {encoding}; make one with ENCODING 'UTF8'")
        ((made,),) = db.execute(_SQL["is_made"])
        if not made:
            db.execute(_SQL["create"])
        ((layout,),) = db.execute(_SQL["layout"])
        if layout == 1:
            db.execute(_SQL["from_layout_1"])
        if layout > _LAYOUT:
            where = self._database.where
            raise Unavailable(
                f"the catalog at {where} was written by a newer Strandline (layout {layout}); upgrade this one"
            )

    def version(self) -> int:
        return self._place.version()

    def get(self, name: str) -> CatalogEntry | None:
        found = rows.entries(self._place.fetch(_SQL["entry"], (name,))) if is_plain(name) else []
        return found[0] if found else None

    def entries(self) -> list[CatalogEntry]:
        return rows.entries(self._place.fetch(_SQL["entries"]))

    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        def work(db: Session) -> None:
            if not db.execute(_SQL["insert_event_type"], (entry_id, event_type.name, rows.text(event_type))):
                raise Conflict(f"event type {event_type.name!r} exists already")
            if not db.execute(_SQL["forget"], (timeline.storage_id, timeline.topic)):
                raise Conflict("creating the event type took too long; try again")
            db.execute(_SQL["insert_schema"], (rows.text(event_type.schema), entry_id))
            _add_timeline(db, entry_id, timeline)

        self._place.write(work)

    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        def work(db: Session) -> None:
            _replace_definition(db, entry.id, entry.event_type, changed)
            if changed.schema != entry.event_type.schema:
                db.execute(_SQL["insert_schema"], (rows.text(changed.schema), entry.id))

        self._place.write(work)

    def delete(self, entry: CatalogEntry, now_ms: int) -> None:
        def work(db: Session) -> None:
            db.execute(_SQL["doom_all_of"], (now_ms, entry.id))
            if not db.execute(_SQL["delete_event_type"], (entry.id,)):
                raise NotFound(f"event type {entry.event_type.name!r} does not exist")

        self._place.write(work)

    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        return [rows.value(text, Schema) for (text,) in self._place.fetch(_SQL["schemas"], (entry.id,))]

    def remove_timeline(self, removed: Timeline, delete_after_ms: int) -> bool:
        def work(db: Session) -> bool:
            found = db.execute(_SQL["remove_timeline"], (rows.text(removed), removed.id))
            if found:
                db.execute(_SQL["doom"], (removed.storage_id, removed.topic, delete_after_ms))
            return bool(found)

        return self._place.write(work)

    def doom_topic(self, storage_id: str, topic: str, after_ms: int) -> None:
        self._place.write(lambda db: db.execute(_SQL["doom"], (storage_id, topic, after_ms)))

    def doomed_topics(self, now_ms: int) -> list[tuple[str, str]]:
        return [(storage, topic) for storage, topic in self._place.fetch(_SQL["doomed"], (now_ms,))]

    def forget_topic(self, storage_id: str, topic: str) -> None:
        self._place.write(lambda db: db.execute(_SQL["forget"], (storage_id, topic)))

    def close(self) -> None:
        self._database.close()
