"""The job `fanout`: posts reach the feeds of followers. The feeds room does the work, Spark its deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline import progress
from strandline.config import declared_in
from strandline.feeds.fanout.values import FanoutOptions
from strandline.pipeline.job import Job, JobContext, ProcessProgress

if TYPE_CHECKING:
    from strandline.platform import Platform


def _run(context: JobContext) -> None:
    from strandline.pipeline.tasks import SparkDelivery  # noqa: PLC0415 - needs Spark

    process = context.platform.feeds.fanouts.process(
        FanoutOptions(**context.options), SparkDelivery(context.spark)
    )
    if context.once:
        process.once(context.on_progress)
    else:
        process.run(context.stop, context.on_progress)


def _check(_: Platform, options: Mapping[str, Any]) -> None:
    FanoutOptions(**options).check()


def _status(platform: Platform) -> list[ProcessProgress]:
    reports = platform.feeds.fanouts.progress()
    return [ProcessProgress(owner, progress.parse(text)) for owner, text in reports.items()]


JOB = Job(
    "fanout",
    "Deliver posts to the home feeds of followers, and follows and unfollows with their history.",
    _run,
    _status,
    check=_check,
    under_up=lambda options: bool(options["posts"] or options["follows"]),
    details={
        "entries": "writes to home feeds that this process has made",
        "queued": "posts of authors with very many followers that are not delivered to all of them yet",
        "dead_letters": "records that this process could not read and has set aside",
    },
    options=[*declared_in("fanout", FanoutOptions)],
)
