"""The archive room as its users see it: which hours are complete, and whether their files are in order.

One contract, kept in process (`local.py`) and over HTTP (`client/archive.py`). It only reads. What publishes
events or changes the archive needs the data directory, so it belongs to `LocalArchive` alone.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal

import msgspec

from strandline.archive.flags import Manifest
from strandline.archive.model import DAY_MS, Counts, HourName, hour_name, parse_hour
from strandline.errors import Conflict, Invalid, Unavailable

#: `ready`: its `_READY` is in the files. `due`: it has ended and `reason` says what is missing. `open`: not ended.
HourState = Literal["ready", "due", "open"]

#: The longest time that one call of `Archive.hour` waits, and the longest span of periods in one HTTP request.
MAX_WAIT_MS = 60_000
MAX_PERIODS_MS = 31 * DAY_MS

_POLL_SECONDS = 1.0
_LAST_HOUR_MS = parse_hour("9999-12-31T23")
# How long `wait` retries while a server or a ledger is unavailable.
_RETRY_SECONDS = 60.0


class HourStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one hour; `revision` is that of its newest flag, 0 if it has none."""

    hour: str
    state: HourState
    revision: int = 0
    reason: str = ""


class HourReport(HourStatus, frozen=True, omit_defaults=True):
    """The same with the content of `_READY`, if the hour is ready."""

    manifest: Manifest | None = None


class HourCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a comparison of an hour's files with its flag and the ledger found.

    `files` and `rows` were checked. `next` is set if files are left: pass it to the next `check` of the hour.
    """

    event_type: str
    hour: str
    revision: int
    files: int
    rows: int
    problems: tuple[str, ...]
    next: str = ""

    @property
    def ok(self) -> bool:
        return not self.problems

    def __add__(self, other: HourCheck) -> HourCheck:
        """Both parts of the same revision as one check."""
        return msgspec.structs.replace(
            other,
            files=self.files + other.files,
            rows=self.rows + other.rows,
            problems=self.problems + other.problems,
        )


class PartitionStatus(msgspec.Struct, frozen=True):
    """Up to where a partition is archived, and its last finished shift."""

    partition: str
    cursor: str
    max_timestamp: str | None
    shift: int
    unarchived_events: int | None


class ArchiveStatus(msgspec.Struct, frozen=True):
    """One event type. `lag` counts events that are not archived yet, None if the event type does not exist.

    `due` lists the oldest hours that are due, at most 24 of them; `due_hours` counts all. `worked_at` is when an
    archive process last published or recorded something: while one runs, at least once in every shift.
    """

    event_type: str
    epoch: int
    retired: bool
    last_ready: str | None
    lag: int | None
    due_hours: int
    due: tuple[HourStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    counts: Counts
    worked_at: str | None = None


class PeriodStatus(msgspec.Struct, frozen=True):
    """A flagged directory that holds the directories of event types or of hours."""

    path: str
    start: str
    revision: int


class Archive(ABC):
    """What is archived. Thread-safe and synchronous. An hour is `2026-11-15T12`, UTC, or an aware datetime.

    Spans run from `start` to `end`, which is not included; Invalid if `start` is after `end`. NotFound if the
    archive has never archived the event type.
    """

    @abstractmethod
    def status(self) -> list[ArchiveStatus]:
        """Every event type that is or was archived, by name; empty if no archive process has run yet."""

    @abstractmethod
    def hours(
        self,
        event_type: str,
        start: HourName | None = None,
        end: HourName | None = None,
        state: HourState | None = None,
    ) -> Iterator[HourStatus]:
        """The hours for which the event type is configured, oldest first, up to the current one."""

    @abstractmethod
    def hour(self, event_type: str, hour: HourName, wait_ms: int = 0) -> HourReport:
        """One hour. With `wait_ms`, returns when it is ready or that time is over; Invalid above `MAX_WAIT_MS`.

        NotFound if the event type is not configured for that hour. Hours of the future are `open`.
        """

    @abstractmethod
    def is_ready(self, event_type: str, hour: HourName) -> bool:
        """Whether an hour is ready; cheaper than `hour`. NotFound as there."""

    @abstractmethod
    def check(self, event_type: str, hour: HourName, after: str = "") -> HourCheck:
        """Compare files of a ready hour with its flag and the ledger, for a few seconds, in the order of names.

        Begins after the file named `after`. Conflict if the hour is not ready. `verify` checks whole hours.
        """

    @abstractmethod
    def periods(self, start: HourName, end: HourName) -> Iterator[PeriodStatus]:
        """The flagged hours and days that begin in the span, by time and path."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""

    def manifest(self, event_type: str, hour: HourName) -> Manifest:
        """The content of the hour's `_READY`. Conflict, with the reason, if the hour is not ready."""
        report = self.hour(event_type, hour)
        if report.manifest is None:
            raise Conflict(_not_ready(event_type, report))
        return report.manifest

    def wait(self, event_type: str, hour: HourName, timeout: float | None = None) -> Manifest:
        """The manifest of an hour as soon as it is ready.

        Unavailable, with the reason, if it is not ready after `timeout` seconds; without one it waits forever.
        Interruptions of up to a minute, such as the restart of a server, are retried.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        give_up = math.inf
        while True:
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            try:
                report = self.hour(event_type, hour, int(min(left_ms, MAX_WAIT_MS / 2)))
            except Unavailable:
                give_up = min(give_up, time.monotonic() + _RETRY_SECONDS)
                if time.monotonic() >= min(deadline, give_up):
                    raise
            else:
                give_up = math.inf
                if report.manifest is not None:
                    return report.manifest
                if time.monotonic() >= deadline:
                    raise Unavailable(f"{_not_ready(event_type, report)} (waited {timeout:g} s)")
            time.sleep(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))

    def verify(
        self, event_type: str, start: HourName | None = None, end: HourName | None = None
    ) -> Iterator[HourCheck]:
        """Check all files of every ready hour of the span, oldest first."""
        return (self._verified(event_type, ready.hour) for ready in self.hours(event_type, start, end, "ready"))

    def _verified(self, event_type: str, hour: str) -> HourCheck:
        found = self.check(event_type, hour)
        while found.next:
            part = self.check(event_type, hour, found.next)
            # Late files have changed the list of files: begin again.
            found = found + part if part.revision == found.revision else self.check(event_type, hour)
        return found


def _not_ready(event_type: str, report: HourStatus) -> str:
    reason = report.reason or "it has not ended yet"
    return f"hour {report.hour} of event type {event_type!r} is not ready: {reason}"


def parse_span(start: HourName | None, end: HourName | None) -> tuple[int, int]:
    """Both ends in milliseconds; None leaves a side open. Invalid if the span ends before it starts."""
    from_ms = 0 if start is None else parse_hour(start)
    to_ms = _LAST_HOUR_MS if end is None else parse_hour(end)
    if from_ms > to_ms:
        raise Invalid(f"the span ends ({hour_name(to_ms)}) before it starts ({hour_name(from_ms)})")
    return from_ms, to_ms
