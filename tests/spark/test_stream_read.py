"""`spark.readStream.format("strandline")`: limits, restarts, new partitions, expired records, switches."""

import json
import threading
from collections import defaultdict

import pytest
from pyspark.errors import StreamingQueryException

from services import DEADLINE_S, until
from services.kafka import Broker
from strandline import EventType
from strandline.log import StorageInfo
from strandline.log.storage.registry import KafkaConfiguration


class Batches:
    """A sink that stores every micro-batch. A repeated micro-batch must be identical."""

    def __init__(self) -> None:
        self.found: dict[int, list] = {}

    def __call__(self, frame, number: int) -> None:
        rows = [(row.event_type, row.partition, row.timeline, row.offset, row.value) for row in frame.collect()]
        assert self.found.setdefault(number, rows) == rows

    @property
    def sizes(self) -> list[int]:
        return [len(self.found[number]) for number in sorted(self.found)]

    def by_partition(self) -> dict[int, list[int]]:
        """The numbers of all events by partition, in the order of their arrival."""
        found = defaultdict(list)
        for number in sorted(self.found):
            for _, partition, _, _, value in self.found[number]:
                found[partition].append(json.loads(value)["n"])
        return dict(found)

    @property
    def numbers(self) -> list[int]:
        return sorted(number for numbers in self.by_partition().values() for number in numbers)


@pytest.fixture
def start(spark, platform, tmp_path):
    """A function that starts a query on `orders` with a checkpoint. All queries are stopped after the test."""
    started = []

    def start_query(sink: Batches, *, once: bool = False, **options):
        frame = spark.readStream.format("strandline").option("data", str(platform.data))
        writer = frame.option("event_types", "orders").options(**options).load().writeStream.foreachBatch(sink)
        trigger = {"availableNow": True} if once else {"processingTime": "0 seconds"}
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()
        started.append(query)
        if once:
            assert query.awaitTermination(DEADLINE_S)
        return query

    yield start_query
    for query in started:
        query.stop()


@pytest.fixture
def log(platform):
    platform.log.create(EventType("orders", partitions=2))
    return platform.log


class Publisher(threading.Thread):
    """Publishes seven events at a time, and counts the acknowledged ones."""

    def __init__(self, log) -> None:
        super().__init__(name="publisher")
        self.log, self.count, self.stopping = log, 0, threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            publish(self.log, 7, first=self.count)
            self.count += 7

    def until_more(self) -> None:
        """Wait for a publish that started after this call; one in progress may have started before it."""
        before = self.count
        until(lambda: self.count > before + 7, "more events")

    def stop(self) -> int:
        self.stopping.set()
        self.join()
        return self.count


def publish(log, count, first=0):
    log.publish("orders", [{"n": first + n} for n in range(count)]).raise_for_failed()


def test_batches_keep_the_limit_and_a_restart_goes_on(log, start):
    """An available-now query reads in batches of the limit. The next run reads only the records since then."""
    publish(log, 25)
    ends = {info.partition: info.newest_available_offset for info in log.partitions("orders")}
    sink = Batches()
    query = start(sink, once=True, max_records_per_batch=10)
    assert sink.sizes == [10, 10, 5]
    assert sink.numbers == [*range(25)]
    publish(log, 5, first=25)
    start(sink, once=True, max_records_per_batch=10)
    assert sink.sizes == [10, 10, 5, 5]
    assert sink.numbers == [*range(30)]
    (source,) = query.lastProgress["sources"]
    assert json.loads(source["endOffset"])["orders"]["cursors"] == ends
    assert source["endOffset"] == source["latestOffset"]


def test_a_query_from_the_end_sees_what_comes_and_new_partitions(log, start):
    """A query from the end reads all new events, and new partitions from their start."""
    publish(log, 10)
    sink = Batches()
    query = start(sink, starting="END")
    until(lambda: query.lastProgress, "the first poll")
    publish(log, 10, first=10)
    log.admin.grow("orders", 4)
    publish(log, 20, first=20)
    until(lambda: query.exception() or len(sink.numbers) >= 30, "all rows")
    assert sink.numbers == [*range(10, 40)]
    assert sink.by_partition().keys() == {0, 1, 2, 3}


def test_expired_records_end_the_query_unless_told_otherwise(log, start):
    """Expired records are an error with the available range. With `earliest` the query skips and counts them."""
    publish(log, 10)
    sink = Batches()
    start(sink, once=True)
    publish(log, 10, first=10)
    log._storages.get("default").purge(log.timelines("orders")[0].topic, 1 << 60)
    publish(log, 4, first=20)
    with pytest.raises(
        StreamingQueryException, match="its records have expired; available offsets are 001-0001-0000000000000000"
    ):
        start(sink, once=True)
    query = start(sink, once=True, on_unavailable="earliest")
    assert sink.numbers == [*range(10), *range(20, 24)]
    place = json.loads(query.lastProgress["sources"][0]["endOffset"])["orders"]
    assert sum(place["skipped"].values()) == 10


def test_a_query_goes_on_through_switches_of_storage(log, start, kafka, tmp_path):
    """A query reads every event once and in order through switches of storage and a restart."""
    with Broker(tmp_path / "second") as second:
        for name, broker in (("first", kafka), ("second", second)):
            configuration = KafkaConfiguration(broker.bootstrap_servers)
            log.admin.add_storage(StorageInfo(name, "kafka", kafka_configuration=configuration))
        sink, publisher = Batches(), Publisher(log)
        query = start(sink, max_records_per_batch=2000)
        publisher.start()
        try:
            publisher.until_more()
            for number, storage in enumerate(["first", "second", "default", "first", "second"]):
                log.admin.switch("orders", storage)
                publisher.until_more()
                if number == 2:
                    query.stop()
                    query = start(sink, max_records_per_batch=2000)
        finally:
            count = publisher.stop()
        until(lambda: query.exception() or len(sink.numbers) >= count, "all rows")
        query.stop()
        assert query.exception() is None
    assert sink.numbers == [*range(count)]
    assert all(numbers == sorted(numbers) for numbers in sink.by_partition().values())
    assert {row[2] for rows in sink.found.values() for row in rows} == {1, 2, 3, 4, 5, 6}
