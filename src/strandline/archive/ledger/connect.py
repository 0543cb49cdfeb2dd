"""Opens the ledger, which is where the catalog is."""

from __future__ import annotations

from strandline.archive.ledger.port import Ledger
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.settings import ArchiveSections
from strandline.clock import Clock, SystemClock
from strandline.engine.databases import Databases


def connect(settings: ArchiveSections, databases: Databases, clock: Clock) -> Ledger:
    database = databases.get(settings.catalog.url, "archive.db")
    # The database's clock is the same for all machines. Only a test's clock replaces it.
    now = None if isinstance(clock, SystemClock) else clock.now_ms
    return SqlLedger(database, lease_ms=settings.coordination.session_timeout_ms, now=now)
