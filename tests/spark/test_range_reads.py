"""Reading a stretch of a partition in a process that knows the storages only: SQLite and Kafka, for real."""

import logging
import uuid
from dataclasses import replace
from itertools import pairwise

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from services import until
from strandline.errors import InvalidCursor
from strandline.log import StorageInfo, ranges
from strandline.log.ranges import PartitionRange, Piece, read_range
from strandline.log.records import NewRecords
from strandline.log.storage.registry import KafkaConfiguration, SqliteConfiguration

NOW_MS = 1_700_000_000_000


@pytest.fixture(params=["sqlite", "kafka"])
def info(request):
    if request.param == "sqlite":
        return StorageInfo("s", "sqlite", sqlite_configuration=SqliteConfiguration("topics"))
    return kafka_info(request.getfixturevalue("kafka"))


def kafka_info(broker) -> StorageInfo:
    return StorageInfo("k", "kafka", kafka_configuration=KafkaConfiguration(broker.bootstrap_servers))


@pytest.fixture
def piece(info, tmp_path):
    return filled(info, tmp_path)


def filled(info, tmp_path, timeline: int = 1) -> Piece:
    """A topic with 1,000 records in its second partition; the piece is 100 to 899."""
    topic = f"ranges.{uuid.uuid4().hex}"
    storage = opened(info, tmp_path)
    storage.create_topic(topic, 2, 86_400_000)
    for first in range(0, 1000, 250):
        values = [b"%d" % number for number in range(first, first + 250)]
        assert storage.append(topic, {1: NewRecords(NOW_MS, values)}).result()[1].complete
    return Piece(timeline, info, topic, 100, 899)


def opened(info, tmp_path):
    return ranges._storage(PartitionRange("orders", 1, (), str(tmp_path)), info)


def part_of(tmp_path, *pieces, **more) -> PartitionRange:
    return PartitionRange("orders", 1, pieces, str(tmp_path), **more)


def numbers(part) -> list[int]:
    return [int(value) for batch in read_range(part) for value in batch.values]


def test_exactly_the_records_of_the_range_in_order(piece, tmp_path):
    """From the first to the last, whatever lies around them."""
    assert numbers(part_of(tmp_path, piece)) == [*range(100, 900)]
    assert numbers(part_of(tmp_path, replace(piece, first=0, last=0))) == [0]


def test_large_ranges_come_in_several_batches(piece, tmp_path, monkeypatch):
    """Each follows the one before."""
    monkeypatch.setattr(ranges, "_READ_RECORDS", 70)
    batches = [*read_range(part_of(tmp_path, piece))]
    assert [len(batch) for batch in batches] == [70] * 11 + [30]
    assert all(a.records["offset"][-1].as_py() + 1 == b.records["offset"][0].as_py() for a, b in pairwise(batches))


def test_timelines_are_read_one_after_the_other(info, tmp_path):
    """Every batch names its own."""
    first, second = filled(info, tmp_path, 1), filled(info, tmp_path, 2)
    batches = [*read_range(part_of(tmp_path, replace(first, last=999), replace(second, first=0)))]
    timelines = [batch.timeline for batch in batches]
    assert timelines == sorted(timelines)
    assert [int(value) for batch in batches for value in batch.values] == [*range(100, 1000), *range(900)]


def test_a_storage_is_opened_once_per_process(info, tmp_path):
    """The next range is likely to follow."""
    assert opened(info, tmp_path) is opened(info, tmp_path)
    assert opened(info, tmp_path) is not opened(replace_id(info), tmp_path)


def replace_id(info) -> StorageInfo:
    return StorageInfo(
        "other",
        info.storage_type,
        kafka_configuration=info.kafka_configuration,
        sqlite_configuration=info.sqlite_configuration,
    )


def test_a_topic_that_is_gone(piece, tmp_path, caplog):
    """It was cleaned up after the range was cut: an error, or left out and reported."""
    opened(piece.storage, tmp_path).delete_topic(piece.topic)
    with pytest.raises(InvalidCursor, match="its topic was deleted"):
        numbers(part_of(tmp_path, piece))
    with caplog.at_level(logging.WARNING):
        assert numbers(part_of(tmp_path, piece, skip_expired=True)) == []
    assert "the records are skipped" in caplog.text


def test_records_that_were_there_and_are_not_are_a_loss(piece, tmp_path):
    """Never a shorter answer: the end was seen when the range was cut."""
    with pytest.raises(InvalidCursor, match="existed, but the newest offset is 999 now"):
        numbers(part_of(tmp_path, replace(piece, last=1500), skip_expired=True))


def test_what_kafka_has_removed_is_an_error_or_left_out(kafka, tmp_path):
    """The rest of the range is still given."""
    piece = filled(kafka_info(kafka), tmp_path)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([ck.TopicPartition(piece.topic, 1, 600)]).values():
        future.result(30)
    with pytest.raises(InvalidCursor, match="the oldest offset is 600 now"):
        numbers(part_of(tmp_path, piece))
    assert numbers(part_of(tmp_path, piece, skip_expired=True)) == [*range(600, 900)]


def test_marks_of_transactions_are_no_losses(kafka, tmp_path):
    """They take offsets, at the end of a range and before it."""
    info = kafka_info(kafka)
    piece = filled(info, tmp_path)
    other = ck.Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(piece.topic, b"1000", partition=1)
    other.flush(30)
    other.commit_transaction(30)
    storage = opened(info, tmp_path)
    until(lambda: storage.bounds(piece.topic)[1].last == 1001)
    assert storage.append(piece.topic, {1: NewRecords(NOW_MS, [b"1002"])}).result()[1].complete
    assert numbers(part_of(tmp_path, replace(piece, first=999, last=1001))) == [999, 1000]
    assert numbers(part_of(tmp_path, replace(piece, first=1001, last=1001))) == []
    assert numbers(part_of(tmp_path, replace(piece, first=1001, last=1002))) == [1002]
