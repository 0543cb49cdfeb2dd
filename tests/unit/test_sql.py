"""Named blocks of SQL files, for each dialect."""

from __future__ import annotations

import re
import sys
from importlib import resources
from pathlib import Path

import pytest

from strandline.engine import process_leases, sql

ROOMS = [
    ("strandline.log.catalog", "catalog.sql"),
    ("strandline.log.subscriptions", "subscriptions.sql"),
    ("strandline.archive.ledger", "ledger.sql"),
    ("strandline.schedule.storage", "schedule.sql"),
    ("strandline.schedule.storage", "relays.sql"),
    ("strandline.journal.storage", "journal.sql"),
    ("strandline.journal", "replicators.sql"),
    ("strandline.feeds", "dead_letters.sql"),
    ("strandline.feeds.fanout", "fanout.sql"),
    ("strandline.feeds.storage", "feeds.sql"),
]
ALONE = [
    ("strandline.log.storage", "topic_file.sql"),
    ("strandline.coordination", "coordination.sql"),
    ("strandline.schedule.storage", "combined.sql"),
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "statements").mkdir()
    (tmp_path / "statements" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "statements", raising=False)
    return tmp_path / "statements"


def test_blocks_are_found_by_name(package):
    """A block ends where the next one begins. Comments and surrounding whitespace are dropped."""
    (package / "a.sql").write_text(
        "-- about this file\n\n-- name: one\n-- why: so\nSELECT 1;\n\n-- name: two\nSELECT\n 2;\n",
        encoding="utf-8",
    )
    assert sql.load("statements", "a.sql", "sqlite") == {"one": "SELECT 1;", "two": "SELECT\n 2;"}


def test_a_block_may_be_for_one_dialect(package):
    """The other dialect does not load the block."""
    text = "-- name: one (sqlite)\nSELECT 1;\n-- name: one (postgres)\nSELECT 2;\n-- name: two\nSELECT 3;\n"
    (package / "a.sql").write_text(text, encoding="utf-8")
    assert sql.load("statements", "a.sql", "sqlite") == {"one": "SELECT 1;", "two": "SELECT 3;"}
    assert sql.load("statements", "a.sql", "postgres") == {"one": "SELECT 2;", "two": "SELECT 3;"}


def test_parameters_are_written_once(package):
    """Named parameters and lists are translated for each driver; casts do not change."""
    text = "-- name: one\nSELECT a::bigint FROM t WHERE b = :b AND c = ANY (:ids);\n"
    (package / "a.sql").write_text(text, encoding="utf-8")
    assert sql.load("statements", "a.sql", "postgres")["one"] == (
        "SELECT a::bigint FROM t WHERE b = %(b)s AND c = ANY (%(ids)s);"
    )
    assert sql.load("statements", "a.sql", "sqlite")["one"] == (
        "SELECT a::bigint FROM t WHERE b = :b AND c IN (SELECT value FROM json_each(:ids));"
    )


def test_parts_are_inserted_where_they_are_named(package):
    """A part may contain parts, and may be for one dialect. Other text in braces stays."""
    text = (
        "-- part: who (sqlite)\nname = :name\n-- part: who (postgres)\nname = :name::text\n"
        "-- part: when\nat > 5 AND {who}\n-- name: one\nSELECT '{who_else}' FROM t WHERE {when};\n"
    )
    (package / "a.sql").write_text(text, encoding="utf-8")
    assert sql.load("statements", "a.sql", "sqlite") == {
        "one": "SELECT '{who_else}' FROM t WHERE at > 5 AND name = :name;"
    }
    assert sql.load("statements", "a.sql", "postgres") == {
        "one": "SELECT '{who_else}' FROM t WHERE at > 5 AND name = %(name)s::text;"
    }


def test_blocks_of_the_engine_are_included(package):
    """The including file says with its parts which tables the statements use."""
    parts = "-- part: processes\nworkers\n-- part: leases\nwork\n-- part: progress\ntext\n"
    (package / "a.sql").write_text(f"-- include: process_leases.sql\n\n{parts}", encoding="utf-8")
    found = sql.load("statements", "a.sql", "sqlite")
    assert found["leave"] == "DELETE FROM workers WHERE owner = :owner;"
    assert not [statement for statement in found.values() if "{" in statement]


def test_a_percent_sign_is_an_operator(package):
    """The driver of PostgreSQL reads a single one as a placeholder if the statement has parameters."""
    text = "-- name: one\nSELECT :a % 7;\n-- name: two\nSELECT 8 % 7;\n"
    (package / "a.sql").write_text(text, encoding="utf-8")
    assert sql.load("statements", "a.sql", "postgres") == {"one": "SELECT %(a)s %% 7;", "two": "SELECT 8 % 7;"}
    assert sql.load("statements", "a.sql", "sqlite") == {"one": "SELECT :a % 7;", "two": "SELECT 8 % 7;"}


@pytest.mark.parametrize("second", ["one", "one (sqlite)"])
def test_a_name_used_twice_is_a_mistake(package, second):
    """The second block would replace the first, so loading fails."""
    text = f"-- name: one\nSELECT 1;\n-- name: {second}\nSELECT 2;\n"
    (package / "twice.sql").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="one"):
        sql.load("statements", "twice.sql", "sqlite")


@pytest.mark.parametrize(("package", "file"), ROOMS)
def test_both_dialects_have_the_same_statements(package, file):
    """One adapter class runs the statements of both dialects by name."""
    assert sql.load(package, file, "sqlite").keys() == sql.load(package, file, "postgres").keys()


@pytest.mark.parametrize(("package", "file"), [*ROOMS, *ALONE])
def test_every_block_of_ours_is_used(package, file):
    """A statement that no code runs is dead code."""
    used = "".join(
        file.read_text(encoding="utf-8")
        for file in resources.files(package).iterdir()
        if file.name.endswith(".py")
    )
    if "ProcessLeases" in used:  # it runs statements of each room that has processes
        used += Path(process_leases.__file__).read_text(encoding="utf-8")
    names = sql.load(package, file, "sqlite")
    own = [name for name in names if not re.fullmatch(r"create|migration_\d+|version_before", name)]
    assert [name for name in own if f'"{name}"' not in used] == []
