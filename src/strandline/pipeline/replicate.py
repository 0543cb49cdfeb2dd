"""The job `replicate`: applies the actions of journals to the store. The journal room does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline import progress
from strandline.pipeline.job import Job, JobContext, ProcessProgress

if TYPE_CHECKING:
    from strandline.platform import Platform


def _run(context: JobContext) -> None:
    from strandline.pipeline.tasks import SparkReplication  # noqa: PLC0415 - needs Spark

    process = context.platform.journals.replicators.process(SparkReplication(context.spark))
    if context.once:
        process.once(context.on_progress)
    else:
        process.run(context.stop, context.on_progress)


def _status(platform: Platform) -> list[ProcessProgress]:
    reports = platform.journals.replicators.progress()
    return [ProcessProgress(owner, progress.parse(text)) for owner, text in reports.items()]


JOB = Job(
    "replicate",
    "Apply the actions of journals to their store.",
    _run,
    _status,
    under_up=lambda _: True,
    details={
        "dead_letters": "records that this process could not decode and has set aside",
        "skipped": "records without a key or an action of journals, which this process has left out",
    },
)
