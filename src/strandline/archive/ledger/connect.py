"""Opens the ledger, which is in the database of the catalog."""

from __future__ import annotations

from pathlib import Path

from strandline.archive.ledger.port import Ledger
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.settings import ArchiveSections
from strandline.clock import Clock, SystemClock
from strandline.engine.connect import Databases

_FILE = "archive.db"


def is_made(settings: ArchiveSections, data: Path) -> bool:
    """Whether a ledger may exist: reads must not create the file of an archive that has never run."""
    return bool(settings.catalog.url) or (data / _FILE).exists()


def connect(settings: ArchiveSections, databases: Databases, clock: Clock) -> Ledger:
    database = databases.get(settings.catalog.url, _FILE)
    # The database's clock is the same for all machines. Only a test's clock replaces it.
    now = None if isinstance(clock, SystemClock) else clock.now_ms
    return SqlLedger(database, lease_ms=settings.coordination.session_timeout_ms, now=now)
