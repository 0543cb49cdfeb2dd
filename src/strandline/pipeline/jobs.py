"""The jobs, and how several of them run in one Spark application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from pyspark.sql import SparkSession

from strandline.archive.progress import Progress
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


def run_all(names: Sequence[str], run: Run) -> None:
    """Return when all of them have ended. One that fails stops the others gracefully, then its error is raised."""
    with ThreadPoolExecutor(len(names), thread_name_prefix="strandline-job") as pool:
        for ended in as_completed([pool.submit(JOBS[name], run) for name in names]):
            if ended.exception() is not None:
                run.stop.set()
            ended.result()
