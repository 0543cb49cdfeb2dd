"""Opens the ledger, which is where the catalog is."""

from __future__ import annotations

from pathlib import Path

from strandline.archive.ledger.port import Ledger
from strandline.archive.ledger.sqlite import SqliteLedger
from strandline.clock import Clock, SystemClock
from strandline.config import Settings


def connect(settings: Settings, data: Path, clock: Clock) -> Ledger:
    lease_ms = settings.coordination.session_timeout_ms
    if settings.catalog.url:
        from strandline.archive.ledger.postgres import PostgresLedger  # noqa: PLC0415 - its driver is an extra

        # Machines go by the server's clock; only a test's faster day is everybody's own.
        real = isinstance(clock, SystemClock)
        now = (lambda: None) if real else clock.now_ms
        return PostgresLedger(settings.catalog.url, lease_ms=lease_ms, now=now)
    return SqliteLedger(data / "archive.db", lease_ms=lease_ms, now=clock.now_ms)
