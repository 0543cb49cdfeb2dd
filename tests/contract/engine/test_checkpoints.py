"""Checkpoints of SQLite's WAL run beside the writer, and the WAL restarts."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from strandline.engine.checkpoints import Checkpoints, Limits
from strandline.engine.open_files import OPEN
from strandline.engine.sqlite import SqliteConnection

LIMITS = Limits(least_bytes=200_000, commits=5, most_bytes=1_000_000)
ROW = b"x" * 10_000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "topic.db"
    with closing(SqliteConnection(path, create=True)) as database, database.transaction():
        database.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, value BLOB)")
    return path


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def writer(path, executor):
    with closing(SqliteConnection(path, committed=Checkpoints(path, executor, LIMITS).committed)) as database:
        yield database


def write(database: SqliteConnection, count: int = 1) -> None:
    for _ in range(count):
        with database.transaction():
            database.execute("INSERT INTO rows (value) VALUES (?)", (ROW,))


def log_bytes(path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


def rows(path) -> int:
    with closing(SqliteConnection(path)) as database:
        return database.execute("SELECT count(*) FROM rows")[0][0]


def test_the_log_of_a_busy_writer_starts_anew(path, writer):
    """The WAL stays near the limit of a checkpoint, however much is written."""
    write(writer, 1000)  # 10 MB
    assert log_bytes(path) < 3_000_000
    assert path.stat().st_size > 7_000_000
    assert rows(path) == 1000


def test_large_commits_have_a_longer_log():
    """The limit depends on the commits: large commits need rare checkpoints, small commits a short WAL."""
    limits = Limits(least_bytes=10, commits=5, most_bytes=100)
    assert not limits.reached(9, 1000)
    assert limits.reached(10, 5)
    assert not limits.reached(99, 4)
    assert limits.reached(100, 1)


def test_a_reader_of_old_pages_holds_it_up_but_nobody_else(path, writer):
    """The WAL grows while a reader uses old pages; a commit after the reader has ended restarts it."""
    with closing(SqliteConnection(path)) as reader:
        with reader.rows("SELECT n FROM rows") as none_yet:
            assert not list(none_yet)
        write(writer)
        with reader.rows("SELECT value FROM rows") as found:
            next(iter(found))
            write(writer, 100)
            assert log_bytes(path) > 1_000_000
    size = log_bytes(path)
    write(writer, 300)
    assert log_bytes(path) < size + 3_000_000
    assert rows(path) == 401


def test_readers_that_follow_one_another_do_not_let_the_log_grow_for_ever(path, writer):
    """If there is always a reader, the writer waits for the readers that began before the checkpoint."""
    write(writer, 10)
    stop = threading.Event()
    reader = threading.Thread(target=read_without_a_pause, args=(path, stop))
    reader.start()
    try:
        write(writer, 1000)  # 10 MB
        assert log_bytes(path) < 6_000_000
    finally:
        stop.set()
        reader.join()


def read_without_a_pause(path, stop: threading.Event) -> None:
    """Run overlapping reads: the next read begins before the last one ends."""
    with closing(SqliteConnection(path)) as left, closing(SqliteConnection(path)) as right, ExitStack() as last:
        for database in itertools.cycle((left, right)):
            with ExitStack() as begun:
                next(iter(begun.enter_context(database.rows("SELECT value FROM rows"))))
                last.close()
                last.push(begun.pop_all())
            if stop.wait(0.01):
                return


def test_what_was_committed_stays_so_when_the_copy_fails(path, writer, monkeypatch):
    """A failed checkpoint is not an error of the commit."""
    monkeypatch.setattr(
        SqliteConnection, "checkpoint", lambda *_: SqliteConnection.execute(writer, "SELECT broken")
    )
    write(writer, 200)
    assert rows(path) == 200


def test_a_copy_that_fails_is_told(path, writer, executor, monkeypatch, caplog):
    """A failed checkpoint is logged, because the WAL grows until the disk is repaired."""
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EIO, "broken disk")))
    write(writer, 100)
    executor.shutdown(wait=True)
    assert "broken disk" in caplog.text


def test_a_log_that_started_anew_by_another_process_is_measured_from_its_start(path):
    """A restart of the WAL resets the position of a checkpoint that a reader blocked."""
    executor, writer = Mock(), Mock()
    executor.submit.return_value.done.return_value = True
    writer.checkpoint.return_value = False
    checkpoints = Checkpoints(path, executor, Limits(least_bytes=10, commits=1))
    for log_bytes in (1000, 1010, 5, 15):
        checkpoints.committed(writer, log_bytes)
    assert executor.submit.call_count == 2


def test_a_writer_that_could_not_call_the_executor_tries_again(path, executor):
    """The executor may fail to start a thread; a later commit retries."""
    submit, executor.submit = executor.submit, Mock(side_effect=RuntimeError("can't start new thread"))
    with closing(SqliteConnection(path, committed=Checkpoints(path, executor, LIMITS).committed)) as writer:
        write(writer, 100)
        assert path.stat().st_size < 100_000
        executor.submit = submit
        write(writer, 100)
        assert path.stat().st_size > 1_000_000


def test_the_writer_goes_on_without_the_executor(path, writer, executor):
    """Without the executor, closing the last connection runs the checkpoint."""
    executor.shutdown()
    write(writer, 100)
    writer.close()
    assert rows(path) == 100


def test_two_processes_copy_the_same_log(path, writer, executor):
    """Only one process runs a checkpoint at a time; the other one skips it."""
    program = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from strandline.engine.checkpoints import Checkpoints, Limits
from strandline.engine.sqlite import SqliteConnection
path = Path(sys.argv[1])
with ThreadPoolExecutor(1) as pool:
    limits = Limits(least_bytes=200_000, commits=5)
    database = SqliteConnection(path, committed=Checkpoints(path, pool, limits).committed)
    for _ in range(500):
        with database.transaction():
            database.execute("INSERT INTO rows (value) VALUES (?)", (b"y" * 10_000,))
"""
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as other:
        write(writer, 500)
        assert other.wait(60) == 0
    assert rows(path) == 1000
    with closing(SqliteConnection(path)) as database:
        assert database.execute("PRAGMA integrity_check") == [("ok",)]


def test_our_own_descriptor_goes_with_the_last_of_sqlite(path):
    """Our descriptor closes with the last connection; an earlier close would release SQLite's locks."""
    first, second = SqliteConnection(path), SqliteConnection(path)
    OPEN.sync(path)
    ours = OPEN._files[str(path)].descriptor
    first.close()
    assert os.path.samestat(os.fstat(ours), path.stat())
    second.close()
    second.close()
    assert _descriptors(path) == 0


def test_a_database_that_cannot_be_opened_leaves_nothing_open(tmp_path):
    """A failed open leaves neither a descriptor nor an entry."""
    path = tmp_path / "broken.db"
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(Exception, match="not a database"):
        SqliteConnection(path)
    assert _descriptors(path) == 0
    assert str(path) not in OPEN._files


def test_a_file_is_one_by_whatever_links_it_is_reached(path, tmp_path):
    """A file and its links share one descriptor; closing a second one would release SQLite's locks."""
    (tmp_path / "link").symlink_to(path.parent)
    linked = tmp_path / "link" / path.name
    with closing(SqliteConnection(path)):
        with closing(SqliteConnection(linked)):
            OPEN.sync(linked)
        assert os.path.samestat(os.fstat(OPEN._files[str(path)].descriptor), path.stat())
    assert _descriptors(path) == 0


def test_a_database_is_closed_after_the_working_directory_changed(path, tmp_path, monkeypatch):
    """A relative path is resolved when the database is opened."""
    monkeypatch.chdir(path.parent)
    database = SqliteConnection(Path(path.name))
    monkeypatch.chdir("/")
    database.close()
    assert str(path) not in OPEN._files


def test_a_forked_process_opens_files_whatever_its_parent_was_doing(path):
    """A lock that a thread of the parent holds does not block the child."""
    program = """
import os, signal, sys
from pathlib import Path
from strandline.engine.open_files import OPEN
from strandline.engine.sqlite import SqliteConnection
with OPEN._lock:
    child = os.fork()
    if not child:
        signal.alarm(10)
        SqliteConnection(Path(sys.argv[1])).close()
        os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program, str(path)], timeout=60, check=False).returncode == 0


def _descriptors(path) -> int:
    return sum(link.exists() and link.samefile(path) for link in Path("/proc/self/fd").iterdir())
