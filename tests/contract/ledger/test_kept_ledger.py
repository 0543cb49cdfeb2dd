"""A ledger of the first layout is migrated in place and keeps every row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ledger_place import NOON, LedgerPlace, archived, decision, file

from services import environment
from strandline.archive.model import HOUR_MS, Claim, Counts, Period, StoredPartition, Term
from strandline.clock import boot_id
from strandline.engine.database import Rows
from strandline.log.cursors import Position

HERE = Path(__file__).parent
COLUMNS = {
    "types": "*",
    "terms": "*",
    "partitions": "*",
    "files": "*",
    "hours": "event_type, hour_ms, path, revision, written, settled, stale, barrier, flagged_ms, epoch",
    "periods": "*",
    "leases": "*",
}
OPEN = "import sys, ledger_place; ledger_place.LedgerPlace(sys.argv[1]).open()"


def on_sqlite(place: LedgerPlace) -> bool:
    return place.address.startswith("sqlite:")


def contents(place: LedgerPlace, *, migrated: bool) -> dict[str, Rows]:
    """All rows of all tables."""
    prefix = "" if on_sqlite(place) and not migrated else "archive_"
    columns = {**COLUMNS, "owners": "owner, expires_ms, told"}
    return {
        table: place.execute(f"SELECT {names} FROM {prefix}{table} ORDER BY 1, 2")  # noqa: S608
        for table, names in columns.items()
    }


@pytest.fixture
def kept(place: LedgerPlace) -> dict[str, Rows]:
    """The rows of the tables before the migration."""
    text = (HERE / f"layout_1.{'sqlite' if on_sqlite(place) else 'postgres'}.sql").read_text("utf-8")
    place.execute(text.replace("this boot", boot_id()))
    before = contents(place, migrated=False)
    assert all(before.values())
    return before


def test_every_row_is_kept(place, kept):
    """The migration keeps every row, and a second open changes nothing."""
    for _ in range(2):
        place.open()
        assert contents(place, migrated=True) == kept
    assert place.execute("SELECT room, version FROM layouts") == [("archive", 4)]


def test_a_kept_ledger_is_read(place, kept):
    """The migrated ledger returns all its old data."""
    ledger = place.open()
    standing = ledger.standing("orders")
    assert (standing.epoch, standing.incarnation, standing.read_ms) == (3, 2, NOON)
    assert standing.flagged_ms == NOON - HOUR_MS
    assert standing.partitions == {0: StoredPartition(Position(1, 24), NOON, 2, NOON - 5, NOON - 1)}
    assert standing.counts == Counts(25, 20, 2, 2, 1, 4)
    assert ledger.terms() == [Term("clicks", NOON - 2 * HOUR_MS, NOON), Term("orders", NOON - 2 * HOUR_MS)]
    assert [one.sha256 for one in ledger.files("orders", NOON - HOUR_MS)] == ["abc"]
    assert [one.sha256 for one in ledger.publishing("orders")] == ["def"]
    assert [(one.revision, one.stale) for one in ledger.hours.unwritten("orders")] == [(1, True), (2, False)]
    (open_hour,) = ledger.hours.between(NOON, NOON + 1, "orders")
    assert open_hour.barrier.ends == {0: Position(1, 24)}
    assert ledger.periods.unsettled() == {"d/10/orders": NOON - 2 * HOUR_MS, "d/09": NOON - 3 * HOUR_MS}
    assert ledger.periods.unwritten() == [Period("d/10", NOON - 2 * HOUR_MS, 1, 0, {"d/10/orders": 1})]


def test_a_kept_ledger_goes_on(place, kept):
    """The migrated ledger continues from its last positions."""
    ledger = place.open()
    claim = ledger.claim("orders", "id-1")
    assert claim == Claim("orders", 4, 2)
    ledger.published(claim, [one.path for one in ledger.publishing("orders")])
    archived(ledger, claim, 24, 34, file(25, 34))
    ledger.decide(claim, decision(34, 44, file(35, 44, kind="late", hour_ms=NOON - HOUR_MS)))
    assert len(ledger.files("orders", NOON)) == 2
    assert ledger.hours.flag(claim, NOON - 2 * HOUR_MS, "d/10/orders").revision == 2
    ledger.hours.confirm(claim, NOON - 2 * HOUR_MS, 2)
    ledger.periods.settle({"d/10/orders": 2, "d/09": 1})
    assert ledger.periods.unsettled() == {}
    assert ledger.standing("orders").counts == Counts(45, 30, 12, 2, 1, 4)


def test_kept_leases_belong_to_their_owners(place, kept):
    """The owner keeps its leases until they expire; all leases of an owner end together."""
    ledger = place.open()
    ledger.leases.renew("new")
    assert ledger.leases.owners() == {"new": "", "old": "[]"}
    assert not ledger.leases.take("new", "orders")
    assert ledger.leases.take("old", "orders")
    place.now_ms += 3_000
    assert ledger.leases.take("new", "orders")
    assert place.execute("SELECT name, owner FROM archive_leases") == [("orders", "new")]
    ledger.leases.leave("new")
    assert place.execute("SELECT name, owner FROM archive_leases") == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_foreign_keys_follow_the_renamed_tables(place, kept):
    """The foreign keys in SQLite name the new tables; PostgreSQL's tables keep their names."""
    place.open()
    assert place.execute("PRAGMA foreign_key_check") == []
    assert [row[2] for row in place.execute("PRAGMA foreign_key_list('archive_leases')")] == ["archive_owners"]


def test_processes_that_start_at_once_migrate_it_once(place, kept):
    """Of concurrent starts with separate connections, one migrates the ledger."""
    with ThreadPoolExecutor(4) as pool:
        ledgers = [*pool.map(lambda _: place.open(), range(4))]
    assert contents(place, migrated=True) == kept
    assert {ledger.standing("orders").epoch for ledger in ledgers} == {3}


def test_a_process_killed_during_the_migration_changes_nothing(place, kept):
    """The start after the crash migrates the ledger."""
    environ = environment(
        STRANDLINE_TEST_FAILPOINT="layouts.migrated:kill", PYTHONPATH=os.pathsep.join([str(HERE), *sys.path])
    )
    command = [sys.executable, "-c", OPEN, place.address]
    assert subprocess.run(command, env=environ, check=False, timeout=60).returncode == -signal.SIGKILL
    assert contents(place, migrated=False) == kept
    assert place.open().claim("orders", "id-1").epoch == 4
    assert contents(place, migrated=True)["files"] == kept["files"]
