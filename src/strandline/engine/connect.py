"""The databases of one process: each is opened once, when it is first needed, and shared by all rooms."""

from __future__ import annotations

import threading
from pathlib import Path

from strandline.engine.database import Database
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.errors import Unavailable


class Databases:
    def __init__(self, data: Path) -> None:
        self.data = data
        self._lock = threading.Lock()
        self._open: dict[tuple[str, bool], Database] = {}
        self._closed = False

    def get(self, url: str, file: str, *, fixed_plans: bool = False) -> Database:
        """The PostgreSQL database at `url`; if `url` is empty, that SQLite file in the data directory.

        With `fixed_plans` a room has its own connections to a server, for statements with fixed plans.
        """
        key = (url or file, fixed_plans)
        with self._lock:
            if self._closed:
                raise Unavailable("the platform is closed; open it again")
            if key not in self._open:
                self._open[key] = _postgres(url, fixed_plans) if url else SqliteDatabase(self.data / file)
            return self._open[key]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for database in self._open.values():
                database.close()
            self._open.clear()


def _postgres(url: str, fixed_plans: bool) -> Database:
    from strandline.engine.postgres import PostgresDatabase  # noqa: PLC0415 - its driver is an extra

    return PostgresDatabase(url, fixed_plans=fixed_plans)
