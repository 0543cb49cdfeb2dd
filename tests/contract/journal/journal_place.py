"""A store of journals that several processes can open, and test data for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from cassandra_place import TopicsOfOneTest

from strandline.engine.cassandra import CassandraSession
from strandline.engine.database import Database, Rows
from strandline.engine.postgres import PostgresDatabase
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.journal import payloads
from strandline.journal.model import (
    MAX_SEQ_NR,
    Append,
    Delete,
    Head,
    LoggedAction,
    NewEvent,
    Payload,
    Purge,
    StoredEvent,
)
from strandline.journal.storage import JournalStore
from strandline.journal.storage.sql import SqlJournalStore
from strandline.log.cursors import Position

TOPIC = "0192-topic"


def open_database(address: str) -> Database:
    if address.startswith("sqlite:"):
        return SqliteDatabase(Path(address.removeprefix("sqlite:")))
    return PostgresDatabase(address, fixed_plans=True)


class JournalPlace:
    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: list[tuple[Database, JournalStore]] = []
        self._cassandra: list[TopicsOfOneTest] = []

    def open(self) -> JournalStore:
        """Open the store with separate connections, as another process does."""
        if self.address.startswith("cassandra:"):
            url, _, scope = self.address.partition("#")
            self._cassandra.append(TopicsOfOneTest(CassandraSession(url), scope))
            return self._cassandra[-1]
        with ExitStack() as failing:
            database = open_database(self.address)
            failing.callback(database.close)
            self._opened.append((database, SqlJournalStore(database)))
            failing.pop_all()
        return self._opened[-1][1]

    def execute(self, statement: str, **values: Any) -> Rows:
        """Execute a statement without the store."""
        database = self._opened[0][0]
        return database.transaction(lambda session: session.execute(statement, values))

    def stored_seq_nrs(self) -> list[int]:
        """The events that are stored at all, also those that no reader sees."""
        if self._cassandra:
            return self._cassandra[0].stored_seq_nrs()
        return [seq_nr for (seq_nr,) in self.execute("SELECT seq_nr FROM journal ORDER BY seq_nr")]

    def close(self) -> None:
        for cassandra in self._cassandra:
            cassandra.close()
        for database, store in self._opened:
            store.close()
            database.close()


def at(offset: int) -> Position:
    return Position(1, offset)


def append(
    offset: int, first: int, last: int | None = None, *, entity: str = "a", data: bytes | None = None, **more: Any
) -> LoggedAction:
    """An append of JSON events at that offset; `more` are members of the action."""
    numbers = range(first, (last or first) + 1)
    events = [NewEvent(Payload("json", b'{"n":%d}' % number), (), number) for number in numbers]
    encoding, value = payloads.encode(events, data)
    action = Append(numbers[0], numbers[-1], encoding, **more)
    return LoggedAction(entity, at(offset), 1000 + offset, action, value)


def delete(offset: int, to: int, entity: str = "a") -> LoggedAction:
    return LoggedAction(entity, at(offset), 1000 + offset, Delete(to))


def purge(offset: int, entity: str = "a") -> LoggedAction:
    return LoggedAction(entity, at(offset), 1000 + offset, Purge())


def replicate(store: JournalStore, *actions: LoggedAction, partition: int = 0, **more: Any) -> int:
    """Apply the actions as the next batch of the partition."""
    after = store.pointers(TOPIC).get(partition)
    return store.apply(TOPIC, partition, after, actions[-1].cursor, actions, **more)


def renumbered(records: Iterable[Sequence[LoggedAction]]) -> list[list[LoggedAction]]:
    """Actions of several journals as they are in one partition: every record has its own offset."""
    numbered = enumerate((logged for actions in records for logged in actions), 1)
    renamed = ((msgspec.structs.replace(logged, cursor=at(offset))) for offset, logged in numbered)
    return [[next(renamed) for _ in actions] for actions in records]


def head(store: JournalStore, entity: str = "a", partition: int = 0) -> Head | None:
    with store.open(TOPIC, partition, entity, None) as journal:
        return journal.head


def stored(store: JournalStore, entity: str = "a", first: int = 1, last: int = MAX_SEQ_NR) -> list[StoredEvent]:
    with store.open(TOPIC, 0, entity, first) as journal:
        return [*journal.rows(first, last)]


def seq_nrs(store: JournalStore, entity: str = "a", first: int = 1, last: int = MAX_SEQ_NR) -> list[int]:
    return [row.event.seq_nr for row in stored(store, entity, first, last)]
