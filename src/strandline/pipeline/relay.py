"""The job `relay`: a delay between two event types. The schedule room does the work, Spark reads the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline import progress
from strandline.config import declared_in
from strandline.pipeline.job import Job, JobContext, ProcessProgress
from strandline.schedule.relay.values import RelayOptions

if TYPE_CHECKING:
    from strandline.platform import Platform
    from strandline.schedule.relay.starting import Relays


def _relays(platform: Platform) -> Relays:
    from strandline.schedule.relay.starting import Relays  # noqa: PLC0415 - needs Arrow

    return Relays(platform.log, platform.schedules, platform.databases, platform.settings)


def _run(context: JobContext) -> None:
    from strandline.pipeline.tasks import SparkFill  # noqa: PLC0415 - needs Spark

    options = RelayOptions(**context.options)
    process = _relays(context.platform).process(options, SparkFill(context.spark))
    if context.once:
        process.once(context.on_progress)
    else:
        process.run(context.stop, context.on_progress)


def _check(_: Platform, options: Mapping[str, Any]) -> None:
    RelayOptions(**options).check()


def _status(platform: Platform) -> list[ProcessProgress]:
    return [ProcessProgress(owner, progress.parse(text)) for owner, text in _relays(platform).progress().items()]


JOB = Job(
    "relay",
    "Publish the events of one event type to another one, each once, after a delay.",
    _run,
    _status,
    check=_check,
    under_up=lambda options: any(options[name] for name in ("source", "target", "schedule")),
    details={
        "published": "events that this process has published to the target",
        "waiting": "events in the schedule that are not due yet",
        "dead_letters": "events that this process could not relay and has set aside",
    },
    options=[*declared_in("relay", RelayOptions)],
)
