"""Topics that a JVM service with kafka-journal writes, too."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from journal_node import replicate, texts

from services import until
from strandline.errors import Conflict
from strandline.journal.model import NewEvent, Payload, Pointer

pytestmark = pytest.mark.parametrize("opened", ["kafka, postgres"], indirect=True)


EMPTY: dict[str, object] = {}
THEIRS = {"expireAfter": "1 day", "data": {"by": "jvm"}}


class TheirTopic:
    """A topic that another service made and writes to, with the encoding written out by hand."""

    def __init__(self, servers: str, partitions: int = 3) -> None:
        self._servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
        self.name = f"their-{uuid.uuid4().hex}"
        self._partitions = partitions
        self._admin.create_topics([NewTopic(self.name, partitions, 1)])[self.name].result(20)
        until(lambda: len(self._admin.list_topics(self.name).topics[self.name].partitions) == partitions, "it")

    def write(self, entity: str, action: dict, value: bytes | None = None) -> None:
        headers = [("journal.action", json.dumps(action).encode()), ("trace", b"7")]
        self._producer.produce(self.name, value, entity.encode(), headers=headers)
        assert self._producer.flush(20) == 0

    def append(
        self,
        entity: str,
        *numbers: int,
        text: str = "x",
        metadata: object = EMPTY,
        own: Mapping[str, object] = THEIRS,
    ) -> None:
        """`metadata` are in the header, `own` in the value."""
        events = [{"seqNr": n, "tags": ["t"], "payloadType": "json", "payload": f"{text}{n}"} for n in numbers]
        header = {"range": {"from": numbers[0], "to": numbers[-1]}, "origin": "jvm", "version": "2.0.1"}
        body = json.dumps({"events": events, "metadata": dict(own)})
        self.write(entity, {"append": {**header, "payloadType": "json", "metadata": metadata}}, body.encode())

    def settings(self) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        found = self._admin.describe_configs([resource])[resource].result(20)
        return {key: entry.value for key, entry in found.items()}

    def records(self) -> list:
        """All records, as another service reads them."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": uuid.uuid4().hex})
        found = []
        for partition in range(self._partitions):
            place = TopicPartition(self.name, partition, 0)
            low, high = consumer.get_watermark_offsets(place, timeout=20)
            assert low == 0
            consumer.assign([place])
            while high and (not found or found[-1].partition() != partition or found[-1].offset() < high - 1):
                found += consumer.consume(1, timeout=20)
        consumer.close()
        return found


@pytest.fixture
def theirs(kafka) -> TheirTopic:
    return TheirTopic(kafka.bootstrap_servers)


@pytest.fixture
def adopt(node, theirs):
    """A function that adopts the topic and returns its journals."""

    def call():
        node.journals.create("accounts", partitions=3, kafka_topic=theirs.name)
        return node.journals.of("accounts")

    return call


def test_metadata_in_the_header_belong_to_the_events(node, theirs, adopt):
    """Before and after their replication. Metadata in the value are used first."""
    theirs.append("a", 1, metadata={"data": {"key": "value"}}, own={})
    theirs.append("a", 2, metadata={"data": {"key": "value"}})
    theirs.append("a", 3, metadata="x", own={})
    journal = adopt()
    for _ in range(2):
        found = [event.metadata for event in journal.read("a")]
        assert found == [b'{"key": "value"}', b'{"by": "jvm"}', None]
        replicate(node, "accounts")


def test_what_kafka_journal_wrote_reads_as_kafka_journal_would_read_it(node, theirs, adopt):
    theirs.append("a", 1, 2)
    theirs.write("a", {"mark": {"id": "m"}})
    theirs.append("a", 3)
    theirs.write("a", {"delete": {"to": 1, "origin": "jvm"}})
    theirs.append("b", 1)
    theirs.write("b", {"purge": {}})
    theirs.append("b", 1, text="again")
    theirs.write("c", {"delete": {"to": 4}})
    theirs.append("d", 7)
    theirs.write("e", {"new": {}})
    journal = adopt()
    theirs.append("a", 4)
    for _ in range(2):
        assert texts(journal.read("a")) == [(2, b'"x2"'), (3, b'"x3"'), (4, b'"x4"')]
        assert texts(journal.read("b")) == [(1, b'"again1"')]
        assert texts(journal.read("d")) == [(7, b'"x7"')]
        assert [(p.seq_nr, p.delete_to) for p in map(journal.pointer, "abcde")] == [
            (4, 1),
            (1, None),
            (4, 4),
            (7, 6),
            (None, None),
        ]
        event = next(journal.read("d"))
        assert (event.tags, event.metadata) == (("t",), b'{"by": "jvm"}')
        replicate(node, "accounts")
    topic = node.journals.topic("accounts")
    stored = node.journals.store().event(topic.id, "d", 7)
    assert (stored.origin, stored.headers) == ("jvm", (("trace", b"7"),))


def test_nothing_about_the_topic_is_changed(node, theirs, adopt, clock):
    before = theirs.settings()
    theirs.append("a", 1)
    journal = adopt()
    replicate(node, "accounts")
    clock.advance(1_000_000_000)
    node.journals.upkeep.run()
    node.log.upkeep.run()
    assert texts(journal.read("a")) == [(1, b'"x1"')]
    assert theirs.settings() == before
    written = [record for record in theirs.records() if b'"mark"' not in dict(record.headers())["journal.action"]]
    assert len(written) == 1
    node.log.delete("accounts")
    node.log.upkeep.run()
    assert theirs.settings() == before
    assert theirs.records()


def test_our_records_are_those_that_kafka_journal_writes(theirs, adopt):
    journal = adopt()
    journal.append("a", [{"n": 1}], expected=0, metadata={"by": "us"}, expire_after_ms=60_000)
    journal.append("a", [NewEvent(Payload("binary", b"\x00"))], expected=1)
    journal.delete("a", 1)
    journal.purge("a")
    found = [(r.key(), json.loads(dict(r.headers())["journal.action"]), r.value()) for r in theirs.records()]
    found = [one for one in found if "mark" not in one[1]]
    assert {key for key, _, _ in found} == {b"a"}
    (_, append, value), (_, binary, data), (_, delete, no_value), (_, purge, nothing) = found
    extra = append["append"].pop("strandline")
    origin = append["append"].pop("origin")
    assert {*extra} == {"id", "expire_after"}  # no conditions: kafka-journal would not know that they make it void
    assert append == {"append": {"range": {"from": 1, "to": 1}, "payloadType": "json", "metadata": {}}}
    assert json.loads(value) == {
        "events": [{"seqNr": 1, "tags": [], "payloadType": "json", "payload": {"n": 1}}],
        "metadata": {"expireAfter": "60000 milliseconds", "data": {"by": "us"}},
    }
    assert binary["append"]["payloadType"] == "binary"
    assert data[:5] == b"\x01\x00\x00\x00\x01"
    assert delete == {"delete": {"to": 1, "origin": origin}}
    assert purge == {"purge": {"origin": origin}}
    assert (no_value, nothing) == (None, None)


def test_appends_are_checked_before_they_are_written(node, theirs, adopt):
    theirs.append("a", 1, 2)
    journal = adopt()
    before = len(theirs.records())
    for events, conditions, pointer in [
        ([1], {"expected": 0}, 2),
        ([1], {"expected": 3}, 2),
        ([NewEvent(seq_nr=2)], {}, 2),
        ([3], {"expected": 2, "since": "001-0001-000000000000000999"}, 2),
    ]:
        with pytest.raises(Conflict) as caught:
            journal.append("a", events, **conditions)
        assert caught.value.info["seq_nr"] == pointer
    assert len(theirs.records()) == before
    since = journal.pointer("a").since
    first = journal.append("a", [3], expected=2, since=since, append_id="x")
    assert journal.append("a", [3], expected=2, append_id="x") == first
    replicate(node, "accounts")
    assert journal.append("a", [3], expected=2, append_id="x") == first
    assert texts(journal.read("a")) == [(1, b'"x1"'), (2, b'"x2"'), (3, b"3")]


def test_writers_of_one_node_do_not_use_a_seq_nr_twice(adopt):
    journal = adopt()

    def write(number):
        try:
            return journal.append("a", [number], expected=0).seq_nr
        except Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(8)), key=str) == [1, *[None] * 7]
    assert len([*journal.read("a")]) == 1


def test_writers_of_several_nodes_do_not_use_a_seq_nr_twice(opened, adopt):
    """Nothing is void on an adopted topic, so one of two appends of the same seqNr would be lost."""
    adopt()
    nodes = [opened(), opened()]
    won: dict[int, list[int]] = defaultdict(list)

    def write(number):
        journal, pointer = nodes[number % 2].journal("accounts"), 0
        while pointer < 20:
            try:
                pointer = journal.append("a", [number], expected=pointer).seq_nr
            except Conflict as error:
                pointer = error.info["seq_nr"]
            else:
                won[pointer].append(number)

    with ThreadPoolExecutor(8) as pool:
        for call in [pool.submit(write, number) for number in range(8)]:
            call.result(120)
    winners = [(seq_nr, b"%d" % only) for seq_nr, [only] in sorted(won.items())]
    assert [seq_nr for seq_nr, _ in winners] == [*range(1, len(winners) + 1)]
    for node in [*nodes, opened()]:
        assert texts(node.journal("accounts").read("a")) == winners


def test_seq_nrs_that_two_services_used_are_read_once_however_much_is_replicated(node, theirs, adopt):
    """The events of the later append are read, and the pointer is that of the last append."""
    journal = adopt()
    theirs.append("a", 1, 2, 3, text="old")
    theirs.append("b", 1, text="old")
    expected = [(1, b'"old1"'), (2, b'"new2"'), (3, b'"old3"')]
    replicate(node, "accounts")
    theirs.append("a", 2, text="new")
    assert texts(journal.read("a")) == expected
    assert journal.pointer("a").seq_nr == 2
    replicate(node, "accounts")
    assert texts(journal.read("a")) == expected
    theirs.append("b", 1, text="new")
    theirs.append("b", 2, text="new")
    assert texts(journal.read("b")) == [(1, b'"new1"'), (2, b'"new2"')]
    assert texts(journal.read("b", 2)) == [(2, b'"new2"')]
    replicate(node, "accounts")
    assert texts(journal.read("b")) == [(1, b'"new1"'), (2, b'"new2"')]


def test_snapshots_of_an_adopted_topic(theirs, adopt):
    theirs.append("a", 1)
    journal = adopt()
    journal.save_snapshot("a", 1, {"n": 1})
    assert journal.snapshot("a").payload == Payload("json", b'{"n":1}')
    theirs.write("a", {"purge": {}})
    assert journal.snapshot("a") is None
    assert journal.pointer("a") == Pointer()
