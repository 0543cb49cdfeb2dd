"""The archive: rows per second compared with Spark's own file sink, and the cost of an hour after many others."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from pyspark.sql import functions as f

from bench import data
from bench.rows.append import NOW_MS
from bench.rows.spark import fill, session
from bench.runner import Row, Scale, Side, Target
from strandline import EventType
from strandline.archive.local import LocalArchive
from strandline.archive.settings import ArchiveSettings
from strandline.clock import ManualClock, to_rfc3339
from strandline.engine.connect import Databases
from strandline.pipeline.tasks import SparkRunner
from strandline.platform import Platform
from strandline.settings import Settings

_HOUR_MS = 3_600_000
_HOURS = 4
_ROWS = 4_000_000
_AN_HOUR = 1_000


def _values(count: int) -> list[bytes]:
    """Orders of the last four hours, nearly in order."""
    hours = [to_rfc3339(NOW_MS - number * _HOUR_MS)[:13].encode() for number in range(_HOURS)]
    return [
        value.replace(b"2024-05-01T12", hour)
        for value, hour in zip(data.values(count), itertools.cycle(hours), strict=False)
    ]


def _archive(platform: Platform, databases: Databases, clock: ManualClock, root: Path) -> LocalArchive:
    settings = replace(platform.settings, archive=ArchiveSettings(str(root), time_field="placed_at"))
    return LocalArchive(platform.log, databases, platform.data, settings, clock)


def _forget(platform: Platform, root: Path) -> None:
    """Delete everything that was archived."""
    shutil.rmtree(root, ignore_errors=True)
    for file in platform.data.glob("archive.db*"):
        file.unlink()


@contextmanager
def _beside_spark(directory: Path, scale: Scale) -> Iterator[list[Side]]:
    count = scale.of(_ROWS // 1000) * 1000
    clock = ManualClock(NOW_MS - 8 * _HOUR_MS)
    with Platform(directory / "ours", Settings(), clock) as platform, session() as spark:
        fill(platform, count, 2, _values(20_000))
        clock.advance(12 * _HOUR_MS)
        root, theirs = directory / "archive", directory / "theirs"

        def ours() -> int:
            _forget(platform, root)
            # Not the platform's databases: the next run deletes the ledger's file.
            with closing(Databases(platform.data)) as databases:
                archive = _archive(platform, databases, clock, root)
                archive.process(SparkRunner(spark)).once()
                archive.close()
            return count

        def peer() -> int:
            shutil.rmtree(theirs, ignore_errors=True)
            options = {"data": str(platform.data), "event_types": "orders"}
            frame = spark.readStream.format("strandline").options(**options).load()
            value = f.col("value").cast("string")
            happened = f.to_timestamp(f.get_json_object(value, "$.placed_at"))
            frame = frame.withColumn("value", value).withColumn("event_time", happened)
            frame = frame.withColumn("day", f.to_date(happened)).withColumn("hour", f.hour(happened))
            writer = frame.writeStream.format("parquet").partitionBy("day", "hour").option("compression", "zstd")
            writer = writer.option("checkpointLocation", str(theirs / "checkpoint")).trigger(availableNow=True)
            writer.start(str(theirs / "files")).awaitTermination()
            return count

        yield [Side("ours", ours), Side("Spark's own file sink", peer)]


class _Hours:
    """An archive that archives hour after hour."""

    def __init__(self, directory: Path, hours: int) -> None:
        self._clock = ManualClock(NOW_MS - NOW_MS % _HOUR_MS + 60_000)  # after the grace of the hour before
        self._platform = Platform(directory, Settings(), self._clock)
        self._platform.log.create(EventType("orders", partitions=2))
        self._archive = _archive(self._platform, self._platform.databases, self._clock, directory / "archive")
        self._orders = data.orders(_AN_HOUR)
        for _ in range(hours):
            self.hour()

    def hour(self) -> int:
        """Publish, archive and flag the next hour. Returns its number of events."""
        happened = to_rfc3339(self._clock.now_ms())
        events = [{**order, "placed_at": happened} for order in self._orders]
        self._platform.log.publish("orders", events).raise_for_failed()
        self._clock.advance(_HOUR_MS)
        self._archive.process().once()
        return _AN_HOUR

    def close(self) -> None:
        self._archive.close()
        self._platform.close()


@contextmanager
def _hour_after_hour(directory: Path, scale: Scale) -> Iterator[list[Side]]:
    many, few = _Hours(directory / "many", scale.of(1_000)), _Hours(directory / "few", scale.of(10))
    try:
        yield [
            Side("ours", lambda: sum(many.hour() for _ in range(5))),
            Side("after 10 hours", lambda: sum(few.hour() for _ in range(5))),
        ]
    finally:
        many.close()
        few.close()


ROWS = [
    Row(
        "archive, on Spark",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": 2,
            "rows": _ROWS,
            "hours": _HOURS,
            "files": "Parquet, zstd",
            "connections": "local[2]",
            "warm-up": "1 round",
        },
        _beside_spark,
        Target(ratio=1.0),
    ),
    Row(
        "archive an hour, after 1,000 hours",
        {
            "event bytes": data.mean_size(data.values(1000)),
            "partitions": 2,
            "events an hour": _AN_HOUR,
            "peer": "the same after 10 to 40 hours",
            "connections": "in process, restarted for every hour",
            "warm-up": "1 round",
        },
        _hour_after_hour,
        Target(ratio=0.8),
    ),
]
