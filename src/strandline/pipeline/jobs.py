"""The jobs, and how several of them run in one Spark application."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from strandline.archive.progress import Progress
from strandline.errors import Unavailable
from strandline.pipeline.session import SPARK_ERRORS, reason, spark_session
from strandline.pipeline.tasks import SparkRunner
from strandline.platform import Platform


@dataclass(frozen=True)
class Run:
    """What every job needs: the rooms, Spark, when to stop, and whom to tell how far it is."""

    platform: Platform
    spark: SparkSession
    stop: threading.Event
    once: bool
    told: Callable[[Progress], None]


def _archive(run: Run) -> None:
    crew = run.platform.archive.crew(SparkRunner(run.spark))
    if run.once:
        crew.once(run.told)
    else:
        crew.run(run.stop, run.told)


JOBS: dict[str, Callable[[Run], None]] = {"archive": _archive}


def run_application(
    names: Sequence[str], platform: Platform, master: str, told: Callable[[Progress], None], *, once: bool
) -> None:
    """Run the jobs in a Spark application of their own, until they have ended or this process is told to stop."""
    try:
        spark = spark_session(f"strandline {' '.join(names)}", master=master)
    except SPARK_ERRORS as error:
        raise Unavailable(f"Spark did not start with the master {master}: {reason(error)}") from error
    try:
        with _stopped_by_signals() as stop:
            _run_all(names, Run(platform, spark, stop, once, told))
    finally:
        spark.stop()


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """The first signal asks for a stop, the second one does not wait for it. Spark has a handler of its own."""
    stop = threading.Event()

    def told(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)  # as good as a crash, which every job is made for; the JVM follows
        stop.set()

    before = {number: signal.signal(number, told) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_all(names: Sequence[str], run: Run) -> None:
    """Return when all of them have ended. One that fails stops the others gracefully, then its error is raised."""
    with ThreadPoolExecutor(len(names), thread_name_prefix="strandline-job") as pool:
        for ended in as_completed([pool.submit(JOBS[name], run) for name in names]):
            if ended.exception() is not None:
                run.stop.set()
            ended.result()
