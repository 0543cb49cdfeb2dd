"""A SQLite file that the processes of one machine share, as a `Database`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from strandline import clock
from strandline.engine import sqlite
from strandline.engine.database import Database, Rows, Session, Values
from strandline.engine.private import make_directory
from strandline.engine.sql import Dialect
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import StrandlineError, Unavailable

_T = TypeVar("_T")
_NONE: Values = {}
# Idle connections that are kept for reads; additional ones are closed after the read.
_READERS = 4


class SqliteSession(Session):
    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Values = _NONE) -> Rows:
        return self._connection.execute(statement, _bound(values))

    def execute_many(self, statement: str, rows: Sequence[Values]) -> None:
        self._connection.execute_many(statement, [_bound(row) for row in rows])

    def load(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.execute_many(statement, rows)

    def execute_each(self, statement: str, common: Values, columns: Sequence[str], rows: Sequence[Any]) -> None:
        self._connection.execute_many(
            statement, [{**common, **dict(zip(columns, row, strict=True))} for row in rows]
        )


def _bound(values: Values) -> Mapping[str, Any]:
    """SQLite has no arrays: a list is passed as JSON text, and the statement reads it with `json_each`."""
    if list not in map(type, values.values()):
        return values
    return {
        key: msgspec.json.encode(value).decode() if isinstance(value, list) else value
        for key, value in values.items()
    }


class SqliteDatabase(Database):
    """One connection for writes, and others for reads, which never wait for a commit."""

    dialect: Dialect = "sqlite"
    shared = False

    def __init__(self, path: Path) -> None:
        sqlite.check_library()
        make_directory(path.parent)
        self.where = str(path)
        self.boot = clock.boot_id()
        self._path = path
        self._writer = SqliteConnection(path, create=True)
        # Writers queue on a lock file, because SQLite's own lock is not fair.
        self._turn = sqlite.FileLock(path.with_name(path.name + ".lock"))
        # A connection's `data_version` ignores its own commits, so this connection makes none.
        self._observer = SqliteConnection(path)
        self._readers: deque[SqliteConnection] = deque()
        self._closed = False

    def fetch(self, statement: str, values: Values) -> Rows:
        connection = self._reader()
        try:
            return connection.execute(statement, _bound(values))
        finally:
            self._give_back(connection)

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        connection = self._reader()
        try:
            connection.execute("BEGIN")
            yield SqliteSession(connection)
        finally:
            with suppress(StrandlineError):  # the failed statement has ended the transaction
                connection.execute("ROLLBACK")
            self._give_back(connection)

    def _reader(self) -> SqliteConnection:
        self._refuse_closed()
        try:
            return self._readers.pop()
        except IndexError:
            return SqliteConnection(self._path)

    def _give_back(self, connection: SqliteConnection) -> None:
        if self._closed or len(self._readers) >= _READERS:
            connection.close()
        else:
            self._readers.append(connection)

    def change(self, statement: str, values: Values) -> Rows:
        return self.transaction(lambda session: session.execute(statement, values))

    def transaction(self, work: Callable[[Session], _T]) -> _T:
        self._refuse_closed()
        with self._turn, self._writer.transaction() as connection:
            return work(SqliteSession(connection))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.where} is closed; open the platform again")

    def data_version(self) -> int:
        return self._observer.data_version()

    def signals(self, channel: str) -> None:  # noqa: ARG002 - the port's signature
        return None

    def lease_ms(self, session: Session | None = None) -> int:  # noqa: ARG002 - the port's signature
        return clock.boot_ms()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in (*self._readers, self._observer, self._writer):
            connection.close()
        self._turn.close()
