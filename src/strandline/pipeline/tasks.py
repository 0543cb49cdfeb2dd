"""The archive's tasks as Spark jobs. Rows go from the log's storage into files; none passes through the JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.archive.model import Harvest, StagedFile
from strandline.archive.tasks import Rewrite, Runner, Stage
from strandline.errors import StrandlineError, Unavailable
from strandline.pipeline.source import refuse_remote

_Task = TypeVar("_Task", Stage, Rewrite)
_Result = TypeVar("_Result", Harvest, StagedFile)


class SparkRunner(Runner):
    """Each task once, or more often where the master tries again what a lost worker had."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    def stage(self, tasks: Sequence[Stage]) -> list[Harvest]:
        return self._run(_stage, tasks)

    def rewrite(self, tasks: Sequence[Rewrite]) -> list[StagedFile]:
        return self._run(Rewrite.run, tasks)

    def _run(self, act: Callable[[_Task], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        if not tasks:
            return []
        try:
            answers: list[Any] = self._context.parallelize(tasks, len(tasks)).map(partial(_answer, act)).collect()
        except (Py4JError, PySparkException) as error:
            raise Unavailable(f"a Spark job of the archive failed: {_reason(error)}", retry_after=5) from error
        for answer in answers:
            if isinstance(answer, StrandlineError):
                raise answer
        return answers


def _stage(task: Stage) -> Harvest:
    refuse_remote(task.part)
    return task.run()


def _answer(act: Callable[[_Task], _Result], task: _Task) -> _Result | StrandlineError:
    """An error of ours as a value: raised here it would reach the driver as a text."""
    try:
        return act(task)
    except StrandlineError as error:
        return error


def _reason(error: Exception) -> str:
    """The line of a trace that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("at ", "...")) and ": " in line]
    return (told or lines or ["no reason given"])[-1][:300]
