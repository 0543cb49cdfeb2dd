"""Reads of a range of a partition, without a catalog, from SQLite and Kafka."""

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
from strandline.log.ranges import PartitionRange, Piece, read_chunks, read_range
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
    """A piece with the offsets 100 to 899 of a topic that has 1,000 records in its second partition."""
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
    """A range read returns exactly the records from the first to the last offset, in order."""
    assert numbers(part_of(tmp_path, piece)) == [*range(100, 900)]
    assert numbers(part_of(tmp_path, replace(piece, first=0, last=0))) == [0]


def test_large_ranges_come_in_several_batches(piece, tmp_path, monkeypatch):
    """The batches of a large range are contiguous and in order."""
    monkeypatch.setattr(ranges, "_READ_RECORDS", 70)
    batches = [*read_range(part_of(tmp_path, piece))]
    assert [len(batch) for batch in batches] == [70] * 11 + [30]
    assert all(a.records["offset"][-1].as_py() + 1 == b.records["offset"][0].as_py() for a, b in pairwise(batches))


def test_chunks_are_bounded_in_records_and_bytes(piece, tmp_path):
    """The chunks of a range are its records in order; each chunk has one record at least."""
    part = part_of(tmp_path, piece)
    by_records = [*read_chunks(part, 300, 1 << 30)]
    assert all(0 < len(chunk) <= 300 for chunk in by_records)
    assert [int(value) for chunk in by_records for value in chunk.values] == [*range(100, 900)]
    assert [len(chunk) for chunk in read_chunks(part, 300, 1)] == [1] * 800


def test_timelines_are_read_one_after_the_other(info, tmp_path):
    """Timelines are read in order, and every batch has its timeline."""
    first, second = filled(info, tmp_path, 1), filled(info, tmp_path, 2)
    batches = [*read_range(part_of(tmp_path, replace(first, last=999), replace(second, first=0)))]
    timelines = [batch.timeline for batch in batches]
    assert timelines == sorted(timelines)
    assert [int(value) for batch in batches for value in batch.values] == [*range(100, 1000), *range(900)]


def test_a_storage_is_opened_once_per_process(info, tmp_path):
    """A process opens each storage once and reuses it for later ranges."""
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
    """A topic that was deleted after the planning is an error, or its records are skipped with a warning."""
    opened(piece.storage, tmp_path).delete_topic(piece.topic)
    with pytest.raises(InvalidCursor, match="its topic was deleted"):
        numbers(part_of(tmp_path, piece))
    with caplog.at_level(logging.WARNING):
        assert numbers(part_of(tmp_path, piece, skip_expired=True)) == []
    assert "the records are skipped" in caplog.text


def test_records_that_were_there_and_are_not_are_a_loss(piece, tmp_path):
    """A range that ends after the newest offset is an error, because its records existed at the planning."""
    with pytest.raises(InvalidCursor, match="existed, but the newest offset is 999 now"):
        numbers(part_of(tmp_path, replace(piece, last=1500), skip_expired=True))


def test_what_kafka_has_removed_is_an_error_or_left_out(kafka, tmp_path):
    """Records that Kafka has deleted are an error, or are skipped; the rest of the range is read."""
    piece = filled(kafka_info(kafka), tmp_path)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([ck.TopicPartition(piece.topic, 1, 600)]).values():
        future.result(30)
    with pytest.raises(InvalidCursor, match="the oldest offset is 600 now"):
        numbers(part_of(tmp_path, piece))
    assert numbers(part_of(tmp_path, piece, skip_expired=True)) == [*range(600, 900)]


def test_marks_of_transactions_are_no_losses(kafka, tmp_path):
    """Transaction markers, which use offsets, do not count as lost records."""
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
