"""The storage on a Kafka cluster. A record's value on Kafka is the event's own JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from strandline.engine import kafka
from strandline.engine.watcher import Watcher
from strandline.errors import NotFound, Unavailable
from strandline.log.records import NewRecords
from strandline.log.settings import LogSettings
from strandline.log.storage import kafka_properties
from strandline.log.storage.kafka_appends import Appender
from strandline.log.storage.kafka_fences import KafkaFences
from strandline.log.storage.kafka_reads import ConsumerCache
from strandline.log.storage.kafka_topics import Replication, Topics
from strandline.log.storage.port import (
    AdoptingStorage,
    Bounds,
    ExistingTopic,
    Fence,
    FencingStorage,
    Placed,
)

# A key consists of parts of its event, so it is no larger than the event. The rest is Kafka's frame and headers.
_FRAME_BYTES = 64 << 10


@dataclass(frozen=True)
class KafkaOptions:
    """`delivery_timeout_ms`: without a confirmation within this time the outcome of an append is unknown.

    `permitted_secrets`: the environment variables that properties may name, as in `kafka_properties.check`.
    """

    max_event_bytes: int = 999_000
    poll_interval_ms: int = 25
    delivery_timeout_ms: int = 20_000
    close_timeout_ms: int = 10_000
    max_open_reads: int = 64
    permitted_secrets: str = ""

    @classmethod
    def of(cls, settings: LogSettings) -> KafkaOptions:
        return cls(
            max_event_bytes=settings.max_event_bytes,
            poll_interval_ms=settings.poll_interval_ms,
            max_open_reads=settings.max_open_reads,
            permitted_secrets=settings.kafka_secrets,
        )

    @property
    def message_bytes(self) -> int:
        return 2 * self.max_event_bytes + _FRAME_BYTES

    def producers(self, connection: kafka.KafkaConnection) -> partial[kafka.Producer]:
        """Creates producers; it takes their other arguments."""
        return partial(
            connection.producer, message_bytes=self.message_bytes, delivery_timeout_ms=self.delivery_timeout_ms
        )


def check_properties(bootstrap_servers: str, properties: Mapping[str, str], options: KafkaOptions) -> None:
    """Raise Invalid if a storage with these properties cannot be opened. Asks no broker."""
    Replication.of(properties)
    alone = replace(_connection(bootstrap_servers, properties, options), bootstrap_servers="")
    for client in (alone.admin, alone.consumer, options.producers(alone)):
        client()


def _connection(
    bootstrap_servers: str, properties: Mapping[str, str], options: KafkaOptions
) -> kafka.KafkaConnection:
    plain, secrets = kafka_properties.resolve(bootstrap_servers, properties, options.permitted_secrets)
    return kafka.KafkaConnection(bootstrap_servers, plain, secrets)


class KafkaStorage(AdoptingStorage, FencingStorage):
    """A Kafka cluster, which cannot seal a topic (see `SealableStorage`) and expires records by itself.

    `kafka_properties` says which properties it may have.
    """

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], options: KafkaOptions | None = None
    ) -> None:
        options = options or KafkaOptions()
        connection = _connection(bootstrap_servers, properties, options)
        self._close_seconds = options.close_timeout_ms / 1000
        self._admin = connection.admin()
        self._topics = Topics(self._admin, Replication.of(properties), options.message_bytes)
        self._consumers = ConsumerCache(connection.consumer, options.max_open_reads)
        new_producer = options.producers(connection)
        self._fences = KafkaFences(
            lambda name: new_producer(transactional_id=name), self._topics, options.delivery_timeout_ms / 1000
        )
        self._appender = Appender(
            new_producer,
            self._topics,
            patience_seconds=options.delivery_timeout_ms / 1000,
            housekeeping=self._housekeeping,
        )
        self._watcher = Watcher(self._topics.ends, options.poll_interval_ms / 1000)
        self._closed = False

    def check_ready(self) -> None:
        self._open_topics().check_brokers()

    def create_topic(self, topic: str, partitions: int, retention_ms: int | None) -> None:
        self._open_topics().create(topic, partitions, retention_ms)

    def delete_topic(self, topic: str) -> None:
        self._open_topics().delete(topic)
        self._consumers.drop(topic)
        self._watcher.notify(topic)

    def make_ready(self, topic: str) -> None:
        self._open_topics().count(topic)
        self._appender.make_ready(topic)

    def append(
        self,
        topic: str,
        batches: Mapping[int, NewRecords],
        *,
        waits: bool = False,  # noqa: ARG002 - makes no difference here
    ) -> Future[dict[int, Placed]]:
        future = self._appender.append(topic, batches)
        future.add_done_callback(lambda _: self._watcher.notify(topic))
        return future

    def raise_fence(self, topic: str, fence: Fence) -> None:
        self._open_topics()
        self._fences.raise_fence(topic, fence)

    def append_fenced(
        self, topic: str, batches: Mapping[int, NewRecords], fence: Fence
    ) -> Future[dict[int, Placed]]:
        self._open_topics()
        future = self._fences.append(topic, batches, fence)
        future.add_done_callback(lambda _: self._watcher.notify(topic))
        return future

    def read(self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch:
        self._refuse_missing(topic, partition)
        consumer = self._consumers.take(topic, partition, offset)
        try:
            batch = consumer.read(lambda: self._topics.end(topic, partition), max_records, max_bytes)
        except BaseException:
            consumer.close()
            self._topics.forget(topic)
            raise
        self._consumers.give_back(consumer)
        return batch

    def bounds_of(self, topics: Sequence[str]) -> list[list[Bounds]]:
        return self._open_topics().bounds(topics)

    def end(self, topic: str, partition: int) -> int:
        self._refuse_missing(topic, partition)
        return self._topics.end(topic, partition)

    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        self._refuse_missing(topic, partition)
        return self._topics.find(topic, partition, timestamp_ms)

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watcher.watch(topic, callback)

    def purge(self, topic: str, before_ms: int, until: Mapping[int, int] | None = None) -> int:
        topics = self._open_topics()
        # Kafka's own retention does the rest.
        return 0 if until is None else topics.purge(topic, before_ms, until)

    def existing(self, topic: str) -> ExistingTopic:
        return ExistingTopic(self._open_topics().count(topic), self._topics.is_compacted(topic))

    def retain(self, topic: str, retention_ms: int | None) -> None:
        self._open_topics().retain(topic, retention_ms)

    def grow(self, topic: str, partitions: int) -> None:
        self._open_topics().grow(topic, partitions)

    def tidy(self) -> None:
        self._consumers.expire()

    def close(self) -> None:
        self._closed = True
        self._watcher.close()
        self._appender.close(self._close_seconds)
        self._fences.close()
        self._consumers.close()

    def _housekeeping(self) -> None:
        self._consumers.expire()
        self._admin.poll(0)  # the driver writes its log lines in this call

    def _refuse_missing(self, topic: str, partition: int) -> None:
        if not self._open_topics().has(topic, partition):
            raise NotFound(f"the topic has no partition {partition}")

    def _open_topics(self) -> Topics:
        if self._closed:
            raise Unavailable("the storage is closed")
        return self._topics
