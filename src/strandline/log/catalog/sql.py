"""The catalog in a SQL database: a file that the processes of one machine share, or a server for several."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from strandline.engine.database import Database, SharedQuery, Tables, Transaction, is_plain
from strandline.errors import Conflict, Invalid, NotFound
from strandline.log.catalog import rows
from strandline.log.catalog.port import Catalog, StorageBook, SwitchBook, SwitchEffect
from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline
from strandline.log.storage.registry import SHARED_TYPES
from strandline.log.switching import State

_T = TypeVar("_T")


class CatalogTables(Tables):
    """The catalog's tables. Writes are serialized, and each changes the catalog's version."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "catalog", "strandline.log.catalog", "catalog.sql")

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        def change(tx: Transaction) -> _T:
            # Not the next number: after a restore or a failover that lost commits, a number would be used again
            # for different contents, and caches would not notice.
            tx.run("change", version=secrets.randbits(63))
            return work(tx)

        return self.transaction(change)


class SqlSwitchBook(SwitchBook):
    def __init__(self, tables: CatalogTables) -> None:
        self._tables = tables

    def begin(self, entry: CatalogEntry, switch: Switch, sweep_after_ms: int) -> None:
        def work(tx: Transaction) -> None:
            timelines = [rows.value(text, Timeline) for (text,) in tx.run("timelines", entry_id=entry.id)]
            if _definition(tx, entry.id) != entry.event_type or timelines != [*entry.timelines]:
                raise Conflict(f"event type {switch.event_type!r} has changed since it was read; try again")
            begun = tx.run(
                "begin_switch",
                token=switch.token,
                entry_id=entry.id,
                storage_id=switch.storage_id,
                state=switch.state,
                definition=rows.text(switch),
            )
            if not begun:
                raise Conflict(f"another switch of {switch.event_type!r} is under way")
            if switch.kind == "switch":
                _mark(tx, switch.storage_id, switch.topic, sweep_after_ms)

        self._tables.write(work)

    def get(self, token: str) -> Switch | None:
        found = self._tables.fetch("switch", token=token)
        return rows.switch(*found[0]) if found else None

    def undecided(self) -> list[Switch]:
        return [rows.switch(*row) for row in self._tables.fetch("undecided")]

    def close(self, token: str) -> bool:
        return self._tables.write(lambda tx: bool(_moved(tx, token, State.CLOSING, State.PREPARING)))

    def abort(self, token: str) -> bool:
        before = (State.PREPARING, State.CLOSING)
        if self._tables.write(lambda tx: bool(_moved(tx, token, State.ABORTED, *before))):
            return True
        switch = self.get(token)
        return switch is None or switch.state is State.ABORTED

    def commit(self, token: str, effect: SwitchEffect) -> bool:
        def work(tx: Transaction) -> bool:
            moved = _moved(tx, token, State.DONE, State.CLOSING)
            for entry_id in moved:
                _apply(tx, entry_id, effect)
            return bool(moved)

        return self._tables.write(work)


def _moved(tx: Transaction, token: str, to: State, *before: State) -> list[str]:
    """The id of the event type if its switch has changed its state, else empty."""
    return [found for (found,) in tx.run("move_switch", state=to, token=token, before=[*before])]


def _apply(tx: Transaction, entry_id: str, effect: SwitchEffect) -> None:
    if effect.redefined is not None:
        _replace_definition(tx, entry_id, *effect.redefined)
    if effect.closed is not None:
        tx.run("update_timeline", definition=rows.text(effect.closed), id=effect.closed.id)
    if effect.opened is not None:
        _add_timeline(tx, entry_id, effect.opened)
        tx.run("unmark_topic", storage_id=effect.opened.storage_id, topic=effect.opened.topic)


def _add_timeline(tx: Transaction, entry_id: str, timeline: Timeline) -> None:
    tx.run(
        "insert_timeline",
        id=timeline.id,
        entry_id=entry_id,
        position=timeline.order,
        storage_id=timeline.storage_id,
        topic=timeline.topic,
        definition=rows.text(timeline),
    )


def _definition(tx: Transaction, entry_id: str) -> EventType | None:
    found = tx.run("definition", entry_id=entry_id)
    return rows.value(found[0][0], EventType) if found else None


def _replace_definition(tx: Transaction, entry_id: str, before: EventType, after: EventType) -> None:
    # Compare values, not texts: an older release may have written the same definition with fewer fields.
    if _definition(tx, entry_id) != before:
        raise Conflict(f"event type {before.name!r} has changed since it was read; read it again")
    tx.run("update_event_type", definition=rows.text(after), entry_id=entry_id)


def _mark(tx: Transaction, storage_id: str, topic: str, after_ms: int) -> None:
    tx.run("mark_topic", storage_id=storage_id, topic=topic, after_ms=after_ms)


class SqlStorageBook(StorageBook):
    def __init__(self, tables: CatalogTables) -> None:
        self._tables = tables

    def list(self) -> list[StorageInfo]:
        return [rows.storage(*row) for row in self._tables.fetch("storages")]

    def add(self, storage: StorageInfo) -> None:
        if storage.configuration.local and self._tables.database.shared:
            raise Invalid(
                f"a storage of type {storage.storage_type} is on one machine, but this catalog serves several; "
                f"use {SHARED_TYPES}"
            )

        def work(tx: Transaction) -> None:
            if not tx.run("add_storage", id=storage.id, definition=rows.text(storage)):
                raise Conflict(f"storage {storage.id!r} exists already")

        self._tables.write(work)

    def set_default(self, storage_id: str) -> None:
        def work(tx: Transaction) -> None:
            _existing(tx, storage_id)
            tx.run("set_default", id=storage_id)

        self._tables.write(work)

    def remove(self, storage_id: str) -> None:
        def work(tx: Transaction) -> None:
            if _existing(tx, storage_id):
                raise Conflict(f"storage {storage_id!r} is the default; make another one the default first")
            if tx.run("storage_in_use", id=storage_id)[0][0]:
                raise Conflict(f"storage {storage_id!r} is in use by a timeline, a switch or a marked topic")
            tx.run("remove_storage", id=storage_id)

        self._tables.write(work)


def _existing(tx: Transaction, storage_id: str) -> bool:
    """Whether the storage is the default; NotFound if it does not exist."""
    found = tx.run("is_storage", id=storage_id) if is_plain(storage_id) else []
    if not found:
        raise NotFound(f"storage {storage_id!r} does not exist")
    return bool(found[0][0])


class SqlCatalog(Catalog):
    """`first_storage` is added if the catalog has no storage yet; a shared catalog starts without one."""

    def __init__(self, database: Database, first_storage: StorageInfo | None = None) -> None:
        self._tables = CatalogTables(database)
        self._query_version = SharedQuery(lambda: int(self._tables.fetch("version")[0][0]))
        self._seen: tuple[int, int] | None = None
        self.switches = SqlSwitchBook(self._tables)
        self.storages = SqlStorageBook(self._tables)
        if first_storage is not None and not self.storages.list():
            self._add_first(first_storage)

    def _add_first(self, storage: StorageInfo) -> None:
        def work(tx: Transaction) -> None:
            if not tx.run("storages"):  # another process may have added one
                tx.run("add_storage", id=storage.id, definition=rows.text(storage))

        self._tables.write(work)

    def version(self) -> int:
        commits = self._tables.database.data_version()
        seen = self._seen
        if seen is not None and seen[0] == commits:
            return seen[1]
        version = self._query_version()
        if commits is not None:
            self._seen = commits, version
        return version

    def get(self, name: str) -> CatalogEntry | None:
        found = rows.entries(self._tables.fetch("entry", name=name)) if is_plain(name) else []
        return found[0] if found else None

    def entries(self) -> list[CatalogEntry]:
        return rows.entries(self._tables.fetch("entries"))

    def create(self, entry_id: str, event_type: EventType, timeline: Timeline) -> None:
        definition = rows.text(event_type)

        def work(tx: Transaction) -> None:
            if not tx.run("insert_event_type", entry_id=entry_id, name=event_type.name, definition=definition):
                raise Conflict(f"event type {event_type.name!r} exists already")
            if not tx.run("unmark_topic", storage_id=timeline.storage_id, topic=timeline.topic):
                raise Conflict("creating the event type took too long; try again")
            tx.run("insert_schema", entry_id=entry_id, definition=rows.text(event_type.schema))
            _add_timeline(tx, entry_id, timeline)

        self._tables.write(work)

    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        def work(tx: Transaction) -> None:
            _replace_definition(tx, entry.id, entry.event_type, changed)
            if changed.schema != entry.event_type.schema:
                tx.run("insert_schema", entry_id=entry.id, definition=rows.text(changed.schema))

        self._tables.write(work)

    def delete(self, entry: CatalogEntry, now_ms: int) -> None:
        def work(tx: Transaction) -> None:
            tx.run("mark_topics_of", entry_id=entry.id, after_ms=now_ms)
            if not tx.run("delete_event_type", entry_id=entry.id):
                raise NotFound(f"event type {entry.event_type.name!r} does not exist")

        self._tables.write(work)

    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        return [rows.value(text, Schema) for (text,) in self._tables.fetch("schemas", entry_id=entry.id)]

    def remove_timeline(self, removed: Timeline, delete_after_ms: int) -> bool:
        def work(tx: Transaction) -> bool:
            found = tx.run("remove_timeline", definition=rows.text(removed), id=removed.id)
            if found:
                _mark(tx, removed.storage_id, removed.topic, delete_after_ms)
            return bool(found)

        return self._tables.write(work)

    def mark_for_deletion(self, storage_id: str, topic: str, after_ms: int) -> None:
        self._tables.write(lambda tx: _mark(tx, storage_id, topic, after_ms))

    def topics_to_delete(self, now_ms: int) -> list[tuple[str, str]]:
        return [(storage, topic) for storage, topic in self._tables.fetch("marked_topics", now_ms=now_ms)]

    def forget_topic(self, storage_id: str, topic: str) -> None:
        self._tables.write(lambda tx: tx.run("unmark_topic", storage_id=storage_id, topic=topic))
