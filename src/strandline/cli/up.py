"""`strandline up`: the node and the jobs of the pipeline, under one command."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from strandline.cli import output
from strandline.cli.pipeline import chosen_options, job_options, master_option
from strandline.cli.progress import detail_texts
from strandline.cli.serve import check_host, node, print_ready, serving_options
from strandline.cli.settings import load, parameter, settings_file
from strandline.pipeline.child import JobReport, Order
from strandline.pipeline.registry import JOBS
from strandline.pipeline.supervisor import Supervisor
from strandline.progress import JobProgress
from strandline.settings import Settings

# A job that is busy has a new progress every second.
_PROGRESS_EVERY_S = 10.0
_LONGEST_GRACE_MS, _GRACES = 30_000, 5
# The jobs that may run, each with the rule whether it does.
_RULES = [(job, job.under_up) for job in JOBS.values() if job.under_up is not None]
_WIDTH = max(map(len, (*JOBS, "node")))


@click.command()
@click.option(
    "--shift",
    "shift_ms",
    callback=output.to_ms,
    metavar="DURATION",
    help="Archive in short shifts, like 10s: files appear after each one. Default: archive.duration_ms.",
)
@click.option(
    "--memory", default="512m", show_default=True, metavar="SIZE", help="Heap of Spark's driver, like 512m or 2g."
)
@master_option
@partial(job_options, jobs=[job for job, _ in _RULES])
@serving_options
def up(
    *,
    data: Path,
    port: int,
    host: str,
    config_file: Path | None,
    insecure: bool,
    as_json: bool,
    shift_ms: int | None,
    master: str,
    memory: str,
    **flags: Any,
) -> None:
    """Run the whole platform on this machine: the node, and the jobs of the pipeline beside it.

    The jobs `archive` and `replicate` always run, `fanout` and `relay` if their settings are given. All of
    them need Java and pyspark: without these the node runs alone. A job that fails is started again. Ctrl-C stops
    everything after the work in hand, a second Ctrl-C at once.
    """
    check_host(host, insecure=insecure)
    for name, value in _short_shifts(shift_ms).items():
        flags[name] = value if flags[name] is None else flags[name]
    settings = load(data, config_file, flags)
    run = node()
    file = settings_file(data, config_file)
    chosen = [(job, rule, chosen_options(job, settings, flags)) for job, rule in _RULES]
    order = Order(
        data=str(data.absolute()),
        config=None if file is None else str(file.absolute()),
        flags={one.key: flags[parameter(one)] for one in Settings.declared() if flags[parameter(one)] is not None},
        jobs={job.name: options for job, rule, options in chosen if rule(options)},
        master=master,
        memory=memory,
    )
    show = output.print_json if as_json else _StatusLines()
    banner = print_ready if as_json else partial(_print_banner, data)
    run(data, settings, host, port, banner, Supervisor(order, show))


def _short_shifts(shift_ms: int | None) -> Mapping[str, int]:
    """The settings of `--shift`. The grace of a shift must be shorter than the shift."""
    if shift_ms is None:
        return {}
    grace_ms = min(shift_ms // _GRACES, _LONGEST_GRACE_MS)
    return {"archive__duration_ms": shift_ms, "archive__grace_ms": grace_ms}


def _print_banner(data: Path, url: str) -> None:
    program = "strandline" if shutil.which("strandline") else Path(sys.executable).with_name("strandline")
    print(
        f"\n  Strandline is up: {url}\n\n"
        f"  data      {data.resolve()}\n"
        f"  API       {url}/openapi.json\n"
        f"  try       {program} event-types list --url {url}\n"
        f"  stop      Ctrl-C (twice: at once)\n",
        flush=True,
    )
    _print_line("node", "running")


def _print_line(job: str, text: str) -> None:
    print(f"  {job:{_WIDTH}}  {text}", flush=True)


class _StatusLines:
    """One line for every new state of a job, and for what it has done on an event type."""

    def __init__(self) -> None:
        self._news: dict[tuple[str, str], tuple[float, object]] = {}

    def __call__(self, report: JobReport) -> None:
        if report.state is not None:
            text = report.state.state.replace("_", " ")
            _print_line(report.job, f"{text}: {report.state.detail}" if report.state.detail else text)
        if report.progress is not None:
            self._progress(report.job, report.progress)

    def _progress(self, job: str, progress: JobProgress) -> None:
        lag = sum(progress.lag.values())
        # Numbers in the details, such as the number of a shift, may grow without any work.
        texts = [value for value in progress.details.values() if isinstance(value, str)]
        key, now, news = (job, progress.event_type), time.monotonic(), (progress.rows, lag, texts)
        last_s, last = self._news.get(key, (float("-inf"), (0, 0, [])))
        if news != last and now - last_s >= _PROGRESS_EVERY_S:
            self._news[key] = now, news
            details = [output.counted(progress.rows, "row"), f"lag {lag:,}", *detail_texts(progress)]
            _print_line(job, f"{progress.event_type}: {', '.join(details)}")
