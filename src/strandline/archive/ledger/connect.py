"""Opens the ledger, which is kept where the catalog is."""

from __future__ import annotations

from pathlib import Path

from strandline.archive.ledger.port import Ledger
from strandline.archive.ledger.sqlite import SqliteLedger
from strandline.clock import Clock, SystemClock
from strandline.config import Settings

_FILE = "archive.db"


def is_made(settings: Settings, data: Path) -> bool:
    """Whether there may be a ledger: reads must not create the file of an archive that has never run."""
    return bool(settings.catalog.url) or (data / _FILE).exists()


def connect(settings: Settings, data: Path, clock: Clock) -> Ledger:
    lease_ms = settings.coordination.session_timeout_ms
    if settings.catalog.url:
        from strandline.archive.ledger.postgres import PostgresLedger  # noqa: PLC0415 - its driver is an extra

        # Processes use the clock of the database server; only a test with a faster clock brings its own.
        real = isinstance(clock, SystemClock)
        now = (lambda: None) if real else clock.now_ms
        return PostgresLedger(settings.catalog.url, lease_ms=lease_ms, now=now)
    return SqliteLedger(data / _FILE, lease_ms=lease_ms, now=clock.now_ms)
