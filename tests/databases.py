"""Opens databases for contract tests by address: a PostgreSQL URL, or `sqlite:` and the path of a file."""

from __future__ import annotations

from pathlib import Path

from strandline.engine.database import Database
from strandline.engine.postgres import PostgresDatabase
from strandline.engine.sqlite_database import SqliteDatabase


def open_database(address: str) -> Database:
    if address.startswith("sqlite:"):
        return SqliteDatabase(Path(address.removeprefix("sqlite:")))
    return PostgresDatabase(address)
