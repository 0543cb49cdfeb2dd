"""SQLite only: restarts of the machine, commits of unknown outcome, pauses in a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from coordination_place import TIMEOUT_MS

from services import until
from strandline.clock import boot_id, boot_ms
from strandline.coordination import sqlite as adapter
from strandline.coordination.sqlite import SqliteCoordination
from strandline.engine.sqlite import SqliteConnection, WriteTransaction
from strandline.errors import LeaseLost, OutcomeUnknown, Unavailable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "coordination.db"


@pytest.fixture
def coordination(file: Path) -> Iterator[SqliteCoordination]:
    made = SqliteCoordination(file, TIMEOUT_MS)
    yield made
    made.close()


@pytest.fixture
def looker(file: Path) -> Iterator[SqliteCoordination]:
    """Another session, with rare heartbeats."""
    made = SqliteCoordination(file, 600_000)
    yield made
    made.close()


def leave_behind(file: Path, boot: str, expires_ms: int) -> None:
    """Store a session of a dead process, with a member and a lock."""
    SqliteCoordination(file).close()
    database = SqliteConnection(file)
    with database.transaction():
        database.execute("INSERT INTO sessions VALUES ('gone', ?, ?)", (boot, expires_ms))
        database.execute("INSERT INTO members VALUES ('there', 'gone', '1')")
        database.execute("INSERT INTO locks VALUES ('orders', 'gone', '1')")
    database.close()


def test_a_session_ends_with_the_machine(file: Path):
    """The boot clock restarts at zero, so the expiry alone would be far in the future."""
    leave_behind(file, "an earlier start", boot_ms() + 3_600_000)
    coordination = SqliteCoordination(file)
    assert (coordination.members(), coordination.locks()) == ({}, {})
    assert coordination.lock("orders", "mine")
    coordination.close()


def test_what_has_expired_is_invisible_before_it_is_removed(
    file: Path, looker: SqliteCoordination, monkeypatch: pytest.MonkeyPatch
):
    """An expired session is not visible, even without a write to the file, and watchers are called."""
    now_ms = adapter.boot_ms
    seen: list[dict[str, str]] = []
    looker.watch(lambda: seen.append(looker.locks()))
    leave_behind(file, boot_id(), now_ms() + 60_000)
    until(lambda: seen and seen[-1] == {"orders": "1"})
    assert looker.members() == {"there": "1"}
    monkeypatch.setattr(adapter, "boot_ms", lambda: now_ms() + 60_000)
    until(lambda: seen[-1] == {})
    assert looker.members() == {}
    assert looker._reader.execute("SELECT name FROM locks") == [("orders",)]
    looker.join("here", "1")
    assert looker._reader.execute("SELECT name FROM locks") == []


def test_the_version_outlives_everybody(file: Path):
    """The version is kept when all processes have ended."""
    first = SqliteCoordination(file)
    first.bump()
    first.close()
    second = SqliteCoordination(file)
    assert second.bump() == 2
    second.close()


def test_sleep_in_a_transaction_costs_the_session(
    coordination: SqliteCoordination, looker: SqliteCoordination, monkeypatch: pytest.MonkeyPatch
):
    """A session that expired before its commit stays expired, because others have seen it expire."""
    coordination.join("here", "1")
    coordination.lock("orders", "mine")
    now_ms = adapter.boot_ms

    def work(_db: SqliteConnection, _session: str) -> None:
        monkeypatch.setattr(adapter, "boot_ms", lambda: now_ms() + TIMEOUT_MS)

    with pytest.raises(Unavailable):
        coordination._within_session(work)
    monkeypatch.setattr(adapter, "boot_ms", now_ms)
    assert not coordination.sure()
    with pytest.raises(LeaseLost):
        coordination.relock("orders", "x")
    coordination.unlock("orders")
    assert (looker.members(), looker.locks()) == ({}, {})
    coordination.join("here", "2")
    assert coordination.sure()


def test_a_commit_that_may_have_happened_leaves_nothing(
    coordination: SqliteCoordination, looker: SqliteCoordination, monkeypatch: pytest.MonkeyPatch
):
    """If the outcome is unknown, the caller does not hold the lock; soon no session holds it."""
    end = WriteTransaction.__exit__

    def half_done(transaction: WriteTransaction, *error: object) -> None:
        end(transaction, *error)
        raise OutcomeUnknown

    monkeypatch.setattr(WriteTransaction, "__exit__", half_done)
    with pytest.raises(OutcomeUnknown):
        coordination.lock("orders", "1")
    monkeypatch.undo()
    assert not coordination.sure()
    until(lambda: looker.locks() == {})
    until(coordination.sure)
    assert coordination.lock("orders", "2")


def test_an_unlock_that_fails_is_made_up_for(
    coordination: SqliteCoordination, looker: SqliteCoordination, monkeypatch: pytest.MonkeyPatch
):
    """The caller no longer holds the lock, and the next heartbeat deletes its row."""
    coordination.lock("orders", "1")

    end = WriteTransaction.__exit__

    def busy(transaction: WriteTransaction, *_: object) -> None:
        end(transaction, Unavailable)  # rolls back
        raise Unavailable("busy")

    monkeypatch.setattr(WriteTransaction, "__exit__", busy)
    coordination.unlock("orders")
    monkeypatch.undo()
    with pytest.raises(LeaseLost):
        coordination.relock("orders", "2")
    until(lambda: looker.locks() == {})


def test_a_newer_layout_is_refused(file: Path):
    """A newer layout is refused by its number, before anything is written."""
    SqliteCoordination(file).close()
    database = SqliteConnection(file)
    database.execute("UPDATE layouts SET version = 99")
    database.close()
    with pytest.raises(Unavailable, match="newer"):
        SqliteCoordination(file)


def test_a_closed_session_refuses(coordination: SqliteCoordination):
    """Every call on a closed session is Unavailable."""
    coordination.close()
    for call in (coordination.version, coordination.bump, lambda: coordination.lock("orders", "1")):
        with pytest.raises(Unavailable):
            call()
