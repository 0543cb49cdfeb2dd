"""`df.write.format("strandline")` and `df.writeStream.format("strandline")`."""

import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import IntegerType, StructType

from services import until
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration
from strandline.pipeline.options import WriteOptions
from strandline.pipeline.sink import BatchWriter, Published


@pytest.fixture
def log(platform):
    platform.log.create(EventType("orders", partitions=2))
    return platform.log


def write(frame, platform, event_type="orders", **options):
    writer = frame.write.format("strandline").option("data", str(platform.data)).option("event_type", event_type)
    writer.options(**options).mode("append").save()


def events(log, name="orders") -> list[dict]:
    return [event for batch in log.read(name) for event in batch.events]


def test_rows_become_events_with_an_eid_each(spark, platform, log):
    """Columns become JSON fields, nulls are omitted, and every event gets a unique eid."""
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    rows = [(1, "a", Decimal("1.10"), moment, {"k": 1}), (2, None, Decimal("2.00"), moment, {})]
    schema = "n INT, name STRING, price DECIMAL(9, 2), at TIMESTAMP, tags MAP<STRING, INT>"
    write(spark.createDataFrame(rows, schema), platform)
    first, second = sorted(events(log), key=lambda event: event["n"])
    eids = {event.pop("metadata")["eid"] for event in (first, second)}
    assert len(eids) == 2
    assert first == {"n": 1, "name": "a", "price": 1.1, "at": "2024-05-01T12:00:00Z", "tags": {"k": 1}}
    assert second == {"n": 2, "price": 2.0, "at": "2024-05-01T12:00:00Z", "tags": {}}


@pytest.mark.parametrize("kind", ["STRING", "BINARY"])
def test_a_value_column_is_published_as_it_is(spark, platform, log, kind):
    """A `value` column is published byte for byte if `add_eid` is false."""
    texts = ['{"price": 1.10}', '{"price":2E3}']
    frame = spark.createDataFrame([(text,) for text in texts], "value STRING").selectExpr(f"CAST(value AS {kind})")
    write(frame, platform, add_eid="false")
    assert sorted(value for batch in log.read("orders") for value in batch.values) == sorted(
        text.encode() for text in texts
    )


def test_business_events_get_the_metadata_they_need(spark, platform, log):
    """Business events get an eid and the time of writing as metadata."""
    log.create(EventType("sales", category="business"))
    write(spark.range(3).withColumnRenamed("id", "n"), platform, "sales")
    found = events(log, "sales")
    assert sorted(event["n"] for event in found) == [0, 1, 2]
    assert all({"eid", "occurred_at", "received_at"} <= event["metadata"].keys() for event in found)


def test_the_same_write_gives_the_same_eids(spark, platform, log):
    """Writes with the same `write_id` have the same eids. Without a `write_id`, every write has new eids."""
    frame = spark.range(20).repartition(2)
    for options in ({"write_id": "monday"}, {"write_id": "monday"}, {}):
        write(frame, platform, **options)
    found = events(log)
    assert len(found) == 60
    assert len({event["metadata"]["eid"] for event in found}) == 40


def test_a_task_that_is_tried_again_repeats_its_eids(platform, log):
    """All attempts of a task publish the same eids."""
    options = WriteOptions.of({"data": str(platform.data), "event_type": "orders"})
    writer = pickle.dumps(BatchWriter(options, StructType().add("n", IntegerType()), overwrite=False))
    for _ in range(2):
        rows = pa.RecordBatch.from_pydict({"n": [1, 2, 2]})
        assert pickle.loads(writer).write(iter([rows])) == Published(3)
    found = events(log)
    assert len(found) == 6
    assert len({event["metadata"]["eid"] for event in found}) == 3


def test_large_frames_go_out_in_several_publishes(spark, platform, log):
    """A large frame is published in several batches, in order within a task."""
    write(spark.range(0, 12_000, numPartitions=1), platform)
    for partition in ("0", "1"):
        numbers = [
            event["id"] for batch in log.read("orders") if batch.partition == partition for event in batch.events
        ]
        assert numbers == sorted(numbers)
    assert len(events(log)) == 12_000


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ("SELECT 1 AS n", {"event_type": "ordres"}, "event type 'ordres' does not exist"),
        ("SELECT 'nonsense' AS value", {}, "the event is not JSON"),
        ("SELECT CAST(NULL AS STRING) AS value", {}, "a value is null"),
        ("SELECT 1 AS n", {"evnt_type": "x"}, "did you mean 'event_type'"),
    ],
)
def test_what_cannot_be_published_fails_the_write(spark, platform, log, frame, options, message):
    """A row that cannot be published fails the write with the log's error message."""
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(frame), platform, **options)
    assert events(log) == []


def test_a_log_is_not_overwritten(spark, platform, log):
    """The mode `overwrite` is refused."""
    with pytest.raises(PySparkException, match="the log is append-only"):
        spark.range(1).write.format("strandline").option("data", str(platform.data)).option(
            "event_type", "orders"
        ).mode("overwrite").save()


def test_a_stream_goes_from_one_event_type_to_another_through_a_switch(spark, platform, log, tmp_path):
    """A stream copies every event once, with a unique eid, while its target is switched."""
    log.admin.add_storage(StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second")))
    log.create(EventType("copies", partitions=1))
    home = {"data": str(platform.data)}
    source = spark.readStream.format("strandline").options(**home, event_types="orders", columns="value").load()
    query = (
        source.writeStream.format("strandline")
        .options(**home, event_type="copies", checkpointLocation=str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for round_ in range(3):
            log.publish("orders", [{"n": 10 * round_ + n} for n in range(10)]).raise_for_failed()
            until(
                lambda r=round_: query.exception() or len(events(log, "copies")) >= 10 * (r + 1),
                "all rows",
            )
            if round_ < 2:
                log.admin.switch("copies", ["second", "default"][round_])
        assert query.exception() is None
    finally:
        query.stop()
    found = events(log, "copies")
    assert sorted(event["n"] for event in found) == [*range(30)]
    assert len({event["metadata"]["eid"] for event in found}) == 30
    assert {batch.timeline for batch in log.read("copies")} == {1, 2, 3}
