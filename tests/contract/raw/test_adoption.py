"""Kafka topics of other applications that hold the actions of journals."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from raw_records import append
from services import until
from strandline.errors import Conflict, Invalid
from strandline.log import StorageInfo
from strandline.log.cursors import Position
from strandline.log.partitioning import hash_partitions
from strandline.log.records import NewRecords
from strandline.log.storage.registry import SqliteConfiguration

KEYS = [b"account-%d" % number for number in range(40)]


@pytest.fixture
def engine() -> str:
    return "kafka"


class Cluster:
    """What another application does on the cluster."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers})

    def topic(self, partitions: int = 3, **config: str) -> str:
        name = f"their-{uuid.uuid4().hex}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(20)
        until(lambda: len(self.partitions(name)) == partitions, "the topic")
        return name

    def partitions(self, name: str) -> list[int]:
        return [*self.admin.list_topics(name, timeout=10).topics[name].partitions]

    def settings(self, name: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, name)
        found = self.admin.describe_configs([resource])[resource].result(20)
        return {key: entry.value for key, entry in found.items()}

    def produce(self, topic: str, keys: list[bytes | None], partitioner: str) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "partitioner": partitioner})
        for key in keys:
            producer.produce(topic, b"{}", key, headers=[("journal.action", b'{"mark": {"id": "1"}}')])
        assert producer.flush(20) == 0


@pytest.fixture
def cluster(kafka) -> Cluster:
    return Cluster(kafka.bootstrap_servers)


def test_an_existing_topic_is_adopted_with_its_records(raw, cluster):
    """The records of both sides are in one partition and one order."""
    theirs = cluster.topic()
    cluster.produce(theirs, [*KEYS, None], "murmur2_random")
    made, is_new = raw.create("accounts", 3, kafka_topic=theirs)
    assert (made.adopted, made.kafka_topic, made.partitions, is_new) == (True, theirs, 3, True)
    assert raw.create("accounts", kafka_topic=theirs) == raw.create("accounts") == (made, False)
    (partition,) = hash_partitions([KEYS[0]], 3)
    before = raw.end("accounts", partition)
    assert append(raw, "accounts", partition, NewRecords(1, [None], [KEYS[0]])) == [
        Position(before.order, before.offset + 1)
    ]
    found = [key for b in raw.read("accounts", partition, None, before) for key in b.records["key"].to_pylist()]
    assert KEYS[0] in found


def test_the_partition_count_is_that_of_the_topic(raw, cluster):
    theirs = cluster.topic(5)
    assert raw.create("accounts", kafka_topic=theirs)[0].partitions == 5
    with pytest.raises(Conflict, match=f"with 5 partitions in storage 'first' over the Kafka topic '{theirs}'"):
        raw.create("accounts", 5, kafka_topic="another")


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_refused(raw, cluster, policy):
    with pytest.raises(Conflict, match="is compacted"):
        raw.create("accounts", kafka_topic=cluster.topic(cleanup_policy=policy))


def test_another_partition_count_is_refused(raw, cluster):
    with pytest.raises(Conflict, match="has 3 partitions, not 4"):
        raw.create("accounts", 4, kafka_topic=cluster.topic(3))


def test_another_partitioner_is_refused(raw, cluster):
    theirs = cluster.topic()
    cluster.produce(theirs, KEYS, "consistent")
    with pytest.raises(Conflict, match="another partitioner"):
        raw.create("accounts", kafka_topic=theirs)
    assert raw.topics() == []


def test_a_topic_that_is_not_there_is_refused(platform, raw, cluster):
    """And none is created by accident, although the broker creates topics on request."""
    for name, problem in (
        ("missing", "no Kafka topic 'missing'"),
        ("bad name", "not the name"),
        ("", "not the name"),
    ):
        with pytest.raises(Invalid, match=problem):
            raw.create("accounts", kafka_topic=name)
    assert "missing" not in cluster.admin.list_topics(timeout=10).topics
    embedded = StorageInfo("embedded", "sqlite", sqlite_configuration=SqliteConfiguration("embedded"))
    platform.log.admin.add_storage(embedded)
    with pytest.raises(Invalid, match="needs a storage of type kafka"):
        raw.create("accounts", storage_id="embedded", kafka_topic="missing")


def test_one_topic_belongs_to_one_event_type(raw, cluster):
    theirs = cluster.topic()
    raw.create("accounts", kafka_topic=theirs)
    with pytest.raises(Conflict, match="belongs to another event type"):
        raw.create("others", kafka_topic=theirs)


def test_writers_of_an_adopted_topic_do_not_use_what_was_known(opened, raw, cluster):
    """Their appends are checked before they are written, so a refusal of the write would be too late."""
    theirs = cluster.topic()
    raw.create("accounts", kafka_topic=theirs)
    other = opened()
    other.log.delete("accounts")
    created, _ = other.log.raw.create("accounts", kafka_topic=theirs)
    assert raw.known("accounts") == created


def test_an_adopted_topic_is_never_changed(platform, raw, cluster, clock):
    """Not by switches, growth, trimming or upkeep; deleting the event type only forgets it."""
    theirs = cluster.topic(retention_ms="3600000")
    cluster.produce(theirs, KEYS, "murmur2_random")
    before = cluster.settings(theirs)
    raw.create("accounts", kafka_topic=theirs)
    ends = {partition: raw.end("accounts", partition) for partition in range(3)}
    for call in (
        lambda: platform.log.admin.switch("accounts", "second"),
        lambda: platform.log.admin.check_switch("accounts", "second"),
        lambda: platform.log.admin.grow("accounts", 6),
    ):
        with pytest.raises(Conflict):
            call()
    clock.advance(10**12)
    assert raw.trim("accounts", ends, clock.now_ms()) == 0
    platform.log.upkeep.run()
    platform.log.delete("accounts")
    clock.advance(10**12)
    platform.log.upkeep.run()
    assert cluster.settings(theirs) == before
    assert cluster.partitions(theirs) == [0, 1, 2]
    again, is_new = raw.create("accounts", kafka_topic=theirs)
    assert is_new
    assert [raw.end("accounts", p).offset for p in range(3)] == [ends[p].offset for p in range(3)]
    assert again.id != ""


def test_an_adopted_topic_that_has_grown_is_refused(raw, cluster, clock):
    """Its keys have moved to other partitions, so nothing is written or read any more."""
    theirs = cluster.topic()
    raw.create("accounts", kafka_topic=theirs)
    append(raw, "accounts", 0, NewRecords(1, [b"x"]))
    cluster.admin.create_partitions([NewPartitions(theirs, 4)])[theirs].result(20)
    until(lambda: len(cluster.partitions(theirs)) == 4, "the new partition")
    clock.advance(1000)
    for call in (
        lambda: append(raw, "accounts", 0, NewRecords(1, [b"x"])),
        lambda: raw.end("accounts", 0),
        lambda: [*raw.read("accounts", 0, None, Position(1, 0))],
    ):
        with pytest.raises(Conflict, match="has 4 partitions, not 3"):
            call()
