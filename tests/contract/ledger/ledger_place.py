"""A ledger that several processes can open, and test data for it."""

from __future__ import annotations

from databases import open_database
from strandline.archive.ledger import Ledger
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.model import ArchivedFile, Claim, Counts, Decision, StoredPartition
from strandline.clock import parse_rfc3339
from strandline.engine.database import Database, Rows
from strandline.log.cursors import Position

LEASE_MS = 6_000
NOON = parse_rfc3339("2024-05-01T12:00:00Z")


class LedgerPlace:
    """`now_ms` is the ledger's wall clock and its lease clock; tests advance it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.now_ms = NOON
        self._opened: list[Database] = []

    def database(self) -> Database:
        """Open the database with separate connections, as another process does."""
        self._opened.append(open_database(self.address))
        return self._opened[-1]

    def open(self) -> Ledger:
        return SqlLedger(
            self.database(), lease_ms=LEASE_MS, now=lambda: self.now_ms, lease_now=lambda: self.now_ms
        )

    def execute(self, statements: str) -> Rows:
        """Execute statements without a ledger and return their rows."""
        return self.database().transaction(lambda session: session.execute(statements))

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


def file(first: int, last: int, *, kind: str = "data", hour_ms: int = NOON, name: str = "orders") -> ArchivedFile:
    """A file of partition 0 with a row for every offset."""
    return ArchivedFile(
        f"{kind}/{hour_ms}/{name}-{first}-{last}.parquet",
        kind,  # type: ignore[arg-type]
        hour_ms,
        0,
        1,
        first,
        last,
        last - first + 1,
        1000,
        "abc",
        hour_ms,
        hour_ms + last,
        f"_staging/{first}.part",
    )


def decision(
    before: int | None, after: int, *files: ArchivedFile, dropped: int = 0, read_ms: int = NOON, **stored: int
) -> Decision:
    """Move partition 0 from one offset to another; the files have every record that was not dropped."""
    rows = {kind: sum(f.rows for f in files if f.kind == kind) for kind in ("data", "late", "quarantine")}
    counts = Counts(sum(rows.values()) + dropped, rows["data"], rows["late"], rows["quarantine"], dropped)
    start = None if before is None else Position(1, before)
    return Decision({0: start}, {0: StoredPartition(Position(1, after), **stored)}, files, counts, read_ms)


def archived(ledger: Ledger, claim: Claim, before: int | None, after: int, *files: ArchivedFile) -> None:
    """Decide and publish the files."""
    ledger.decide(claim, decision(before, after, *files))
    ledger.published(claim, [one.path for one in files])
