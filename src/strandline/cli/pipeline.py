"""`strandline pipeline …`: the Spark jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from strandline import logging_setup
from strandline.cli import output
from strandline.cli.group import Group
from strandline.cli.progress import label, shown
from strandline.cli.settings import config_option, load, setting_options, settings_file
from strandline.cli.target import data_option, debug_option, json_option
from strandline.clock import system_clock
from strandline.errors import NotFound, Unavailable
from strandline.pipeline.job import Job
from strandline.pipeline.registry import JOBS
from strandline.progress import JobProgress
from strandline.settings import Settings

_SETTINGS = frozenset(Settings.declared())
_COLUMNS = ("job", "process", "event type", "rows", "rows/s", "lag", "largest lag", "last step")
_RUN_HELP = """Run JOBS in one Spark application, until SIGTERM or Ctrl-C.

The first signal makes the jobs finish the work in hand. The second one ends the process at once; the jobs repeat
that work when they are started again.

\b
Jobs:
""" + "\n".join(f"  {job.name:10}  {job.summary}" for job in JOBS.values())


master_option = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    envvar="STRANDLINE_SPARK_MASTER",
    metavar="URL",
    help="Spark master, like spark://host:7077, yarn or k8s://….",
)


@click.group(cls=Group)
def pipeline() -> None:
    """Run the Spark jobs and show their progress."""


def job_options(command: Callable[..., Any], jobs: Iterable[Job] = JOBS.values()) -> Callable[..., Any]:
    """Adds a flag for every option of every job that is not a setting."""
    for option in (option for job in jobs for option in job.options if option not in _SETTINGS):
        add = click.option(option.flag, default=option.default, show_default=True, help=option.help)
        command = add(command)
    return command


def chosen_options(job: Job, settings: Settings, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a job, from its section of the settings or from the flags that `job_options` added."""
    return {
        option.name: getattr(getattr(settings, option.section), option.name)
        if option in _SETTINGS
        else flags[f"{job.name}_{option.name}"]
        for option in job.options
    }


def _check_exists(data: Path) -> None:
    if not data.is_dir():
        raise NotFound(
            f"there is no data directory {data}; name one with --data, or create it with `strandline up`"
        )


@pipeline.command("run", help=_RUN_HELP)
@click.argument("jobs", nargs=-1, required=True, type=click.Choice([*JOBS]), metavar="JOBS...")
@click.option("--once", is_flag=True, help="Process what the log holds now, then end.")
@master_option
@job_options
@data_option
@config_option
@json_option
@debug_option
@setting_options
def run(
    jobs: Sequence[str],
    *,
    once: bool,
    master: str,
    data: Path,
    config_file: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    settings = load(data, config_file, flags)
    _check_exists(data)
    logging_setup.configure(settings.logs)
    run_application = application()
    from strandline.platform import Platform  # noqa: PLC0415 - slow to load

    chosen = {name: chosen_options(JOBS[name], settings, flags) for name in jobs}
    with shown(as_json=as_json) as show, Platform(data, settings, system_clock()) as platform:
        run_application(chosen, platform, master, show, once=once)


def application() -> Callable[..., None]:
    """The function that runs jobs in a Spark application."""
    try:
        from strandline.pipeline.application import run_application  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        raise Unavailable(f"the pipeline needs {error.name}; pip install 'strandline[spark]'") from error
    return run_application


@pipeline.command("status")
@data_option
@config_option
@json_option
@debug_option
def status(data: Path, config_file: Path | None, *, as_json: bool) -> None:
    """Show the progress of the jobs that run now, on any machine."""
    import strandline  # noqa: PLC0415 - slow to load

    _check_exists(data)
    settings = Settings.load(settings_file(data, config_file))
    with strandline.open(data, settings=settings) as platform:
        running = [(job.name, process) for job in JOBS.values() for process in job.status(platform)]
    # A process that has not reported anything yet is shown to people only.
    rows = [(job, one.process, progress) for job, one in running for progress in (one.progress or (None,))]
    if as_json:
        output.print_json(
            [{"job": job, "process": name, "progress": one.fields()} for job, name, one in rows if one is not None]
        )
        return
    details = [*dict.fromkeys(name for *_, progress in rows if progress is not None for name in progress.details)]
    output.print_table(
        (*_COLUMNS, *map(label, details)),
        ((job, process[:8], *_cells(progress, details)) for job, process, progress in rows),
        "no job runs; start one with `strandline pipeline run`",
    )


def _cells(progress: JobProgress | None, details: Sequence[str]) -> list[object]:
    if progress is None:
        return [None] * (len(_COLUMNS) - 2 + len(details))
    return [
        progress.event_type,
        f"{progress.rows:,}",
        f"{progress.rows_per_second:,}",
        f"{sum(progress.lag.values()):,}",
        _largest(progress.lag),
        progress.worked_at or None,
        *(progress.details.get(name) for name in details),
    ]


def _largest(lag: Mapping[str, int]) -> str | None:
    """The partition with the largest lag."""
    most = max(lag, key=lambda partition: lag[partition], default=None)
    return None if most is None or not lag[most] else f"{lag[most]:,} in partition {most}"
