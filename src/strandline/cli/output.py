"""Results for people (tables) and for machines (JSON)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d|w)?", re.ASCII)
# In a pipe, cells are neither cut off nor wrapped.
_PIPE_WIDTH = 10_000


def print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str = "") -> None:
    """Print a table, or the text `empty` if there are no rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    if table.row_count:
        Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)
    else:
        print(empty)


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 row`, `2,000 rows`, `0 entries`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def duration_text(ms: int | None) -> str | None:
    """`172800000` as `2d`: the largest unit that divides it."""
    if ms is None:
        return None
    unit = max((unit for unit, size in _UNITS_MS.items() if ms % size == 0), key=_UNITS_MS.__getitem__)
    return f"{ms // _UNITS_MS[unit]}{unit}"


def to_ms(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """An option's callback: `2d`, `36h`, `90m`, `5s` or plain milliseconds as milliseconds."""
    if value is None:
        return None
    match = _DURATION.fullmatch(value)
    if match is None:
        text = f"{value!r} is not a duration; use one like 2d, 36h, 90m, 10s or milliseconds"
        raise click.BadParameter(text, ctx, param)
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]
