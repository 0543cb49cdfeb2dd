"""`strandline pipeline …`: the Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from strandline import logs
from strandline.cli import output
from strandline.cli.progress import Told, telling
from strandline.cli.settings import config_option, load, setting_options
from strandline.cli.target import data_option, debug_option, json_option
from strandline.clock import system_clock
from strandline.config import Settings
from strandline.errors import NotFound, Unavailable

_JOBS = ("archive",)


@click.group()
def pipeline() -> None:
    """Run the Spark jobs that move data, and see how far they are."""


@pipeline.command("run")
@click.argument("jobs", nargs=-1, required=True, type=click.Choice(_JOBS))
@click.option("--once", is_flag=True, help="Process what is there now and end.")
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    envvar="STRANDLINE_SPARK_MASTER",
    metavar="URL",
    help="Spark master, like spark://host:7077, yarn or k8s://….",
)
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
    **flags: str | None,
) -> None:
    """Run JOBS in one Spark application, until SIGTERM or Ctrl-C.

    A job that is told to stop finishes what it has collected; tell it twice and it leaves at once, which
    loses nothing either.
    """
    settings = load(data, config_file, flags)
    if not data.is_dir():
        raise NotFound(f"there is no data directory {data}; name one with --data, or make it with `strandline up`")
    logs.configure(settings.logs)
    with telling(as_json=as_json) as told:
        _run(tuple(dict.fromkeys(jobs)), data, settings, master, told, once=once)


def _run(jobs: Sequence[str], data: Path, settings: Settings, master: str, told: Told, *, once: bool) -> None:
    try:
        from strandline.pipeline.jobs import run_application  # noqa: PLC0415 - an extra that may be missing
    except ModuleNotFoundError as error:
        raise Unavailable(f"the pipeline needs {error.name}; pip install 'strandline[spark]'") from error
    from strandline.platform import Platform  # noqa: PLC0415 - slow to load

    with Platform(data, settings, system_clock()) as platform:
        run_application(jobs, platform, master, told, once=once)


@pipeline.command("status")
@data_option
@json_option
@debug_option
def status(data: Path, *, as_json: bool) -> None:
    """Show how far the jobs are that run now, on whatever machine."""
    import strandline  # noqa: PLC0415 - slow to load
    from strandline.archive import progress  # noqa: PLC0415 - same

    if not data.is_dir():
        raise NotFound(f"there is no data directory {data}; name the one of the log with --data")
    with strandline.open(data) as platform:
        told = platform.archive.ledger.leases.owners()
    found = [(owner, one) for owner, text in told.items() for one in progress.parse(text)]
    if as_json:
        output.print_json([{"job": "archive", "process": owner, "progress": one} for owner, one in found])
        return
    if told and not found:
        print(f"{len(told)} archive processes run and have nothing to tell yet")
        return
    output.print_table(
        ("job", "event type", "rows", "rows/s", "lag", "largest lag", "shift", "last flag", "process"),
        (
            (
                "archive",
                one.event_type,
                f"{one.rows:,}",
                f"{one.rows_per_second:,}",
                f"{sum(one.lag.values()):,}",
                _largest(one.lag),
                one.shift,
                one.last_flag,
                owner[:8],
            )
            for owner, one in found
        ),
        "no job runs; start one with `strandline pipeline run archive`",
    )


def _largest(lag: Mapping[str, int]) -> str | None:
    """The partition that is furthest behind."""
    most = max(lag, key=lambda partition: lag[partition], default=None)
    return None if most is None or not lag[most] else f"{lag[most]:,} in partition {most}"
