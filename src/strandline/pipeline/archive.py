"""The job `archive`: the log as hourly files with flags. The archive room does the work, Spark runs its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline import progress
from strandline.pipeline.job import Job, JobContext, ProcessProgress

if TYPE_CHECKING:
    from strandline.platform import Platform


def _run(context: JobContext) -> None:
    from strandline.pipeline.tasks import SparkRunner  # noqa: PLC0415 - needs Spark

    process = context.platform.archive.process(SparkRunner(context.spark))
    if context.once:
        process.once(context.on_progress)
    else:
        process.run(context.stop, context.on_progress)


def _status(platform: Platform) -> list[ProcessProgress]:
    reports = platform.archive.processes()
    return [ProcessProgress(owner, progress.parse(text)) for owner, text in reports.items()]


JOB = Job(
    "archive",
    "Write event types into hourly Parquet files, with flags for complete hours.",
    _run,
    _status,
    check=lambda platform, _: platform.archive.process(),
    under_up=lambda _: True,
    details={
        "shift": "number of the newest shift that collects rows",
        "last_flag": "start of the newest hour with a flag; null if there is none",
    },
)
