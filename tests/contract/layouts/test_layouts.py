"""Layout versions: created, migrated and refused; safe against crashes and concurrent starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from databases import open_database
from services import environment
from strandline.engine.database import Database
from strandline.engine.layouts import create_file, migrate, migrate_file
from strandline.engine.sqlite import FileLock, SqliteConnection
from strandline.errors import Unavailable

AUTHOR = "author TEXT NOT NULL DEFAULT 'nobody'"
ADD_THIRD = "INSERT INTO notes VALUES ('third', 'me');"
FIRST = {"create": "CREATE TABLE notes (note TEXT);"}
SECOND = {
    "create": f"CREATE TABLE notes (note TEXT, {AUTHOR});",
    "migration_2": f"ALTER TABLE notes ADD COLUMN {AUTHOR};",
}
THIRD = {**SECOND, "create": SECOND["create"] + ADD_THIRD, "migration_3": ADD_THIRD}

_KILLED = """
import sys
from databases import open_database
from strandline.engine.layouts import migrate
from test_layouts import THIRD
migrate(open_database(sys.argv[1]), "notes", THIRD)
"""


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with closing(open_database(database_url)) as opened:
        yield opened


def notes(database: Database) -> list[tuple[str, ...]]:
    return database.fetch("SELECT * FROM notes ORDER BY note", {})


def version(database: Database, room: str = "notes") -> int:
    return int(dict(database.fetch("SELECT room, version FROM layouts", {}))[room])


def add(database: Database) -> None:
    database.transaction(lambda session: session.execute("INSERT INTO notes (note) VALUES ('a')"))


def test_an_empty_database_gets_the_newest_layout(database):
    """An empty database gets the newest layout in one step."""
    migrate(database, "notes", THIRD)
    assert notes(database) == [("third", "me")]
    assert version(database) == 3
    migrate(database, "notes", THIRD)
    assert notes(database) == [("third", "me")]


def test_an_older_layout_is_migrated_in_place(database):
    """A migration keeps the rows."""
    migrate(database, "notes", FIRST)
    add(database)
    migrate(database, "notes", SECOND)
    assert notes(database) == [("a", "nobody")]
    assert version(database) == 2


def test_a_newer_layout_is_refused_and_untouched(database):
    """The error says what to do."""
    migrate(database, "notes", SECOND)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"layout 2, this release knows 1.*upgrade"):
            migrate(database, "notes", FIRST)
    assert version(database) == 2


def test_rooms_of_one_database_have_versions_of_their_own(database):
    """Each room is migrated when it is opened."""
    migrate(database, "notes", SECOND)
    migrate(database, "others", {"create": "CREATE TABLE others (n INTEGER);"})
    assert (version(database), version(database, "others")) == (2, 1)


def test_tables_from_before_versions_were_kept_are_found(database):
    """`version_before` returns the layout of tables without a recorded version."""
    migrate(database, "others", FIRST)
    add(database)
    migrate(database, "notes", {**SECOND, "version_before": "SELECT 1"})
    assert notes(database) == [("a", "nobody")]


def test_a_migration_that_fails_changes_nothing(database):
    """A failed migration changes neither tables nor versions; the next start retries it."""
    migrate(database, "notes", FIRST)
    broken = {**SECOND, "migration_3": "INSERT INTO nowhere VALUES (1);"}
    for _ in range(2):
        with pytest.raises(Unavailable, match="nowhere"):
            migrate(database, "notes", broken)
    assert version(database) == 1
    migrate(database, "notes", THIRD)
    assert version(database) == 3


def test_processes_that_start_at_once_migrate_once(database_url):
    """One process migrates; the others wait and find the migration done."""
    with closing(open_database(database_url)) as first:
        migrate(first, "notes", FIRST)
    together = threading.Barrier(4)

    def start(_: int) -> None:
        with closing(open_database(database_url)) as opened:
            together.wait(30)
            migrate(opened, "notes", THIRD)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    with closing(open_database(database_url)) as last:
        assert notes(last) == [("third", "me")]


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_in_the_middle_is_harmless(database_url, step):
    """The start after a crash finds the old layout and migrates it."""
    with closing(open_database(database_url)) as database:
        migrate(database, "notes", FIRST)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, database_url],
        env=environment(
            STRANDLINE_TEST_FAILPOINT=f"layouts.migrated:kill:{step}",
            PYTHONPATH=os.pathsep.join(sys.path),
        ),
        check=False,
        capture_output=True,
    )
    assert done.returncode == -9, done.stderr
    with closing(open_database(database_url)) as database:
        migrate(database, "notes", THIRD)
        assert notes(database) == [("third", "me")]


def test_migrations_are_numbered_without_gaps(database):
    """A gap in the numbers is a programming error."""
    with pytest.raises(ValueError, match="numbered"):
        migrate(database, "notes", {"create": "SELECT 1", "migration_3": "SELECT 1"})


def test_a_file_of_its_own_keeps_its_version_in_the_file(tmp_path):
    """A topic's file stores its version in `user_version`."""
    with (
        closing(SqliteConnection(tmp_path / "a.db", create=True)) as file,
        closing(FileLock(tmp_path / "a.db.lock")) as turn,
    ):
        migrate_file(file, turn, FIRST)
        assert file.execute("SELECT * FROM sqlite_master") == [], "only `create_file` creates tables"
        create_file(file, FIRST)
        migrate_file(file, turn, THIRD)
        assert file.execute("SELECT * FROM notes") == [("third", "me")]
        assert file.execute("PRAGMA user_version") == [(3,)]
        with pytest.raises(Unavailable, match="upgrade"):
            migrate_file(file, turn, FIRST)
