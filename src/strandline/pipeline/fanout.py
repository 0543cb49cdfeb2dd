"""The job `fanout`: posts reach the feeds of followers. The feeds room does the work, Spark its deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline import progress
from strandline.config import Setting
from strandline.pipeline.job import Job, JobContext, ProcessProgress

if TYPE_CHECKING:
    from strandline.platform import Platform


def _run(context: JobContext) -> None:
    from strandline.feeds.fanout.values import FanoutOptions  # noqa: PLC0415 - needs Arrow
    from strandline.pipeline.tasks import SparkDelivery  # noqa: PLC0415 - needs Spark

    process = context.platform.feeds.fanouts.process(
        FanoutOptions(**context.options), SparkDelivery(context.spark)
    )
    if context.once:
        process.once(context.on_progress)
    else:
        process.run(context.stop, context.on_progress)


def _check(_: Platform, options: Mapping[str, Any]) -> None:
    from strandline.feeds.fanout.values import FanoutOptions  # noqa: PLC0415 - needs Arrow

    FanoutOptions(**options).check()


def _status(platform: Platform) -> list[ProcessProgress]:
    reports = platform.feeds.fanouts.progress()
    return [ProcessProgress(owner, progress.parse(text)) for owner, text in reports.items()]


def _option(name: str, default: Any, text: str) -> Setting:
    return Setting("fanout", name, type(default), default, text)


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
    options=[
        _option("posts", "", "Event type of posts: events with `author`, `id`, and `metadata` or `deleted`."),
        _option(
            "follows",
            "",
            "Event type of follows: events with `follower`, `author` and `action`, `follow` or `unfollow`.",
        ),
        _option("home", "home:", "Prefix of the names of home feeds."),
        _option("recent", "posts:", "Prefix of the names of the feeds with an author's own entries."),
        _option("metadata", "metadata", "Field of a post that becomes the metadata of its entry."),
        _option("threshold", 50_000, "Authors with more followers are delivered in chunks, beside the others."),
        _option("chunk", 10_000, "Followers of such an author that one task of a batch reaches."),
        _option("batch", 1_000, "Most records of each event type in a batch."),
        _option(
            "lost",
            "stop",
            "If records have expired before they were read: `stop`, or `skip` to go on with the oldest record.",
        ),
    ],
)
