"""The catalog in a SQL database: a file that the processes of one machine share, or a server for several."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec

from strandline.engine.database import Database, SharedQuery, Tables, Transaction, is_plain
from strandline.errors import Conflict, Fenced, Invalid, NotFound
from strandline.log.catalog import rows
from strandline.log.catalog.port import Catalog, FenceBook, StorageBook, SwitchBook, SwitchEffect
from strandline.log.model import CatalogEntry, EventType, Schema, StorageInfo, Switch, Timeline
from strandline.log.storage import Fence
from strandline.log.storage.registry import SHARED_TYPES
from strandline.log.switching import State

_T = TypeVar("_T")


class CatalogTables(Tables):
    """The catalog's tables. Writes are serialized, and each changes the catalog's version."""

    def __init__(self, database: Database, now: Callable[[], int] | None) -> None:
        super().__init__(database, "catalog", "strandline.log.catalog", "catalog.sql")
        self._now = now

    @property
    def now_ms(self) -> int | None:
        """`:now_ms` for a statement; if it is NULL, the statement reads the server's clock."""
        return self._now() if self._now else None

    def mark(self, tx: Transaction, storage_id: str, topic: str, delay_ms: int = 0) -> None:
        tx.run("mark_topic", storage_id=storage_id, topic=topic, delay_ms=delay_ms, now_ms=self.now_ms)

    def mark_topic_of(self, tx: Transaction, switch: Switch) -> None:
        """Mark the new topic of a switch that does not take place."""
        if switch.kind == "switch":
            self.mark(tx, switch.storage_id, switch.topic)

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

    def begin(self, entry: CatalogEntry, switch: Switch) -> None:
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
                raise Conflict(
                    f"another switch of {switch.event_type!r} is under way; wait until it ends, or abort it"
                )

        self._tables.write(work)

    def get(self, token: str) -> Switch | None:
        found = self._tables.fetch("switch", token=token)
        return rows.switch(*found[0]) if found else None

    def undecided(self) -> list[Switch]:
        return [rows.switch(*row) for row in self._tables.fetch("undecided")]

    def close(self, token: str) -> bool:
        return self._tables.write(lambda tx: bool(_moved(tx, token, State.CLOSING, State.PREPARING)))

    def abort(self, token: str) -> bool:
        def work(tx: Transaction) -> bool:
            moved = _moved(tx, token, State.ABORTED, State.PREPARING, State.CLOSING)
            for _, switch in moved:
                self._tables.mark_topic_of(tx, switch)
            return bool(moved)

        if self._tables.write(work):
            return True
        switch = self.get(token)
        return switch is None or switch.state is State.ABORTED

    def commit(self, token: str, effect: SwitchEffect) -> bool:
        def work(tx: Transaction) -> bool:
            moved = _moved(tx, token, State.DONE, State.CLOSING)
            for entry_id, _ in moved:
                _apply(tx, entry_id, effect)
            return bool(moved)

        return self._tables.write(work)


def _moved(tx: Transaction, token: str, to: State, *before: State) -> list[tuple[str, Switch]]:
    """The id of the event type and its switch if it has changed its state, else empty."""
    found = tx.run("move_switch", state=to, token=token, before=[*before])
    return [(entry_id, rows.switch(definition, state)) for entry_id, definition, state in found]


def _apply(tx: Transaction, entry_id: str, effect: SwitchEffect) -> None:
    if effect.redefined is not None:
        _replace_definition(tx, entry_id, *effect.redefined)
    if effect.closed is not None:
        tx.run("update_timeline", definition=rows.text(effect.closed), id=effect.closed.id)
    if effect.opened is not None:
        _add_timeline(tx, entry_id, effect.opened)


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


def _refuse_used(tx: Transaction, timeline: Timeline) -> None:
    if tx.run("topic_in_use", storage_id=timeline.storage_id, topic=timeline.topic)[0][0]:
        raise Conflict(f"topic {timeline.topic!r} belongs to another event type, or is about to be deleted")


def _definition(tx: Transaction, entry_id: str) -> EventType | None:
    found = tx.run("definition", entry_id=entry_id)
    return rows.value(found[0][0], EventType) if found else None


def _replace_definition(tx: Transaction, entry_id: str, before: EventType, after: EventType) -> None:
    # Compare values, not texts: an older release may have written the same definition with fewer fields.
    if _definition(tx, entry_id) != before:
        raise Conflict(f"event type {before.name!r} has changed since it was read; read it again")
    tx.run("update_event_type", definition=rows.text(after), entry_id=entry_id)


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
                raise Conflict(f"storage {storage.id!r} exists already; choose another id")

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
                raise Conflict(
                    f"storage {storage_id!r} is in use by a timeline, a switch or a marked topic; "
                    "switch its event types to another one, and wait until their old topics are removed"
                )
            tx.run("remove_storage", id=storage_id)

        self._tables.write(work)


def _existing(tx: Transaction, storage_id: str) -> bool:
    """Whether the storage is the default; NotFound if it does not exist."""
    found = tx.run("is_storage", id=storage_id) if is_plain(storage_id) else []
    if not found:
        raise NotFound(f"storage {storage_id!r} does not exist; list the storages to find it")
    return bool(found[0][0])


class SqlFenceBook(FenceBook):
    def __init__(self, tables: CatalogTables) -> None:
        self._tables = tables

    def raise_fence(self, entry_id: str, name: str, held: int | None = None) -> Fence:
        def work(tx: Transaction) -> Fence:
            if _definition(tx, entry_id) is None:
                raise NotFound("the event type was deleted")
            raised = tx.run("raise_fence", entry_id=entry_id, name=name, held=held or 0)
            if not raised:
                raise Fenced(f"the fence {name} has a newer holder than {held}")
            return Fence(name, raised[0][0])

        return self._tables.write(work)

    def all(self, entry_id: str) -> list[Fence]:
        return [Fence(*row) for row in self._tables.fetch("fences", entry_id=entry_id)]


class SqlCatalog(Catalog):
    """`first_storage` is added if the catalog has no storage yet; a shared catalog starts without one.

    `now` is the clock of the machine. Without it, the catalog uses the clock of the database server.
    """

    def __init__(
        self,
        database: Database,
        first_storage: StorageInfo | None = None,
        now: Callable[[], int] | None = None,
    ) -> None:
        self._tables = CatalogTables(database, now)
        self._query_version = SharedQuery(lambda: int(self._tables.fetch("version")[0][0]))
        self._seen: tuple[int, int] | None = None
        self.switches = SqlSwitchBook(self._tables)
        self.storages = SqlStorageBook(self._tables)
        self.fences = SqlFenceBook(self._tables)
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
            if event_type.journal == "adopted":
                _refuse_used(tx, timeline)
            elif not tx.run("own_topic", storage_id=timeline.storage_id, topic=timeline.topic):
                raise Conflict("creating the event type took too long; try again")
            tx.run("insert_schema", entry_id=entry_id, definition=rows.text(event_type.schema))
            deleted = tx.run("last_order", name=event_type.name)
            order = deleted[0][0] + 1 if deleted else 1
            _add_timeline(tx, entry_id, msgspec.structs.replace(timeline, order=order))

        self._tables.write(work)

    def update(self, entry: CatalogEntry, changed: EventType) -> None:
        def work(tx: Transaction) -> None:
            _replace_definition(tx, entry.id, entry.event_type, changed)
            if changed.schema != entry.event_type.schema:
                tx.run("insert_schema", entry_id=entry.id, definition=rows.text(changed.schema))

        self._tables.write(work)

    def delete(self, entry: CatalogEntry) -> None:
        def work(tx: Transaction) -> None:
            if entry.event_type.journal != "adopted":
                tx.run("mark_topics_of", entry_id=entry.id, now_ms=self._tables.now_ms)
            for row in tx.run("undecided_of", entry_id=entry.id):
                self._tables.mark_topic_of(tx, rows.switch(*row))
            tx.run("keep_last_order", entry_id=entry.id)
            if not tx.run("delete_event_type", entry_id=entry.id):
                raise NotFound(f"event type {entry.event_type.name!r} does not exist")

        self._tables.write(work)

    def schemas(self, entry: CatalogEntry) -> list[Schema]:
        return [rows.value(text, Schema) for (text,) in self._tables.fetch("schemas", entry_id=entry.id)]

    def remove_timeline(self, removed: Timeline, delay_ms: int) -> bool:
        def work(tx: Transaction) -> bool:
            found = tx.run("remove_timeline", definition=rows.text(removed), id=removed.id)
            if found:
                self._tables.mark(tx, removed.storage_id, removed.topic, delay_ms)
            return bool(found)

        return self._tables.write(work)

    def mark_for_deletion(self, storage_id: str, topic: str, delay_ms: int = 0) -> None:
        self._tables.write(lambda tx: self._tables.mark(tx, storage_id, topic, delay_ms))

    def topics_to_delete(self) -> list[tuple[str, str]]:
        found = self._tables.fetch("marked_topics", now_ms=self._tables.now_ms)
        return [(storage_id, topic) for storage_id, topic in found]

    def claim_topic(self, storage_id: str, topic: str) -> bool:
        return bool(self._tables.write(lambda tx: tx.run("claim_topic", storage_id=storage_id, topic=topic)))

    def forget_topic(self, storage_id: str, topic: str) -> None:
        self._tables.write(lambda tx: tx.run("forget_topic", storage_id=storage_id, topic=topic))
