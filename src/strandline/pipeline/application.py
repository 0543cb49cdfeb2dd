"""Runs several jobs in one Spark application."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from typing import Any

from strandline.errors import Unavailable
from strandline.pipeline import requirements
from strandline.pipeline.job import JobContext
from strandline.pipeline.jvm import Jvm
from strandline.pipeline.registry import JOBS
from strandline.pipeline.session import SPARK_ERRORS, reason, spark_session
from strandline.platform import Platform
from strandline.progress import JobProgress

#: Runs a job, given its name and a function that runs it until the event is set.
RunJob = Callable[[str, Callable[[], None], threading.Event], None]


def run_application(
    jobs: Mapping[str, Mapping[str, Any]],
    platform: Platform,
    master: str,
    on_progress: Callable[[str, JobProgress], None],
    *,
    once: bool,
    memory: str | None = None,
    run_job: RunJob = lambda _name, run, _stop: run(),
) -> None:
    """Run jobs, named with their options, until all have ended. SIGTERM and SIGINT ask them to stop.

    Unavailable if the JVM of Spark ends before the jobs. `on_progress` is called with the name of the job, from
    the threads of the jobs. `memory` is the heap of the driver.
    """
    for name, options in jobs.items():
        JOBS[name].check(platform, options)
    try:
        heap = {"spark.driver.memory": memory} if memory else {}
        spark = spark_session(f"strandline {' '.join(jobs)}", master=master, settings=heap)
    except SPARK_ERRORS as error:
        failed = f"Spark did not start with the master {master}: {reason(error)}"
        raise Unavailable(requirements.missing() or failed) from error
    jvm = Jvm(spark)
    try:
        with _stopped_by_signals() as stop, jvm.watched(stop):
            runs = []
            for name, options in jobs.items():
                context = JobContext(platform, spark, stop, once, partial(on_progress, name), options)
                runs.append(partial(run_job, name, partial(JOBS[name].run, context), stop))
            run_all(runs, stop)
    finally:
        jvm.stop()


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that the first signal sets. The second signal ends the process at once, like a crash."""
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)  # the JVM ends with this process
        stop.set()

    # Replaces the handler that Spark installs when it starts.
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_all(runs: Sequence[Callable[[], None]], stop: threading.Event) -> None:
    """Return when all have ended. If one fails, the others are stopped, then its error is raised."""
    with ThreadPoolExecutor(len(runs), thread_name_prefix="strandline-job") as pool:
        for ended in as_completed([pool.submit(run) for run in runs]):
            if ended.exception() is not None:
                stop.set()
            ended.result()
