"""The progress of a job. All jobs use one type, so code that shows progress depends on no job.

The process that runs a job shows its progress and stores it as text; `strandline pipeline status` reads the text
in another process, which may run another version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from strandline.clock import system_clock, to_rfc3339

_RATE_SECONDS = 1.0

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class JobProgress(msgspec.Struct, frozen=True):
    """The progress of a job on one event type.

    `lag` is the number of rows not processed yet, by partition. `details` are the fields that only this job has.
    `worked_at` is when a step for the event type last succeeded, empty if an older version reported the progress.
    """

    event_type: str
    rows: int
    rows_per_second: int
    lag: Mapping[str, int]
    details: Mapping[str, Any] = {}
    worked_at: str = ""

    def fields(self) -> dict[str, Any]:
        """The form of JSON and log lines: the details are on the same level as the common fields."""
        common = msgspec.structs.asdict(self)
        details = common.pop("details")
        return {**common, **details}


OnProgress = Callable[[JobProgress], None]


class JobState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job of `strandline up` does now; `detail` says why it does not run.

    A job that is `restarting` has failed and is started again by itself. A job that is `not_started` needs a
    change first.
    """

    job: str
    state: Literal["starting", "running", "restarting", "not_started", "stopped"]
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.state in {"restarting", "not_started"}


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a node that accepts requests; `degraded` if a job beside it does not run."""

    status: Literal["ready", "degraded"]
    jobs: list[JobState] = []


class Meter:
    """Measures the rate of each event type and keeps its latest progress."""

    def __init__(
        self, steady: Callable[[], float] = time.monotonic, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._steady = steady
        self._now_ms = now_ms or system_clock().now_ms
        self._marks: dict[str, tuple[float, int]] = {}
        self._latest: dict[str, JobProgress] = {}

    def measure(
        self, event_type: str, rows: int, lag: Mapping[int, int], *, worked: bool = True, **details: Any
    ) -> JobProgress:
        """The progress after a step, which succeeded if `worked`. The rate changes at most once a second."""
        now = self._steady()
        since, before = self._marks.setdefault(event_type, (now, rows))
        latest = self._latest.get(event_type)
        rate = latest.rows_per_second if latest else 0
        if now - since >= _RATE_SECONDS:
            rate = round((rows - before) / (now - since))
            self._marks[event_type] = (now, rows)
        by_name = {str(partition): count for partition, count in lag.items()}
        last_worked_at = latest.worked_at if latest else ""
        worked_at = to_rfc3339(self._now_ms()) if worked else last_worked_at
        self._latest[event_type] = JobProgress(event_type, rows, rate, by_name, details, worked_at)
        return self._latest[event_type]

    def forget(self, event_type: str) -> None:
        """Drop an event type that another process handles now."""
        self._marks.pop(event_type, None)
        self._latest.pop(event_type, None)

    @property
    def text(self) -> str:
        """The latest progress of every event type, for `parse`."""
        return msgspec.json.encode([one.fields() for one in [*self._latest.values()]]).decode()


def parse(text: str) -> list[JobProgress]:
    """Parse `Meter.text`. Empty if the text is empty or in a form that this version does not know."""
    try:
        return [_from_fields(fields) for fields in _decode(text or "[]")]
    except msgspec.MsgspecError:
        return []


def _from_fields(fields: dict[str, Any]) -> JobProgress:
    common = {name: fields.pop(name) for name in JobProgress.__struct_fields__ if name in fields}
    return msgspec.convert({**common, "details": fields}, JobProgress)
