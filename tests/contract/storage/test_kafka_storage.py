"""The contract of the Kafka storage alone: outcomes when the broker crashes, records that any client can read."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections import Counter
from concurrent.futures import Future

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from storage_place import DAY_MS, NOW_MS, append, read, records, values

from services import DEADLINE_S, until
from strandline.engine.kafka import KafkaConnection
from strandline.errors import Invalid, NotFound, OutcomeUnknown, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage import FAILED, UNKNOWN, Bounds, SealableStorage, kafka_reads
from strandline.log.storage.kafka import KafkaOptions, KafkaStorage


@pytest.fixture
def broker(kafka):
    """The broker, which a test may kill or pause."""
    yield kafka
    kafka.bring_back()


@pytest.fixture
def storage(broker):
    made = KafkaStorage(
        broker.bootstrap_servers, {}, KafkaOptions(delivery_timeout_ms=3_000, close_timeout_ms=2_000)
    )
    yield made
    made.close()


def outcome(future: Future) -> int:
    """The offset of the single record, FAILED or UNKNOWN."""
    error = future.exception(30)
    if isinstance(error, OutcomeUnknown):
        return UNKNOWN
    if error is not None:
        assert isinstance(error, Unavailable)
        return FAILED
    return future.result()[0].offsets[0]


# -- a broker that fails


def test_a_killed_broker_loses_nothing_it_acknowledged(broker, storage, topic):
    """After a crash under load, acknowledged records exist once, failed records do not, and appends continue."""
    started: dict[bytes, Future] = {}

    def start(count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(started)
            started[value] = storage.append(topic, {0: records(value)})

    start(500)
    assert started[b"100"].result(30)[0].complete
    start(2_000)
    broker.kill()
    start(500)
    outcomes = {value: outcome(future) for value, future in started.items()}
    broker.bring_back()
    assert append(storage, topic, {0: [b"after"]})[0].complete
    found = read(storage, topic, 0)
    times = Counter(value for _, value in found)
    assert set(times.values()) == {1}
    acknowledged = {(offset, value) for value, offset in outcomes.items() if offset >= 0}
    assert len(acknowledged) > 100
    assert acknowledged <= set(found)
    assert UNKNOWN in outcomes.values()
    assert not {value for value, offset in outcomes.items() if offset == FAILED} & set(times)
    in_order = [int(value) for _, value in found if value != b"after"]
    assert in_order == sorted(in_order)


def test_a_paused_broker_leaves_the_outcome_unknown(broker, storage, topic):
    """After the broker resumes, the record exists once or not at all."""
    append(storage, topic, {0: [b"before"]})
    broker.pause()
    placed = storage.append(topic, {0: records(b"unsure")}).result(30)[0]
    assert list(placed.offsets) == [UNKNOWN]
    assert isinstance(placed.error, OutcomeUnknown)
    assert isinstance(placed.error.__cause__, ck.KafkaException)
    broker.bring_back()
    append(storage, topic, {0: [b"after"]})
    found = values(storage, topic, 0)
    assert found in ([b"before", b"unsure", b"after"], [b"before", b"after"])


def test_closing_does_not_wait_for_a_broker_that_is_gone(broker, topic):
    """Close returns long before the delivery timeout; the outcome of a running append is unknown."""
    options = KafkaOptions(delivery_timeout_ms=3_600_000, close_timeout_ms=2_000)
    patient = KafkaStorage(broker.bootstrap_servers, {}, options)
    append(patient, topic, {0: [b"before"]})
    broker.pause()
    future = patient.append(topic, {0: records(b"unsure")})
    closing = threading.Thread(target=patient.close, daemon=True)
    closing.start()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert outcome(future) == UNKNOWN


def test_a_missing_broker_is_unavailable():
    """A missing broker is Unavailable, not NotFound."""
    storage = KafkaStorage("127.0.0.1:1", {}, KafkaOptions(delivery_timeout_ms=1_000, close_timeout_ms=500))
    with pytest.raises(Unavailable):
        storage.append("any", {0: records(b"a")}).result(30)
    storage.close()


def test_a_topic_that_another_process_deleted_is_soon_not_found(kafka, storage, topic):
    """A deleted topic is not treated as one that waits for its leader election."""
    append(storage, topic, {0: [b"a"]})
    assert values(storage, topic, 0) == [b"a"]
    other = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    other.delete_topics([topic])[topic].result(30)

    def gone() -> bool:
        try:
            storage.read(topic, 0, 1, max_records=1, max_bytes=1)
        except NotFound:
            return True
        return False  # brokers serve the topic for a moment after the controller's answer

    until(gone)


# -- beside other clients


def test_any_client_sees_the_events_own_json(kafka, storage, topic):
    """A plain Kafka client reads the value, key, headers and timestamp unchanged."""
    new = NewRecords(NOW_MS, [b'{"order_id": 1.10}'], [b"key"], [[("name", b"\xff")]])
    storage.append(topic, {2: new}).result(30)
    plain = ck.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": uuid.uuid4().hex})
    plain.assign([ck.TopicPartition(topic, 2, 0)])
    message = plain.poll(20)
    plain.close()
    assert message is not None
    assert message.error() is None
    assert (message.value(), message.key()) == (b'{"order_id": 1.10}', b"key")
    assert message.headers() == [("name", b"\xff")]
    assert message.timestamp() == (ck.TIMESTAMP_CREATE_TIME, NOW_MS)


@pytest.mark.parametrize("commit", [True, False])
def test_marks_of_transactions_are_gaps(kafka, storage, topic, commit):
    """Transaction markers use offsets; aborted records are not read; a read at the end is empty."""
    append(storage, topic, {0: [b"before"]})
    other = ck.Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": uuid.uuid4().hex})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, b"theirs", partition=0)
    other.flush(30)
    (other.commit_transaction if commit else other.abort_transaction)(30)
    ours = [b"before", b"theirs"] if commit else [b"before"]
    # The broker answers the commit before it has written the marker that makes the records visible.
    until(lambda: storage.bounds(topic)[0].last == 2)
    assert values(storage, topic, 0) == ours
    for offset in (2, 2, 3):
        assert storage.read(topic, 0, offset, max_records=10, max_bytes=1000).num_rows == 0
    assert append(storage, topic, {0: [b"after"]})[0].offsets[0] == 3
    assert values(storage, topic, 0) == [*ours, b"after"]


def test_reads_start_at_the_first_record_that_is_left(kafka, storage, topic):
    """Kafka deletes the oldest records by itself."""
    append(storage, topic, {0: [b"%d" % number for number in range(10)]})
    assert values(storage, topic, 0)[0] == b"0"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([ck.TopicPartition(topic, 0, 6)]).values():
        future.result(30)
    assert storage.bounds(topic)[0] == Bounds(6, 9)
    assert read(storage, topic, 0) == [(offset, b"%d" % offset) for offset in range(6, 10)]


# -- many readers


@pytest.fixture
def new_consumers(kafka, topic, monkeypatch):
    """Read the next record of these partitions, keeping two consumers; return the number of new consumers."""
    made: list[int] = []
    new = KafkaConnection.consumer
    monkeypatch.setattr(KafkaConnection, "consumer", lambda self: made.append(1) or new(self))
    few = KafkaStorage(kafka.bootstrap_servers, {}, KafkaOptions(max_open_reads=2))
    few.append(topic, {partition: records(b"a", b"b", b"c") for partition in range(3)}).result(30)
    places = Counter()

    def read(*partitions: int) -> int:
        made.clear()
        for partition in partitions:
            batch = few.read(topic, partition, places[partition], max_records=1, max_bytes=1000)
            assert batch.column("offset").to_pylist() == [places[partition]]
            places[partition] += 1
        return len(made)

    yield read
    few.close()


def test_more_readers_than_consumers_do_not_take_them_from_each_other(new_consumers, monkeypatch):
    """Two readers keep their consumers; the third gets a new one for every read."""
    monkeypatch.setattr(kafka_reads, "_LIKELY_SECONDS", 60)
    assert [new_consumers(0, 1, 2) for _ in range(3)] == [3, 1, 1]


def test_consumers_of_readers_that_went_away_make_room(new_consumers, monkeypatch):
    """A new reader replaces the consumer of a reader that is not expected to return."""
    monkeypatch.setattr(kafka_reads, "_LIKELY_SECONDS", 0)
    assert [new_consumers(0, 1), new_consumers(2), new_consumers(2), new_consumers(1)] == [2, 1, 0, 0]


# -- declared limits and settings


def test_kafka_cannot_seal(storage):
    """Kafka has no seal; an append must check the catalog instead."""
    assert not isinstance(storage, SealableStorage)


def test_few_replicas_are_warned_about_once(kafka, storage, topic, caplog):
    """One broker cannot have the three recommended replicas."""
    again = KafkaStorage(kafka.bootstrap_servers, {})
    for _ in range(2):
        again.create_topic(topic, 3, DAY_MS)
    again.close()
    assert sum("replication factor 1" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    ("properties", "what"),
    [
        ({"acks": "1"}, "acks"),
        ({"sasl.password": "open"}, "env:NAME"),
        ({"sasl.password": "env:HOME"}, "kafka_secrets"),
        ({"no.such.property": "1"}, "no.such.property"),
        ({"compression.type": "cardboard"}, "cardboard"),
        ({"replication.factor": "many"}, "replication.factor"),
    ],
)
def test_properties_that_cannot_be_used_are_refused(kafka, properties, what):
    """The error names the wrong property."""
    with pytest.raises(Invalid, match=what):
        KafkaStorage(kafka.bootstrap_servers, properties)


def test_a_secret_is_never_shown(kafka, monkeypatch):
    """The error does not show a secret that Kafka's driver would quote."""
    monkeypatch.setenv("SECRET_OF_TEST", "hush-hush")
    options = KafkaOptions(permitted_secrets="SECRET_OF_TEST")
    properties = {"security.protocol": "ssl", "ssl.key.pem": "env:SECRET_OF_TEST"}
    with pytest.raises(Invalid) as caught:
        KafkaStorage(kafka.bootstrap_servers, properties, options)
    assert "hush" not in str(caught.value)
    connection = KafkaConnection(kafka.bootstrap_servers, {}, {"security.protocol": "hush-hush"})
    with pytest.raises(Invalid) as caught:
        connection.admin()
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "hush" not in repr(connection)


def test_a_missing_driver_names_the_line_that_installs_it():
    """The Kafka driver is an optional extra."""
    code = "import sys; sys.modules['confluent_kafka'] = None; import strandline.log.storage.kafka"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'strandline[kafka]'" in done.stderr


# -- retention


def settings_of(kafka, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (found,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in found.result(30).items()}


def test_a_changed_retention_reaches_the_topic(kafka, storage, topic):
    """`retain` sets the retention of an existing topic and keeps its other settings."""
    before = settings_of(kafka, topic)
    assert before["retention.ms"] == str(DAY_MS)
    for retention_ms, segment_ms in ((8 * DAY_MS, 2 * DAY_MS), (1_000, 60_000), (400 * DAY_MS, 7 * DAY_MS)):
        for _ in range(2):
            storage.retain(topic, retention_ms)
            expected = {**before, "retention.ms": str(retention_ms), "segment.ms": str(segment_ms)}
            until(lambda expected=expected: settings_of(kafka, topic) == expected)


def test_without_a_retention_records_are_kept_for_ever(kafka, storage):
    """And segments have Kafka's own age."""
    name = f"kept.{uuid.uuid4().hex}"
    storage.create_topic(name, 1, None)
    found = settings_of(kafka, name)
    assert (found["retention.ms"], found["cleanup.policy"]) == ("-1", "delete")


def test_a_retention_can_be_taken_back(kafka, storage, topic):
    """While records wait for the archive, the broker must not delete them, whatever the topic had before."""
    storage.retain(topic, None)
    until(lambda: settings_of(kafka, topic)["retention.ms"] == "-1")
    storage.retain(topic, DAY_MS)
    until(lambda: settings_of(kafka, topic)["retention.ms"] == str(DAY_MS))


def test_an_unchanged_retention_costs_nothing(broker, storage, topic):
    """An unchanged retention time needs no request to the broker."""
    storage.retain(topic, DAY_MS)
    broker.pause()
    storage.retain(topic, DAY_MS)


def test_the_retention_of_a_missing_topic_is_not_found(storage):
    """`retain` of a missing topic is NotFound, like every other call."""
    with pytest.raises(NotFound):
        storage.retain("never-made", DAY_MS)
