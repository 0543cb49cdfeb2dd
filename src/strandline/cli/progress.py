"""How far jobs are: bars on a terminal, log lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from strandline.archive.progress import Progress
from strandline.cli import output
from strandline.logs import fields

log = logging.getLogger(__name__)

Told = Callable[[Progress], None]

_LOG_EVERY_SECONDS = 10.0


@contextmanager
def telling(*, as_json: bool) -> Iterator[Told]:
    """Where jobs report to."""
    console = Console(stderr=True)
    if as_json:
        yield _Changes(output.print_json)
    elif console.is_terminal:
        with _Lines(console) as lines:
            yield lines.show
    else:
        yield _Changes(_log, _LOG_EVERY_SECONDS)


def _log(progress: Progress) -> None:
    log.info("progress", extra=fields(**msgspec.structs.asdict(progress)))


class _Changes:
    """Tells only what is new, and not too often."""

    def __init__(self, show: Told, every_seconds: float = 0.0) -> None:
        self._show = show
        self._every = every_seconds
        self._last: dict[str, tuple[float, Progress]] = {}

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        before = self._last.get(progress.event_type)
        if before is None or (progress != before[1] and now - before[0] >= self._every):
            self._last[progress.event_type] = (now, progress)
            self._show(progress)


class _Lines:
    """One for every event type: collected of what there is."""

    def __init__(self, console: Console) -> None:
        numbers = "{task.fields[rate]:>9,} rows/s  lag {task.fields[lag]:,}  shift {task.fields[shift]}"
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(numbers))
        self._bars = Bars(*columns, TextColumn("last flag {task.fields[flag]}"), console=console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: Progress) -> None:
        lag = sum(progress.lag.values())
        values: dict[str, Any] = {"rate": progress.rows_per_second, "lag": lag, "shift": progress.shift}
        values["flag"] = progress.last_flag[:13] if progress.last_flag else "–"
        if progress.event_type not in self._tasks:
            self._tasks[progress.event_type] = self._bars.add_task(progress.event_type, **values)
        done = progress.rows or int(not lag)
        self._bars.update(self._tasks[progress.event_type], total=done + lag, completed=done, **values)
