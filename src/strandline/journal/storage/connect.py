"""Opens the store of the journals."""

from __future__ import annotations

from strandline.engine.connect import Databases
from strandline.journal.storage.port import JournalStore
from strandline.journal.storage.sql import SqlJournalStore

_FILE = "journal.db"


def connect(url: str, databases: Databases) -> JournalStore:
    """The store at `url`; without one, a file in the data directory."""
    if url.startswith("cassandra:"):
        from strandline.engine.cassandra import CassandraSession  # noqa: PLC0415 - its driver is an extra
        from strandline.journal.storage.cassandra import CassandraJournalStore  # noqa: PLC0415 - same

        return CassandraJournalStore(CassandraSession(url))
    return SqlJournalStore(databases.get(url, _FILE, fixed_plans=True))
