"""What only the embedded ledger has to care about."""

from __future__ import annotations

import pytest
from ledger_place import LEASE_MS

from strandline.archive.ledger.sqlite import _SQL, SqliteLedger
from strandline.engine.sqlite import Database
from strandline.errors import Unavailable

#: What every step of the archive asks for.
EACH_STEP = [
    *("standing", "publishing", "files", "hours_of", "unpublished_in", "flagged_among", "listed_among"),
    *("unwritten_hours", "unsettled", "revisions", "unwritten_periods", "hours", "periods"),
]


@pytest.fixture
def path(tmp_path):
    SqliteLedger(tmp_path / "archive.db", lease_ms=LEASE_MS, now=lambda: 0).close()
    return tmp_path / "archive.db"


@pytest.mark.parametrize("name", EACH_STEP)
def test_no_question_takes_longer_the_more_was_archived(path, name):
    """None reads through all files, hours or periods: each has an index, or looks only at what is open."""
    db = Database(path)
    values = _SQL[name].count("?") - sum(_SQL[name].count(f"?{n}") for n in (1, 2, 3))
    numbered = len({n for n in (1, 2, 3) if f"?{n}" in _SQL[name]})
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {_SQL[name]}", ("[]",) * (values + numbered))]
    db.close()
    slow = [
        step for step in plan if step.startswith("SCAN") and "INDEX un" not in step and "json_each" not in step
    ]
    assert slow == []


def test_a_ledger_of_a_newer_release_is_left_alone(path):
    """Whatever is in it."""
    db = Database(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(Unavailable, match="newer Strandline"):
        SqliteLedger(path, lease_ms=LEASE_MS, now=lambda: 0)
