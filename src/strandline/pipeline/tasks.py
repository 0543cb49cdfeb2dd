"""Runs the tasks of rooms as Spark jobs. Rows go from the log's storage to their target, not through the JVM."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from strandline.archive.model import Harvest, StagedFile
from strandline.archive.tasks import Rewrite, Runner, Stage
from strandline.engine.task_runner import RoomTask, TaskRunner
from strandline.errors import Invalid, StrandlineError, Unavailable
from strandline.feeds.fanout.delivery import Delivered, DeliveryTask, FanoutPlace
from strandline.feeds.fanout.restoring import (
    AuthorRestore,
    HomeTask,
    LoggedPosts,
    PostSource,
    RestoreRunner,
)
from strandline.feeds.fanout.rules import AuthorEntries
from strandline.journal.replication_task import Replicated, ReplicationTask
from strandline.pipeline.session import LOST_ERRORS, reason, remote_master
from strandline.pipeline.source import refuse_remote
from strandline.schedule.relay.filling import FillTask
from strandline.schedule.relay.values import FilledRange

_Task = TypeVar("_Task", Stage, Rewrite)
_Result = TypeVar("_Result", Harvest, StagedFile)
_AnyTask = TypeVar("_AnyTask")
_Answer = TypeVar("_Answer")


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
        results: list[_Result] = []
        for answer in _answers(self._context, "the archive", act, tasks):
            if isinstance(answer, StrandlineError):
                raise answer
            results.append(answer)
        return results


class _SparkTasks(TaskRunner):
    """Each task is a task of Spark. If Spark fails, its error is the result of all of them."""

    def __init__(self, spark: SparkSession, job: str, act: Callable[[Any], Any]) -> None:
        self._context = spark.sparkContext
        self._job = job
        self._act = act
        self.parallel = max(1, self._context.defaultParallelism)

    def run(self, tasks: Sequence[RoomTask[_Answer]]) -> list[_Answer | StrandlineError]:
        try:
            return _answers(self._context, self._job, self._act, tasks)
        except Unavailable as error:
            return [error] * len(tasks)


class SparkReplication(_SparkTasks):
    """The store of the journals refuses a task that Spark runs twice."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, "the replication", _replicate)


class SparkFill(_SparkTasks):
    """The store of the schedules refuses a task that Spark runs twice."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, "the relay", _fill)


class SparkDelivery(_SparkTasks):
    """A task may run twice, because its writes are idempotent."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, "the fan-out", _deliver)


class SparkRestore(RestoreRunner):
    """Collects posts with a shuffle by author, so that no process needs the posts of all authors in memory."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.parallel = max(1, self._context.defaultParallelism)

    def restore(self, how: AuthorRestore, sources: Sequence[PostSource]) -> int:
        if not sources:
            return 0
        try:
            parts = self._context.parallelize(sources, len(sources)).flatMap(partial(_collected, how))
            united = parts.reduceByKey(how.unite, self.parallel)
            counts: list[Any] = united.mapPartitions(partial(_restored, how)).collect()
        except LOST_ERRORS as error:
            raise Unavailable(f"a Spark job of the rebuild failed: {reason(error)}", retry_after=5) from error
        return sum(counts)

    def set_homes(self, tasks: Sequence[HomeTask]) -> list[int | StrandlineError]:
        return _answers(self._context, "the rebuild", _set_homes, tasks)


def _collected(how: AuthorRestore, source: PostSource) -> list[tuple[str, AuthorEntries]]:
    if isinstance(source, LoggedPosts):
        refuse_remote(source.part)
    return [*how.collect(source).items()]


def _restored(how: AuthorRestore, collected: Iterator[tuple[str, AuthorEntries]]) -> Iterator[int]:
    refuse_local_feeds(how.place)
    yield how.write(collected)


def _set_homes(task: HomeTask) -> int:
    refuse_local_feeds(task.place)
    return task.run()


def _deliver(task: DeliveryTask) -> Delivered:
    refuse_local_feeds(task.place)
    return task.run()


def refuse_local_feeds(place: FanoutPlace) -> None:
    """Invalid if this worker is on another machine than the files of the feeds."""
    for name, url in (("feeds.url", place.settings.url), ("feeds.database_url", place.settings.database_url)):
        _refuse_file("the feeds and the follow graph", name, url)


def _refuse_file(what: str, setting: str, url: str) -> None:
    """Invalid if a store has no address and this worker is on another machine than its file."""
    master = remote_master()
    if master is not None and not url:
        raise Invalid(
            f"{what} are stored in a file, which workers of {master} cannot write; set {setting}, or use a local "
            "master"
        )


def _fill(task: FillTask) -> FilledRange:
    refuse_remote(task.part)
    _refuse_file("the schedules", "schedule.url", task.url)
    return task.run()


def _replicate(task: ReplicationTask) -> Replicated:
    refuse_remote(task.part)
    _refuse_file("the journals", "journal.url", task.url)
    # A task makes many values and no cycles; looking for cycles would take a fifth of its time.
    gc.disable()
    try:
        return task.run()
    finally:
        gc.enable()


def _answers(
    context: SparkContext, room: str, act: Callable[[_AnyTask], _Answer], tasks: Sequence[_AnyTask]
) -> list[_Answer | StrandlineError]:
    """The result of every task, or the error that we raised. Unavailable if Spark failed."""
    if not tasks:
        return []
    try:
        found: list[Any] = context.parallelize(tasks, len(tasks)).map(partial(_answer, act)).collect()
    except LOST_ERRORS as error:
        raise Unavailable(f"a Spark job of {room} failed: {reason(error)}", retry_after=5) from error
    return found


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


def _answer(act: Callable[[_AnyTask], _Answer], task: _AnyTask) -> _Answer | StrandlineError:
    """Return our errors as values: a raised error would reach the driver only as text."""
    try:
        return act(task)
    except StrandlineError as error:
        return error
