"""The process of the jobs of `strandline up`.

Its standard input brings one line, an `Order`, and then stays open as long as the parent lives and wants the jobs
to run. Its standard output has one `JobReport` per line. It logs to standard error.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from strandline import logging_setup
from strandline.clock import system_clock
from strandline.errors import StrandlineError
from strandline.pipeline import restarts
from strandline.pipeline.registry import JOBS
from strandline.progress import JobProgress, JobState
from strandline.settings import Settings

log = logging.getLogger(__name__)

#: Runs this module, without the working directory in the search path.
COMMAND = (sys.executable, "-P", "-m", __name__)


class Order(msgspec.Struct, frozen=True):
    """What to run: `flags` are settings by key, `jobs` are names with their options."""

    data: str
    config: str | None
    flags: dict[str, Any]
    jobs: dict[str, dict[str, Any]]
    master: str
    memory: str


class JobReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new state of a job, or its progress on an event type."""

    job: str
    state: JobState | None = None
    progress: JobProgress | None = None


def main() -> int:
    tell = _own_output()
    order = msgspec.json.decode(io.FileIO(0, closefd=False).readline(), type=Order)
    settings = Settings.load(Path(order.config) if order.config else None, flags=order.flags)
    logging_setup.configure(settings.logs)
    patience = settings.server.drain_timeout_ms / 1000
    threading.Thread(target=_stop_at_end_of_input, args=(patience,), daemon=True).start()
    try:
        _run(order, settings, tell)
    except StrandlineError as error:
        log.error("the jobs ended: %s", error.detail)  # noqa: TRY400 - the text says what happened
        return 1
    return 0


def _own_output() -> Callable[[JobReport], None]:
    """Writes reports to the standard output, which nothing else can write to from now on, the JVM included."""
    lock, output = threading.Lock(), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(report: JobReport) -> None:
        with lock:
            output.write(msgspec.json.encode(report) + b"\n")

    return tell


def _stop_at_end_of_input(patience: float) -> None:
    """Ask the jobs to stop when the parent closes the input or has ended, and end the process if they do not."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience)
    os._exit(1)


def _run(order: Order, settings: Settings, tell: Callable[[JobReport], None]) -> None:
    from strandline.pipeline.application import run_application  # noqa: PLC0415 - needs Spark
    from strandline.platform import Platform  # noqa: PLC0415 - slow to load

    def on_state(state: JobState) -> None:
        tell(JobReport(state.job, state=state))

    def on_progress(job: str, progress: JobProgress) -> None:
        tell(JobReport(job, progress=progress))

    with Platform(Path(order.data), settings, system_clock()) as platform:
        jobs = {name: given for name, given in order.jobs.items() if _is_allowed(name, given, platform, on_state)}
        if jobs:
            run_application(
                jobs,
                platform,
                order.master,
                on_progress,
                once=False,
                memory=order.memory,
                run_job=partial(_again, on_state),
            )
        else:
            signal.pause()  # until the parent ends the process


def _again(tell: Callable[[JobState], None], job: str, run: Callable[[], None], stop: threading.Event) -> None:
    restarts.run_again(job, run, stop, tell)


def _is_allowed(job: str, options: dict[str, Any], platform: Any, tell: Callable[[JobState], None]) -> bool:
    """Whether the settings and options allow the job to run; the other jobs run without it."""
    try:
        JOBS[job].check(platform, options)
    except StrandlineError as error:
        log.error("the job %s cannot run: %s", job, error.detail)  # noqa: TRY400 - the text says what happened
        tell(JobState(job, "not_started", f"{error.detail}; correct it and start again"))
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
