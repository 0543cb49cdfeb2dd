"""Reads the log from Spark into `noop`: SQLite alone, Kafka compared with Spark's own connector."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import strandline
from bench import data
from bench.rows.append import NOW_MS
from bench.runner import Row, Scale, Side, Target
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.records import NewRecords
from strandline.log.storage.registry import KafkaConfiguration
from strandline.pipeline.session import spark_session
from strandline.platform import Platform

_BATCH = 1000
_CORES = 2
# As many columns as Spark's own connector has.
_COLUMNS = "event_type,partition,timeline,offset,timestamp,key,value"


@contextmanager
def session() -> Iterator[SparkSession]:
    """One session for all sides of a row. The JVM keeps running with the jars of the first session."""
    # Imported here: only these rows need the tests on the path.
    from services.jars import fetched  # noqa: PLC0415

    connector = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
    jars = [str(jar) for name in connector for jar in fetched(name).glob("*.jar")]
    settings = {"spark.jars": ",".join(jars), "spark.driver.memory": "2g"}
    started = spark_session("bench", master=f"local[{_CORES}]", settings=settings)
    try:
        yield started
    finally:
        started.stop()


def fill(platform: Platform, count: int, partitions: int, values: Sequence[bytes] | None = None) -> None:
    """Append the same 20,000 values repeatedly, in batches like publishes of a thousand events."""
    platform.log.create(EventType("orders", partitions=partitions))
    (timeline,) = platform.log.timelines("orders")
    storage = platform.log._storages.get(timeline.storage_id)  # noqa: SLF001 - publishing would take minutes
    values = values or data.values(20 * _BATCH)
    share = _BATCH // partitions
    waiting = []
    for number in range(count // _BATCH):
        start = number % 20 * _BATCH
        parts = {p: values[start + p * share : start + (p + 1) * share] for p in range(partitions)}
        waiting.append(storage.append(timeline.topic, {p: NewRecords(NOW_MS, part) for p, part in parts.items()}))
        if len(waiting) > 100:
            waiting.pop(0).result()
    for future in waiting:
        future.result()


def _options(platform: Platform) -> dict[str, str]:
    return {"data": str(platform.data), "event_types": "orders", "columns": _COLUMNS}


def _to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def _sqlite(directory: Path, scale: Scale, rows: int, per_batch: int | None) -> Iterator[list[Side]]:
    count = scale.of(rows // _BATCH) * _BATCH
    with strandline.open(directory / "ours") as platform, session() as spark:
        fill(platform, count, _CORES)

        def batch() -> int:
            _to_nowhere(spark.read.format("strandline").options(**_options(platform)).load())
            return count

        def stream() -> int:
            options = {**_options(platform), "max_records_per_batch": str(per_batch)}
            checkpoint = tempfile.mkdtemp(dir=directory)
            frame = spark.readStream.format("strandline").options(**options).load()
            writer = frame.writeStream.format("noop").trigger(availableNow=True)
            query = writer.option("checkpointLocation", checkpoint).start()
            query.awaitTermination()
            shutil.rmtree(checkpoint)
            return count

        yield [Side("ours", batch if per_batch is None else stream)]


@contextmanager
def _kafka(directory: Path, scale: Scale) -> Iterator[list[Side]]:
    from services.kafka import Broker  # noqa: PLC0415 - as above

    count = scale.of(4000) * _BATCH
    with (
        Broker(directory / "kafka") as broker,
        strandline.open(directory / "ours") as platform,
        session() as spark,
    ):
        configuration = KafkaConfiguration(broker.bootstrap_servers)
        platform.log.admin.add_storage(StorageInfo("kafka", "kafka", kafka_configuration=configuration))
        platform.log.admin.set_default_storage("kafka")
        fill(platform, count, 4)
        (timeline,) = platform.log.timelines("orders")

        def ours() -> int:
            _to_nowhere(spark.read.format("strandline").options(**_options(platform)).load())
            return count

        def peer() -> int:
            options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": timeline.topic}
            _to_nowhere(spark.read.format("kafka").options(**options).load())
            return count

        yield [Side("ours", ours), Side("Spark's own Kafka connector", peer)]


def _parameters(partitions: int, rows: int, **more: object) -> dict[str, object]:
    return {
        "event bytes": data.mean_size(data.values(1000)),
        "partitions": partitions,
        "rows": rows,
        "published": f"{_BATCH} at a time",
        "columns": 7,
        **more,
        "connections": f"local[{_CORES}]",
        "warm-up": "1 round",
    }


ROWS = [
    Row(
        "Spark batch read, SQLite",
        _parameters(_CORES, 8_000_000),
        lambda directory, scale: _sqlite(directory, scale, 8_000_000, None),
        Target(rate=2_000_000),
    ),
    Row(
        "Spark stream, SQLite",
        _parameters(_CORES, 12_000_000, **{"micro-batch": 1_000_000}),
        lambda directory, scale: _sqlite(directory, scale, 12_000_000, 1_000_000),
        Target(rate=1_000_000),
    ),
    Row("Spark batch read, Kafka", _parameters(4, 4_000_000), _kafka, Target(ratio=1.0)),
]
