"""The SQLite engine on real files: transactions, mapped errors, locks between threads and processes."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from services import until
from strandline.engine import sqlite
from strandline.errors import NotFound, OutcomeUnknown, Unavailable

_HOLD = """
import sys
from pathlib import Path
from strandline.engine.sqlite import FileLock
with FileLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def database(tmp_path):
    made = sqlite.SqliteConnection(tmp_path / "a.db", create=True)
    made.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, b BLOB)")
    yield made
    made.close()


def count(database: sqlite.SqliteConnection) -> int:
    return database.execute("SELECT count(*) FROM t")[0][0]


def test_every_commit_is_durable_by_construction(database):
    """The journal is a WAL that is synced at every commit."""
    assert database.execute("PRAGMA journal_mode") == [("wal",)]
    assert database.execute("PRAGMA synchronous") == [(2,)]


def test_a_statement_is_planned_once(database):
    """Its plan does not depend on its values; otherwise every new value would cost more than the statement."""
    assert database._connection.config(sqlite.apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1


def test_a_transaction_is_all_or_nothing(database):
    """Any error rolls back the transaction, and the next transaction works."""

    def fail() -> None:
        with database.transaction() as db:
            db.execute("INSERT INTO t (n) VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert count(database) == 0
    with database.transaction() as db:
        db.execute_many("INSERT INTO t (n) VALUES (?)", [(1,), (2,)])
    assert count(database) == 2


def test_driver_errors_are_ours_with_the_cause(database):
    """A driver error is mapped to our error, with the driver's error as the cause."""
    with pytest.raises(Unavailable, match=r"a\.db") as caught:
        database.execute("SELECT nothing")
    assert type(caught.value.__cause__).__module__ == "apsw"
    with pytest.raises(Unavailable), database.transaction() as db:
        db.execute_many("INSERT INTO t (n) VALUES (?)", [(1,), (1,)])
    assert count(database) == 0


def test_a_missing_database_is_not_found(tmp_path):
    """A missing file is NotFound and is not created; a missing directory is Unavailable."""
    with pytest.raises(NotFound):
        sqlite.SqliteConnection(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Unavailable):
        sqlite.SqliteConnection(tmp_path / "away" / "none.db")


def test_a_file_that_is_no_database_is_unavailable(tmp_path):
    """A file that is not a database exists, so it is not NotFound."""
    (tmp_path / "a.db").write_bytes(b"something else" * 1000)
    with pytest.raises(Unavailable):
        sqlite.SqliteConnection(tmp_path / "a.db")


def test_the_version_changes_with_commits_of_others(database):
    """`data_version` changes with the commits of other connections."""
    other = sqlite.SqliteConnection(database.path)
    before = database.data_version()
    assert database.data_version() == before
    with other.transaction() as db:
        db.execute("INSERT INTO t (n) VALUES (1)")
    assert database.data_version() != before
    other.close()


def test_rows_can_be_left_early(database):
    """The read ends with the block, so it does not block writers and checkpoints."""
    database.execute_many("INSERT INTO t (n) VALUES (?)", [(n,) for n in range(100)])
    with database.rows("SELECT n FROM t ORDER BY n") as rows:
        assert next(rows) == (0,)
    with database.transaction() as db:
        db.execute("DELETE FROM t")
    assert database.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0


@contextmanager
def files_no_larger_than(size: int):
    """Make writes beyond that size fail, as on a broken disk; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_commit_that_fails_half_way_has_an_unknown_outcome(database):
    """The frames may have reached the file, so the outcome is unknown, not failed."""
    wal = database.path.with_name("a.db-wal")
    with files_no_larger_than(wal.stat().st_size + 5_000):
        with pytest.raises(OutcomeUnknown) as caught, database.transaction() as db:
            db.execute("INSERT INTO t (n, b) VALUES (1, zeroblob(50000))")
        assert caught.value.__cause__ is not None
    with database.transaction() as db:
        db.execute("INSERT INTO t (n) VALUES (2)")
    assert database.execute("PRAGMA integrity_check") == [("ok",)]
    assert (2,) in database.execute("SELECT n FROM t")


def test_a_closed_database_is_unavailable(database):
    """Every call on a closed database is Unavailable."""
    database.close()
    for act in (lambda: database.execute("SELECT 1"), database.data_version, database.transaction().__enter__):
        with pytest.raises(Unavailable):
            act()


def test_closing_within_a_transaction_keeps_the_first_error(database):
    """The rollback is no longer possible, and its failure does not hide the first error."""

    def fail() -> None:
        with database.transaction():
            database.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


# -- locks


def test_a_file_lock_excludes_threads(tmp_path):
    """The lock excludes threads that share one lock object."""
    lock = sqlite.FileLock(tmp_path / "a.lock")
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(200):
            with lock:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lock.close()
    assert max(most) == 1


def test_a_file_lock_is_let_go_by_a_killed_process(tmp_path):
    """A lock is held while its process lives and released when the process is killed."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "a.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        lock = sqlite.FileLock(tmp_path / "a.lock")
        got = threading.Event()

        def wait() -> None:
            with lock:
                got.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not got.wait(0.2)
        process.kill()
        until(got.is_set)
        waiter.join()
    lock.close()


def test_a_holder_that_sleeps_does_not_hold_up_every_thread(tmp_path, monkeypatch):
    """One thread waits for the holder, the others get Unavailable, and the lock works afterwards."""
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_MS", 100)
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "a.lock")]
    lock = sqlite.FileLock(tmp_path / "a.lock")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        waiter = threading.Thread(target=lambda: lock.__enter__() and lock.__exit__())
        waiter.start()
        until(lock._threads.locked)
        with pytest.raises(Unavailable, match="held by another"), lock:
            pass
        assert waiter.is_alive()
        process.kill()
        waiter.join()
    with lock:
        assert not lock.acquire(wait=False)
    lock.close()


def test_a_lock_file_that_cannot_be_opened_is_unavailable(tmp_path):
    """The error of the system is mapped to our error."""
    with pytest.raises(Unavailable):
        sqlite.FileLock(tmp_path / "away" / "a.lock")


def test_removing_takes_everything_beside_the_database(tmp_path):
    """`remove` deletes the WAL and lock files too, and is idempotent."""
    path = tmp_path / "a.db"
    database = sqlite.SqliteConnection(path, create=True)
    database.execute("CREATE TABLE t (n)")
    sqlite.FileLock(Path(f"{path}.lock")).close()
    assert len(list(tmp_path.iterdir())) == 4
    database.close()
    sqlite.remove(path)
    sqlite.remove(path)
    assert list(tmp_path.iterdir()) == []


def test_an_unsafe_library_is_refused(monkeypatch):
    """SQLite releases that can corrupt a WAL with several writers are refused."""
    for version, safe in (("3.51.2", False), ("3.51.3", True), ("3.54.0", True), ("3.9.9", False)):
        monkeypatch.setattr(sqlite, "library_version", lambda version=version: version)
        if safe:
            sqlite.check_library()
        else:
            with pytest.raises(Unavailable, match="pip install -U apsw"):
                sqlite.check_library()
