"""What a job is. A job is one module with one `Job` value, listed in `registry.py`.

The command line, its help, `status` and the reference pages are made from that list, without Spark and Arrow: a
job's module imports both inside its `run`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strandline.config import Setting
from strandline.progress import JobProgress, OnProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.platform import Platform


@dataclass(frozen=True)
class JobContext:
    """The context of a run. With `once` the job processes the current records; otherwise it runs until `stop`."""

    platform: Platform
    spark: SparkSession
    stop: threading.Event
    once: bool
    on_progress: OnProgress
    options: Mapping[str, Any]


@dataclass(frozen=True)
class ProcessProgress:
    """A process that runs a job now, and its latest progress, one for each event type."""

    process: str
    progress: Sequence[JobProgress]


@dataclass(frozen=True)
class Job:
    """A job of `strandline pipeline`.

    `run` returns when the job has ended, and may be killed at any time. `status` lists the processes that run the
    job now, on any machine. `check` raises Invalid if the settings or the options do not allow a run; it is
    called before Spark starts. `details` says what each key of `JobProgress.details` means. `options` belong to
    one run: each is a flag of `strandline pipeline run` and a member of `JobContext.options`. Options that are
    settings, too, can also come from the environment and the settings file.
    `under_up` says whether `strandline up` runs the job with these options, until it is stopped; None: never.
    """

    name: str
    summary: str
    run: Callable[[JobContext], None]
    status: Callable[[Platform], Sequence[ProcessProgress]]
    check: Callable[[Platform, Mapping[str, Any]], object] = lambda _, __: None
    details: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[Setting] = ()
    under_up: Callable[[Mapping[str, Any]], bool] | None = None
