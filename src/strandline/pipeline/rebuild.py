"""The job `rebuild`: feeds from the archive, the log and the follow graph. The feeds room does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline import progress
from strandline.config import Setting
from strandline.pipeline.job import Job, JobContext, ProcessProgress

if TYPE_CHECKING:
    from strandline.platform import Platform


def _run(context: JobContext) -> None:
    from strandline.feeds.fanout.rebuild import RebuildOptions  # noqa: PLC0415 - needs Arrow
    from strandline.pipeline.tasks import SparkRestore  # noqa: PLC0415 - needs Spark

    platform = context.platform
    rebuild = platform.feeds.fanouts.rebuild(platform.archive.values_before)
    rebuild.run(RebuildOptions(**context.options), SparkRestore(context.spark), context.stop, context.on_progress)


def _check(_: Platform, options: Mapping[str, Any]) -> None:
    from strandline.feeds.fanout.rebuild import RebuildOptions  # noqa: PLC0415 - needs Arrow

    RebuildOptions(**options).check()


def _status(platform: Platform) -> list[ProcessProgress]:
    reports = platform.feeds.fanouts.rebuilds()
    return [ProcessProgress(owner, progress.parse(text)) for owner, text in reports.items()]


JOB = Job(
    "rebuild",
    "Set home feeds from the archive, the log and the follow graph, after the store was lost; then end.",
    _run,
    _status,
    check=_check,
    details={"authors": "feeds of authors that were restored"},
    options=[
        Setting("rebuild", "users", str, "*", "Users whose home feeds are set, with commas between; `*` for all."),
        Setting(
            "rebuild",
            "authors",
            bool,
            True,
            "Restore the feeds of authors first. With `false`, the store must still have them.",
        ),
    ],
)
