"""The databases of rooms under test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.machine import cpu_seconds
from bench.services import CassandraServer, PostgresServer, Service

ENGINES = ("SQLite", "PostgreSQL")


@dataclass(frozen=True)
class Database:
    """Where a room stores its data: a file in the data directory, or a database of a server.

    `new_url` creates a database and returns its address.
    """

    engine: str
    server: Service | None = None
    new_url: Callable[[], str] | None = None

    def prepare(self, folder: Path, room: str, **settings: str) -> Path:
        """A new data directory. The room stores its data in a new database."""
        folder.mkdir(parents=True)
        if self.new_url is not None:
            settings |= {"url": self.new_url()}
        lines = [f'{name} = "{value}"' for name, value in settings.items()]
        (folder / "strandline.toml").write_text("\n".join([f"[{room}]", *lines]))
        return folder

    def cpu(self, *pids: int) -> float:
        """The processor time of these processes and of the database server."""
        return cpu_seconds(*pids, *([self.server.pid] if self.server else []))

    def own_cpu(self) -> float:
        """The same of this process; its children are other services."""
        return time.process_time() + self.cpu()


@contextmanager
def database(engine: str, directory: Path) -> Iterator[Database]:
    if engine == "SQLite":
        yield Database(engine)
    elif engine == "PostgreSQL":
        with PostgresServer(directory) as postgres:
            yield Database(engine, postgres, lambda: postgres.url(postgres.new_database()))
    else:
        with CassandraServer(directory) as cassandra:
            yield Database(engine, cassandra, lambda: cassandra.url(cassandra.new_keyspace()))
