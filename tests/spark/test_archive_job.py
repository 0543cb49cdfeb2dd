"""The archive's tasks on Spark: switches of storage, and errors of tasks."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from pyspark.sql import SparkSession

from services import until
from strandline import EventType
from strandline.archive.files.local import LocalFiles
from strandline.archive.local import LocalArchive
from strandline.archive.settings import ArchiveSettings
from strandline.archive.staging import Sorting
from strandline.archive.tasks import Stage
from strandline.clock import system_clock
from strandline.errors import Invalid, InvalidCursor, Unavailable
from strandline.log import StorageInfo
from strandline.log.ranges import PartitionRange, Piece
from strandline.log.storage.registry import KafkaConfiguration
from strandline.pipeline.tasks import SparkRunner
from strandline.platform import Platform

BATCH = 20


@pytest.fixture
def archive(platform: Platform) -> LocalArchive:
    """An archive that collects new records at every step."""
    settings = replace(platform.settings, archive=ArchiveSettings(min_records=1, interval_ms=20))
    made = LocalArchive(platform.log, platform.databases, platform.data, settings, system_clock())
    yield made
    made.close()


def archived(spark: SparkSession, platform: Platform) -> list[tuple[int, int, int, int]]:
    """Partition, timeline, offset and number of every row, read with `spark.read.parquet`."""
    (day,) = {path.parents[3] for path in (platform.data / "archive").rglob("*.parquet")}
    rows = spark.read.parquet(f"{day}/*/orders/data/*.parquet").collect()
    return sorted((row.partition, row.timeline, row.offset, json.loads(row.value)["n"]) for row in rows)


def test_the_archive_goes_on_through_switches_of_storage(spark, platform, archive, kafka):
    """During switches between SQLite and Kafka, every record is archived once and in order."""
    log = platform.log
    log.create(EventType("orders", partitions=2))
    log.admin.add_storage(
        StorageInfo("kafka", "kafka", kafka_configuration=KafkaConfiguration(kafka.bootstrap_servers))
    )
    stop, done, numbers = threading.Event(), threading.Event(), count()
    published = []

    def publish() -> None:
        while not done.wait(0.005):
            batch = [next(numbers) for _ in range(BATCH)]
            log.publish("orders", [{"n": n} for n in batch]).raise_for_failed()
            published.extend(batch)

    told = [0]
    process = archive.process(SparkRunner(spark))
    archiving = partial(process.run, stop, lambda progress: told.append(progress.rows))
    jobs = [threading.Thread(target=publish), threading.Thread(target=archiving)]
    for job in jobs:
        job.start()
    try:
        until(lambda: published, "the first events")
        for storage in ["kafka", "default", "kafka", "default", "kafka"]:
            log.admin.switch("orders", storage)
            # A publish in progress may have started before the switch.
            behind = len(published) + BATCH
            until(lambda b=behind: told[-1] > b, "more archived rows")
    finally:
        done.set()
        jobs[0].join()
        stop.set()
        jobs[1].join()
    found = archived(spark, platform)
    assert sorted(number for *_, number in found) == published
    assert {timeline for _, timeline, *_ in found} == {1, 2, 3, 4, 5, 6}
    by_partition = Counter((partition, number) for partition, *_, number in found)
    assert max(by_partition.values()) == 1
    for partition in (0, 1):
        in_order = [number for p, _, _, number in found if p == partition]
        assert in_order == sorted(in_order)


class NotShared(LocalFiles):
    """A directory that is a different one in tasks."""

    def __reduce__(self) -> tuple[type[LocalFiles], tuple[str]]:
        return LocalFiles, (f"{self.url}-of-the-worker",)


def test_files_that_the_driver_cannot_see_are_not_published(spark, platform):
    """A root that is not shared between machines is refused before anything is published."""
    platform.log.create(EventType("orders", partitions=1))
    platform.log.publish("orders", [{"n": n} for n in range(10)]).raise_for_failed()
    archiver = platform.archive.archiver("orders", SparkRunner(spark))
    files = NotShared(str(platform.data / "archive"))
    archiver._collector._files = archiver._publisher._files = files
    archiver.start()
    with pytest.raises(Invalid, match="which the driver cannot see"):
        archiver.step((), everything=True)
    standing = platform.archive.ledger.standing("orders")
    assert (standing.counts.read, standing.partitions) == (0, {})
    assert [*(platform.data / "archive").rglob("*.parquet")] == []


def test_errors_of_tasks_reach_the_driver(spark, platform):
    """The driver raises errors of `strandline.errors` unchanged, and others as Unavailable with their message."""
    files = LocalFiles(str(platform.data / "archive"))
    (storage,) = platform.log.storages()
    gone = PartitionRange("orders", 0, (Piece(1, storage, "nothing", 0, 9),), str(platform.data))
    task = Stage(files, "_staging/x", Sorting("@timestamp", ArchiveSettings(), 1), gone)
    with pytest.raises(InvalidCursor, match="its topic was deleted"):
        SparkRunner(spark).stage([task])
    with pytest.raises(Unavailable, match="AttributeError"):
        SparkRunner(spark).stage([replace(task, sorting=None)])


@pytest.mark.parametrize("template", ["%Y-%m-%d/%H/{event_type}", "date=%Y-%m-%d/hour=%H/{event_type}"])
def test_spark_reads_the_directory_of_an_archive(spark, platform, template):
    """Spark reads all data; directories in the style of Hive become columns."""
    settings = replace(platform.settings, archive=ArchiveSettings(template=template))
    platform.log.create(EventType("orders", partitions=1))
    platform.log.publish("orders", [{"n": n} for n in range(10)]).raise_for_failed()
    archive = LocalArchive(platform.log, platform.databases, platform.data, settings, system_clock())
    archive.process().once()
    archive.close()
    hive = template.startswith("date=")
    reader = spark.read if hive else spark.read.option("recursiveFileLookup", "true")
    found = reader.parquet(str(platform.data / "archive"))
    assert found.count() == 10
    assert ({"date", "hour"} <= {*found.columns}) == hive
