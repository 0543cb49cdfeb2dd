"""A ledger that several processes can open, and what tests put into it."""

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
    """`now_ms` is the ledger's wall clock and its lease clock; tests move it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.now_ms = NOON
        self._opened: list[Database] = []

    def database(self) -> Database:
        """With connections of its own, as another process has."""
        self._opened.append(open_database(self.address))
        return self._opened[-1]

    def open(self) -> Ledger:
        return SqlLedger(
            self.database(), lease_ms=LEASE_MS, now=lambda: self.now_ms, lease_now=lambda: self.now_ms
        )

    def execute(self, statements: str) -> Rows:
        """What statements return, without a ledger."""
        return self.database().transaction(lambda session: session.execute(statements))

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


def file(first: int, last: int, *, kind: str = "data", hour_ms: int = NOON, name: str = "orders") -> ArchivedFile:
    """One of partition 0 with a row for every offset."""
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
    """Partition 0 from one offset to another, with files that hold all that was not dropped."""
    rows = {kind: sum(f.rows for f in files if f.kind == kind) for kind in ("data", "late", "quarantine")}
    counts = Counts(sum(rows.values()) + dropped, rows["data"], rows["late"], rows["quarantine"], dropped)
    start = None if before is None else Position(1, before)
    return Decision({0: start}, {0: StoredPartition(Position(1, after), **stored)}, files, counts, read_ms)


def archived(ledger: Ledger, claim: Claim, before: int | None, after: int, *files: ArchivedFile) -> None:
    """Decided and published."""
    ledger.decide(claim, decision(before, after, *files))
    ledger.published(claim, [one.path for one in files])
