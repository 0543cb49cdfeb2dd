"""Shows the progress of jobs: bars on a terminal, log lines elsewhere, JSON lines with --json."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from strandline.cli import output
from strandline.logging_setup import fields
from strandline.progress import JobProgress

log = logging.getLogger(__name__)

#: Called with the name of a job and its progress.
ShowProgress = Callable[[str, JobProgress], None]

_LOG_EVERY_SECONDS = 10.0


@contextmanager
def shown(*, as_json: bool) -> Iterator[ShowProgress]:
    """What a running job calls to show its progress."""
    console = Console(stderr=True)
    if as_json:
        yield _Changes(lambda job, progress: output.print_json({"job": job, **progress.fields()}))
    elif console.is_terminal:
        with _Bars(console) as bars:
            yield bars.show
    else:
        yield _Changes(_log, _LOG_EVERY_SECONDS)


def label(detail: str) -> str:
    """The name of a detail, for people: `last_flag` is `last flag`."""
    return detail.replace("_", " ")


def detail_texts(progress: JobProgress) -> list[str]:
    """The details, each with its name."""
    return [f"{label(name)} {_short(value)}" for name, value in progress.details.items()]


def _log(job: str, progress: JobProgress) -> None:
    log.info("progress", extra=fields(job=job, **progress.fields()))


class _Changes:
    """Passes on a progress that differs from the last one, at most once in `every_seconds` for each event type."""

    def __init__(self, show: ShowProgress, every_seconds: float = 0.0) -> None:
        self._show = show
        self._every = every_seconds
        self._last: dict[tuple[str, str], tuple[float, JobProgress]] = {}
        # Jobs report from their own threads; `print` writes a line and its end separately.
        self._lock = threading.Lock()

    def __call__(self, job: str, progress: JobProgress) -> None:
        key, now = (job, progress.event_type), time.monotonic()
        compared = msgspec.structs.replace(progress, worked_at="")  # also a step without work sets it
        with self._lock:
            before = self._last.get(key)
            if before is None or (compared != before[1] and now - before[0] >= self._every):
                self._last[key] = (now, compared)
                self._show(job, progress)


class _Bars(Progress):
    """One bar for each job and event type: the rows that are done, of all rows."""

    def __init__(self, console: Console) -> None:
        numbers = "{task.fields[rate]:>9,} rows/s  lag {task.fields[lag]:,}  {task.fields[details]}"
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(numbers))
        super().__init__(*columns, console=console)
        self._bars: dict[tuple[str, str], TaskID] = {}

    def show(self, job: str, progress: JobProgress) -> None:
        key, lag = (job, progress.event_type), sum(progress.lag.values())
        details = "  ".join(detail_texts(progress))
        values: dict[str, Any] = {"rate": progress.rows_per_second, "lag": lag, "details": details}
        if key not in self._bars:
            self._bars[key] = self.add_task(f"{job} {progress.event_type}", **values)
        done = progress.rows or int(not lag)
        self.update(self._bars[key], total=done + lag, completed=done, **values)


def _short(value: object) -> str:
    """A bar has little room: a time at a full minute is shown without its seconds."""
    return "–" if value is None else str(value).removesuffix(":00.000Z")
