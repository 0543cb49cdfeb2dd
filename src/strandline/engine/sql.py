"""SQL lives in `.sql` files, in blocks that start with `-- name: <identifier>`.

A block is for every database, or for one dialect: `-- name: <identifier> (postgres)`. Statements are written in
PostgreSQL's form with named parameters, `:name`; `= ANY (:name)` compares with each item of a list. `load`
translates these, and the few forms that SQLite does not know, for the dialect. So most statements and all tables
are written once. Text that several statements have in common is a part, `-- part: <identifier>`, which statements
and other parts contain as `{<identifier>}`. `-- include: <file>` adds the blocks of a file of `engine`.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Literal

Dialect = Literal["sqlite", "postgres", "cassandra"]

_BLOCK = re.compile(r"^-- (name|part): (\w+)(?: \((sqlite|postgres)\))?[ \t]*$", re.MULTILINE)
_INCLUDE = re.compile(r"^-- include: (\S+)$", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_ANY = re.compile(r"= ANY \(:(\w+)\)")
# Not the second colon of a cast like `x::bigint`.
_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_SQLITE_FORMS = {
    "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY": "INTEGER PRIMARY KEY AUTOINCREMENT",
    ' COLLATE "C"': "",  # SQLite compares bytes anyway
    "BYTEA": "BLOB",
    "TEXT[]": "TEXT",  # JSON, like the parameters that are lists
    " FOR NO KEY UPDATE": "",  # a transaction that writes locks the whole file
    " FOR SHARE OF f": "",
    # A lease expires on the server's clock, or on the clock of the machine, whose time is always given.
    "coalesce(:now_ms::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)": ":now_ms",
}


def load(package: str, file: str, dialect: Dialect) -> dict[str, str]:
    """The statements of a `.sql` file beside the modules of `package`, by name, for one dialect."""
    text = _text(package, file)
    text += "".join(_text("strandline.engine", included) for included in _INCLUDE.findall(text))
    blocks: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    pieces = _BLOCK.split(text)
    for kind, name, only, block in zip(*(pieces[first::4] for first in range(1, 5)), strict=True):
        if only not in {None, dialect}:
            continue
        if name in blocks[kind]:
            raise ValueError(f"{file} of {package} has two blocks named {name} for {dialect}")
        blocks[kind][name] = _COMMENT.sub("", block).strip()
    return {name: _translated(_filled(block, blocks["part"]), dialect) for name, block in blocks["name"].items()}


def _text(package: str, file: str) -> str:
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")


def _filled(block: str, parts: dict[str, str]) -> str:
    """The block with the text of its parts. Other text in braces, like an array, stays as it is."""
    return _PART.sub(lambda match: _filled(parts[match[1]], parts) if match[1] in parts else match[0], block)


def _translated(statement: str, dialect: Dialect) -> str:
    if dialect == "cassandra":
        return statement  # its statements are in files of their own
    if dialect == "postgres":
        statement = statement.replace(" WITHOUT ROWID", "")
        # The driver looks for its placeholders only in statements with parameters.
        escaped = statement.replace("%", "%%") if _PARAMETER.search(statement) else statement
        return _PARAMETER.sub(r"%(\1)s", escaped)
    for theirs, ours in _SQLITE_FORMS.items():
        statement = statement.replace(theirs, ours)
    return _ANY.sub(r"IN (SELECT value FROM json_each(:\1))", statement)
