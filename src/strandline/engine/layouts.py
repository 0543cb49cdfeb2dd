"""The layout version of the tables in a database: a table of (room, version), and numbered migrations.

A room's `.sql` file has a block `create`, which creates the tables of the newest layout, and for each layout after
the first a block `migration_<n>`, which migrates from the layout before. A room whose tables are older than the
table of versions has a block `version_before`, which returns their version, or 0 without tables. A SQLite file of
one room, like a topic's file, stores its version in `user_version` instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from strandline import failpoints
from strandline.engine import sql
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Unavailable

_T = TypeVar("_T")
_MIGRATION = re.compile(r"migration_(\d+)")
_Rows = list[tuple[Any, ...]]


class _Session(Protocol):
    def execute(self, statement: str, values: Mapping[str, Any] = ...) -> _Rows: ...


class _Database(Protocol):
    dialect: sql.Dialect
    where: str

    def fetch(self, statement: str, values: Mapping[str, Any]) -> _Rows: ...

    def transaction(self, work: Callable[[Any], _T]) -> _T: ...


def migrate(database: _Database, room: str, statements: Mapping[str, str]) -> None:
    """Create a room's tables, or migrate them to the newest layout in `statements`.

    All steps are one transaction: a process that is killed changes nothing. If several processes start at the same
    time, one migrates and the others wait. Tables that are up to date are only read, so a database role without
    the right to change tables can use them. Unavailable, with nothing changed, if a newer release created them.
    """
    own = sql.load("strandline.engine", "layouts.sql", database.dialect)
    newest = _newest(statements)
    made = database.fetch(own["is_made"], {})[0][0]
    known = database.fetch(own["version"], {"room": room}) if made else []
    if known and known[0][0] == newest:
        return

    def work(session: _Session) -> None:
        session.execute(own["turn"])
        version = _version(session, own, room, statements)
        if version > newest:
            raise _newer(f"the {room} in {database.where}", version, newest)
        if not session.execute(own["is_made"])[0][0]:
            session.execute(own["make"])
        _bring_up_to_date(session, version, newest, statements)
        session.execute(own["set_version"], {"room": room, "version": newest})

    database.transaction(work)


def create_file(connection: SqliteConnection, statements: Mapping[str, str]) -> None:
    """Make the tables of a file that stores its version in `user_version`, within the caller's transaction."""
    if not _file_version(connection):
        connection.execute(statements["create"])
        connection.execute(f"PRAGMA user_version = {_newest(statements)}")


def migrate_file(
    connection: SqliteConnection, turn: AbstractContextManager[Any], statements: Mapping[str, str]
) -> None:
    """Like `migrate`, for such a file; `turn` is the lock of its writers. A file without tables stays empty."""
    newest = _newest(statements)
    if _file_version(connection) in {0, newest}:
        return
    with turn, connection.transaction():
        version = _file_version(connection)
        if version > newest:
            raise _newer(connection.path.name, version, newest)
        _bring_up_to_date(connection, version, newest, statements)
        connection.execute(f"PRAGMA user_version = {newest}")


def _file_version(connection: SqliteConnection) -> int:
    """0 for a file without tables; files made before versions were kept have the first layout."""
    ((version, tables),) = connection.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"
    )
    return int(version or bool(tables))


def _bring_up_to_date(session: _Session, version: int, newest: int, statements: Mapping[str, str]) -> None:
    steps = [f"migration_{number}" for number in range(version + 1, newest + 1)] if version else ["create"]
    for step in steps:
        session.execute(statements[step])
        failpoints.hit("layouts.migrated")


def _newer(what: str, version: int, newest: int) -> Unavailable:
    return Unavailable(
        f"{what} was written by a newer Strandline (layout {version}, this release knows {newest}); "
        "upgrade Strandline to open it"
    )


def _newest(statements: Mapping[str, str]) -> int:
    numbers = sorted(int(match[1]) for name in statements if (match := _MIGRATION.fullmatch(name)))
    if numbers != [*range(2, len(numbers) + 2)]:
        raise ValueError(f"migrations must be numbered from 2 without gaps, not {numbers}")
    return len(numbers) + 1


def _version(session: _Session, own: Mapping[str, str], room: str, statements: Mapping[str, str]) -> int:
    if session.execute(own["is_made"])[0][0]:
        known = session.execute(own["version"], {"room": room})
        if known:
            return int(known[0][0])
    if "version_before" not in statements:
        return 0
    return int(session.execute(statements["version_before"])[0][0])
