"""SQL lives in `.sql` files, in blocks that start with `-- name: <identifier>`.

A block is for every database, or for one dialect: `-- name: <identifier> (postgres)`. Statements are written in
PostgreSQL's form with named parameters, `:name`; `= ANY (:name)` compares with each item of a list. `load`
translates these, and the few forms that SQLite does not know, for the dialect. So most statements and all tables
are written once.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Literal

Dialect = Literal["sqlite", "postgres"]

_BLOCK = re.compile(r"^-- name: (\w+)(?: \((sqlite|postgres)\))?[ \t]*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_ANY = re.compile(r"= ANY \(:(\w+)\)")
# Not the second colon of a cast like `x::bigint`.
_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_SQLITE_FORMS = {
    "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY": "INTEGER PRIMARY KEY AUTOINCREMENT",
    ' COLLATE "C"': "",  # SQLite compares bytes anyway
    "TEXT[]": "TEXT",  # JSON, like the parameters that are lists
    " FOR NO KEY UPDATE": "",  # a transaction that writes locks the whole file
    # A lease expires on the server's clock, or on the clock of the machine, whose time is always given.
    "coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)": ":now_ms",
}


def load(package: str, file: str, dialect: Dialect) -> dict[str, str]:
    """The statements of a `.sql` file beside the modules of `package`, by name, for one dialect."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    blocks: dict[str, str] = {}
    parts = _BLOCK.split(text)
    for name, only, block in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if only not in {None, dialect}:
            continue
        if name in blocks:
            raise ValueError(f"{file} of {package} has two blocks named {name} for {dialect}")
        blocks[name] = _translated(block, dialect)
    return blocks


def _translated(block: str, dialect: Dialect) -> str:
    statement = _COMMENT.sub("", block).strip()
    if dialect == "postgres":
        return _PARAMETER.sub(r"%(\1)s", statement.replace(" WITHOUT ROWID", ""))
    for theirs, ours in _SQLITE_FORMS.items():
        statement = statement.replace(theirs, ours)
    return _ANY.sub(r"IN (SELECT value FROM json_each(:\1))", statement)
