"""The query plans of the ledger in a SQLite file."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from ledger_place import LedgerPlace

from strandline.engine import sql

STATEMENTS = sql.load("strandline.archive.ledger", "ledger.sql", "sqlite")
#: The statements of every step of the archive.
EACH_STEP = [
    *("standing", "publishing", "publish", "files", "hours_of", "unpublished_in", "flagged_among"),
    *("listed_among", "unwritten_hours", "unsettled", "revisions", "unwritten_periods", "hours", "periods"),
]


@pytest.fixture
def plan(tmp_path) -> Callable[[str], list[str]]:
    """The query plan of a statement of the ledger."""
    place = LedgerPlace(f"sqlite:{tmp_path / 'archive.db'}")
    place.open()

    def steps(name: str) -> list[str]:
        values = dict.fromkeys(re.findall(r":(\w+)", STATEMENTS[name]), "[]")
        found = place.database().fetch(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", values)
        return [row[3] for row in found]

    yield steps
    place.close()


@pytest.mark.parametrize("name", EACH_STEP)
def test_no_statement_takes_longer_the_more_was_archived(plan, name):
    """No statement scans all files, hours or periods: each uses an index or reads only unfinished rows."""
    slow = [
        step
        for step in plan(name)
        if step.startswith("SCAN") and "INDEX un" not in step and "json_each" not in step
    ]
    assert slow == []


@pytest.mark.parametrize(
    ("name", "indexes"),
    [
        ("publishing", ["publishing_archive_files"]),
        ("publish", ["publishing_archive_files"]),
        ("unwritten_hours", ["unwritten_archive_hours"]),
        ("unsettled", ["unsettled_archive_hours", "unsettled_archive_periods"]),
        ("unwritten_periods", ["unwritten_archive_periods"]),
    ],
)
def test_partial_indexes_are_used(plan, name, indexes):
    """SQLite uses a partial index only if the statement has exactly its predicate."""
    steps = plan(name)
    assert [index for index in indexes if not any(f"INDEX {index}" in step for step in steps)] == []
