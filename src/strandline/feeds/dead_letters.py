"""The table of dead letters: operations that were refused or given up, with the reason."""

from __future__ import annotations

import msgspec

from strandline.clock import Clock
from strandline.engine.database import Database, Tables
from strandline.feeds import operation_log
from strandline.feeds.model import DeadOperation, Operation


class DeadOperations:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._tables = Tables(database, "dead letters of feeds", "strandline.feeds", "dead_letters.sql")
        self._clock = clock

    def add(self, operation: Operation, reason: str) -> None:
        self._tables.store(
            "add",
            failed_ms=self._clock.now_ms(),
            kind=operation_log.name_of(operation),
            reason=reason.replace("\0", "\ufffd"),
            operation=msgspec.json.encode(operation_log.recorded(operation)),
        )

    def after(self, number: int, limit: int) -> list[DeadOperation]:
        """Oldest first."""
        return [
            DeadOperation(found, failed_ms, reason, operation_log.decoded(bytes(event)))
            for found, failed_ms, reason, event in self._tables.fetch("after", after=number, limit=limit)
        ]

    def counts(self) -> dict[str, int]:
        """How many there are of each kind of operation."""
        return dict(self._tables.fetch("counts"))
