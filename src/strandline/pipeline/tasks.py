"""Runs the archive's tasks as Spark jobs. Rows go from the log's storage into files, not through the JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from strandline.archive.model import Harvest, StagedFile
from strandline.archive.tasks import Rewrite, Runner, Stage
from strandline.errors import Invalid, StrandlineError, Unavailable
from strandline.pipeline.session import SPARK_ERRORS, reason
from strandline.pipeline.source import refuse_remote

_Task = TypeVar("_Task", Stage, Rewrite)
_Result = TypeVar("_Result", Harvest, StagedFile)


class SparkRunner(Runner):
    """Runs each task at least once: Spark retries the tasks of a lost worker."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
        harvests = self._run(_stage, tasks)
        _check_seen(tasks, [file for harvest in harvests for file in harvest.files])
        return harvests

    def rewrite(self, tasks: Sequence[Rewrite]) -> list[StagedFile]:
        written = self._run(Rewrite.run, tasks)
        _check_seen(tasks, written)
        return written

    def _run(self, act: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        if not tasks:
            return []
        try:
            answers: list[Any] = self._context.parallelize(tasks, len(tasks)).map(partial(_answer, act)).collect()
        except SPARK_ERRORS as error:
            raise Unavailable(f"a Spark job of the archive failed: {reason(error)}", retry_after=5) from error
        for answer in answers:
            if isinstance(answer, StrandlineError):
                raise answer
        return answers


def _check_seen(tasks: Sequence[_Task], written: Sequence[StagedFile]) -> None:
    """Raise Invalid if the driver cannot see a file that a task wrote: the file could never be published."""
    places = {task.directory: task.files for task in tasks}
    seen = {f"{place}/{entry.name}" for place, files in places.items() for entry in files.entries(place)}
    for file in written:
        if file.path not in seen:
            raise Invalid(
                f"a task of the archive wrote {file.path}, which the driver cannot see; archive.root must be an "
                "address that the driver and all workers reach: hdfs://…, s3://… or a shared mount"
            )


def _stage(task: Stage) -> Harvest:
    refuse_remote(task.part)
    return task.run()


def _answer(act: Callable[[_Task], _Result], task: _Task) -> _Result | StrandlineError:
    """Return our errors as values: a raised error would reach the driver only as text."""
    try:
        return act(task)
    except StrandlineError as error:
        return error
