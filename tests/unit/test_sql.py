"""Named blocks of SQL files."""

from __future__ import annotations

import sys
from importlib import resources

import pytest

from strandline.engine import sql


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "statements").mkdir()
    (tmp_path / "statements" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "statements", raising=False)
    return tmp_path / "statements"


def test_blocks_are_found_by_name(package):
    """From one name to the next, comments kept, surrounding space dropped."""
    (package / "a.sql").write_text(
        "-- about this file\n\n-- name: one\n-- why\nSELECT 1;\n\n-- name: two\nSELECT\n 2;\n", encoding="utf-8"
    )
    assert sql.load("statements", "a.sql") == {"one": "-- why\nSELECT 1;", "two": "SELECT\n 2;"}


def test_a_name_used_twice_is_a_mistake(package):
    """Otherwise the second block would hide the first."""
    (package / "twice.sql").write_text("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n", encoding="utf-8")
    with pytest.raises(ValueError, match="one"):
        sql.load("statements", "twice.sql")


@pytest.mark.parametrize("room", ["storage", "catalog"])
def test_every_block_of_ours_is_used(room):
    """A statement that nobody runs is dead code."""
    package = f"strandline.log.{room}"
    used = "".join(
        file.read_text(encoding="utf-8")
        for file in resources.files(package).iterdir()
        if file.name.endswith(".py")
    )
    assert [name for name in sql.load(package, "sqlite.sql") if f'_SQL["{name}"]' not in used] == []
