"""The layout version of the tables in a database: a table of (room, version), and numbered migrations.

A room's `.sql` file has a block `create` for the newest layout, and a block `migration_<n>` for the step to each
layout after the first. If its tables can be older than the table of versions, `version_before` returns their
version, or 0 without tables. A SQLite file of one room, like a topic's file, has its version in `user_version`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from strandline import failpoints
from strandline.engine import sql
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Unavailable

if TYPE_CHECKING:
    from strandline.engine.database import Database, Session

_MIGRATION = re.compile(r"migration_(\d+)")


def migrate(database: Database, room: str, statements: Mapping[str, str]) -> None:
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

    def work(session: Session) -> None:
        session.execute(own["turn"])
        if not session.execute(own["is_made"])[0][0]:
            session.execute(own["make"])
        known = session.execute(own["version"], {"room": room})
        if not known and "version_before" in statements:
            known = session.execute(statements["version_before"])
        version = known[0][0] if known else 0
        _bring_up_to_date(session.execute, f"the {room} in {database.where}", version, statements)
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
        _bring_up_to_date(connection.execute, connection.path.name, _file_version(connection), statements)
        connection.execute(f"PRAGMA user_version = {newest}")


def _file_version(connection: SqliteConnection) -> int:
    """0 for a file without tables; files made before versions were kept have the first layout."""
    ((version, tables),) = connection.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"
    )
    return int(version or bool(tables))


def _bring_up_to_date(
    execute: Callable[[str], object], what: str, version: int, statements: Mapping[str, str]
) -> None:
    newest = _newest(statements)
    if version > newest:
        raise Unavailable(
            f"{what} was written by a newer Strandline (layout {version}, this release knows {newest}); "
            "upgrade Strandline to open it"
        )
    steps = [f"migration_{number}" for number in range(version + 1, newest + 1)] if version else ["create"]
    for step in steps:
        execute(statements[step])
        failpoints.hit("layouts.migrated")


def _newest(statements: Mapping[str, str]) -> int:
    numbers = sorted(int(match[1]) for name in statements if (match := _MIGRATION.fullmatch(name)))
    if numbers != [*range(2, len(numbers) + 2)]:
        raise ValueError(f"migrations must be numbered from 2 without gaps, not {numbers}")
    return len(numbers) + 1
