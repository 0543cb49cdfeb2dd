"""`spark.read.format("strandline")` on an embedded platform."""

import json

import pytest
from pyspark.errors import PySparkException

import strandline
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """300 events in 3 partitions; the last 100 are in a second timeline."""
    data = tmp_path_factory.mktemp("orders")
    with strandline.open(data) as platform:
        log = platform.log
        log.admin.add_storage(StorageInfo("second", "sqlite", sqlite_configuration=SqliteConfiguration("second")))
        log.create(EventType("orders", partitions=3))
        for first in (0, 100, 200):
            if first == 200:
                log.admin.switch("orders", "second")
            log.publish("orders", [{"n": first + n} for n in range(100)]).raise_for_failed()
        yield platform


def load(spark, platform, **options):
    reader = spark.read.format("strandline").option("data", str(platform.data)).option("event_types", "orders")
    return reader.options(**options).load()


def numbers(frame) -> list[int]:
    return sorted(json.loads(row.value)["n"] for row in frame.select("value").collect())


def test_everything_is_there_in_order_over_timelines(spark, orders):
    """A batch read has one task per partition and returns the same records as the log, in order."""
    frame = load(spark, orders)
    assert frame.rdd.getNumPartitions() == 3
    found = {}
    for row in frame.collect():
        found.setdefault(str(row.partition), []).append((row.timeline, row.offset, bytes(row.value)))
        assert row.event_type == "orders"
    expected = {}
    for batch in orders.log.read("orders"):
        records = zip(batch.records["offset"].to_pylist(), batch.values, strict=True)
        expected.setdefault(batch.partition, []).extend((batch.timeline, *record) for record in records)
    assert found == expected
    assert {timeline for records in found.values() for timeline, *_ in records} == {1, 2}


def test_a_range_between_cursors(spark, orders):
    """A range starts after `from` and includes `to`, also across a switch."""
    infos = orders.log.partitions("orders")
    start = {info.partition: "001-0001-000000000000000009" for info in infos}
    end = {info.partition: "001-0002-000000000000000001" for info in infos}
    frame = load(spark, orders, **{"from": json.dumps({"orders": start}), "to": json.dumps({"orders": end})})
    before = {row.partition: row.last for row in _lasts(load(spark, orders).where("timeline = 1"))}
    assert frame.count() == sum(last - 9 + 2 for last in before.values())
    assert frame.where("timeline = 1 and offset <= 9").count() == 0
    assert frame.where("timeline = 2 and offset > 1").count() == 0


def _lasts(frame):
    return frame.groupBy("partition").agg({"offset": "max"}).withColumnRenamed("max(offset)", "last").collect()


def test_a_range_of_time(spark, orders):
    """A range of time includes `from` and excludes `to`."""
    moment = load(spark, orders).where("timeline = 2").agg({"timestamp": "min"}).collect()[0][0]
    text = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert numbers(load(spark, orders, **{"from": text})) == [*range(200, 300)]
    assert numbers(load(spark, orders, to=text)) == [*range(200)]


def test_nothing_to_read_is_an_empty_frame(spark, orders):
    """An empty range is an empty frame, also if `to` is before `from`."""
    assert load(spark, orders, **{"from": "END"}).count() == 0
    assert load(spark, orders, **{"from": "END", "to": "BEGIN"}).count() == 0


def test_only_the_columns_asked_for(spark, orders):
    """Columns are selected by option or by schema. A schema cannot change a type."""
    assert load(spark, orders, columns="offset,value").columns == ["offset", "value"]
    reader = spark.read.format("strandline").option("data", str(orders.data)).option("event_types", "orders")
    assert numbers(reader.schema("value BINARY").load()) == [*range(300)]
    with pytest.raises(PySparkException, match="the schema must have columns of struct"):
        reader.schema("value STRING").load().count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"event_types": "ordres"}, "event type 'ordres' does not exist"),
        ({"from": "yesterday"}, "is not an offset"),
        ({"from": '{"orders": {"0": "BEGIN"}}'}, "partition 1 of 'orders' is missing"),
        ({"from": '{"orders": {"7": "BEGIN"}}'}, "there is no partition"),
        ({"from": '{"returns": {"0": "BEGIN"}}'}, "cursors for 'returns'"),
        ({"from": '{"orders": 5}'}, "cursors must look like"),
        ({"data": "nowhere"}, "there is no data directory"),
        ({"evnt_types": "orders"}, "did you mean 'event_types'"),
    ],
)
def test_a_mistake_is_told_in_our_words(spark, orders, options, message):
    """A mistake in the options is reported with our error message."""
    with pytest.raises(PySparkException, match=message):
        load(spark, orders, **options).count()
