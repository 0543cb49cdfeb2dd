"""How far the archive is, for people: shown where it runs, read from the ledger everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from strandline.archive.archiver import Report
from strandline.clock import to_rfc3339

_PAUSE_SECONDS = 1.0


class Progress(msgspec.Struct, frozen=True):
    """Of an event type: rows collected so far, and how many are not yet, by partition."""

    event_type: str
    rows: int
    rows_per_second: int
    lag: Mapping[str, int]
    shift: int
    last_flag: str | None


_all = msgspec.json.Decoder(list[Progress])


class Meter:
    """Makes progress of reports; what it last made of each event type is its text."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._marks: dict[str, tuple[float, int]] = {}
        self._latest: dict[str, Progress] = {}

    def measured(self, report: Report) -> Progress:
        name, now = report.event_type, self._steady()
        since, rows = self._marks.setdefault(name, (now, report.rows))
        rate = self._latest[name].rows_per_second if name in self._latest else 0
        if now - since >= _PAUSE_SECONDS:
            rate = round((report.rows - rows) / (now - since))
            self._marks[name] = (now, report.rows)
        lag = {str(partition): count for partition, count in report.lag.items()}
        flag = to_rfc3339(report.flagged_ms) if report.flagged_ms >= 0 else None
        self._latest[name] = Progress(name, report.rows, rate, lag, report.shift, flag)
        return self._latest[name]

    def forget(self, event_type: str) -> None:
        """It is another process's now."""
        self._marks.pop(event_type, None)
        self._latest.pop(event_type, None)

    @property
    def text(self) -> str:
        return msgspec.json.encode([*self._latest.values()]).decode()


def parse(text: str) -> list[Progress]:
    return _all.decode(text) if text else []
