"""Kafka's topics: creates, grows and deletes them, and looks up the offsets of their partitions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strandline.engine import kafka
from strandline.errors import Invalid, NotFound, StrandlineError, Unavailable
from strandline.log.storage.port import Bounds

log = logging.getLogger(__name__)

_Place = tuple[str, int]

_REQUEST_SECONDS = 10.0
_CHECK_SECONDS = 5.0
_RETRY_SECONDS = 0.02
_VISIBLE_SECONDS = 0.002
_ADVISED_REPLICAS = 3
_ADVISED_IN_SYNC = 2
_WEEK_MS = 604_800_000
_UNLIMITED_MS = 2**63 - 1
# Kafka rejects settings below this; a segment also costs two open files.
_SHORTEST_SEGMENT_MS = 60_000


@dataclass(frozen=True)
class Replication:
    """How many copies a topic has and how many of them must have a record before it is acknowledged.

    None: the recommended number (3 and 2), or fewer if the cluster has fewer brokers.
    """

    factor: int | None = None
    min_in_sync: int | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Replication:
        return cls(_positive(properties, "replication.factor"), _positive(properties, "min.insync.replicas"))

    def with_brokers(self, brokers: int) -> tuple[int, int]:
        factor = self.factor or min(_ADVISED_REPLICAS, brokers)
        return factor, self.min_in_sync or max(1, factor - 1)


def _positive(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"the Kafka property {name!r} must be a whole number of at least 1, not {text!r:.60}")
    return int(text)


class Topics:
    """The topics of a cluster. Partition counts are cached: they only grow, and topic names are not reused."""

    def __init__(self, admin: kafka.AdminClient, replication: Replication, message_bytes: int) -> None:
        self._admin = admin
        self._replication = replication
        self._message_bytes = message_bytes
        self._counts: dict[str, int] = {}
        self._retentions: dict[str, int | None] = {}
        self._warn_once = threading.Lock()

    def check_brokers(self) -> None:
        """Unavailable unless a broker of the cluster answers within a few seconds."""
        self._brokers(_CHECK_SECONDS)

    # -- existence

    def create(self, topic: str, partitions: int, retention_ms: int | None) -> None:
        factor, min_in_sync = self._replication.with_brokers(self._brokers())
        self._warn(factor, min_in_sync)
        settings = {
            "cleanup.policy": "delete",
            **_retention(retention_ms),
            "max.message.bytes": str(self._message_bytes),
            "min.insync.replicas": str(min_in_sync),
            "message.timestamp.type": "CreateTime",
            # The broker must not reject events because the publisher's clock is ahead.
            "message.timestamp.after.max.ms": str(_UNLIMITED_MS),
        }
        new = kafka.NewTopic(topic, partitions, factor, config=settings)
        with kafka.mapping(f"creating topic {topic}"):
            _wait_ignoring("TOPIC_ALREADY_EXISTS", self._admin.create_topics([new], **_timeouts())[topic])
        self._wait_until(lambda: self._led(topic), f"topic {topic} has no leaders yet")
        self._wait_for_leaders(topic, 1)

    def retain(self, topic: str, retention_ms: int | None) -> None:
        """Set the retention of a topic; None is no limit.

        Sends no request if this process has already set the same one.
        """
        if topic in self._retentions and self._retentions[topic] == retention_ms:
            return
        settings = [
            kafka.ConfigEntry(name, value, incremental_operation=kafka.AlterConfigOpType.SET)
            for name, value in _retention(retention_ms).items()
        ]
        changed = kafka.ConfigResource(kafka.ResourceType.TOPIC, topic, incremental_configs=settings)
        with kafka.mapping(f"setting the retention of topic {topic}"):
            altered = self._admin.incremental_alter_configs([changed], request_timeout=_REQUEST_SECONDS)
            altered[changed].result()
        self._retentions[topic] = retention_ms

    def delete(self, topic: str) -> None:
        with kafka.mapping(f"deleting topic {topic}"):
            _wait_ignoring("UNKNOWN_TOPIC_OR_PART", self._admin.delete_topics([topic], **_timeouts())[topic])
        self._counts.pop(topic, None)
        self._retentions.pop(topic, None)
        self._wait_until(lambda: self._describe([topic])[topic] is None, f"topic {topic} is not deleted yet")

    def grow(self, topic: str, partitions: int) -> None:
        if self.count(topic) >= partitions:
            return
        with kafka.mapping(f"growing topic {topic}"):
            growing = self._admin.create_partitions([kafka.NewPartitions(topic, partitions)], **_timeouts())
            # Another process may already have added these partitions, or more.
            _wait_ignoring("INVALID_PARTITIONS", growing[topic])
        self._wait_until(
            lambda: self._led(topic) and self.count(topic) >= partitions, f"topic {topic} has not grown yet"
        )
        self._wait_for_leaders(topic, partitions)

    def is_compacted(self, topic: str) -> bool:
        asked = kafka.ConfigResource(kafka.ResourceType.TOPIC, topic)
        with kafka.mapping(f"reading the settings of topic {topic}"):
            found = self._admin.describe_configs([asked], request_timeout=_REQUEST_SECONDS)[asked].result()
        return "compact" in found["cleanup.policy"].value

    def count(self, topic: str) -> int:
        """The current number of partitions. NotFound if the topic does not exist."""
        return self._count_all([topic])[topic]

    def _count_all(self, topics: Sequence[str]) -> dict[str, int]:
        for topic, found in self._describe(topics).items():
            if found is None:
                self._counts.pop(topic, None)
                raise NotFound(f"Kafka has no topic {topic}")
            self._counts[topic] = len(found.partitions)
        return {topic: self._counts[topic] for topic in topics}

    def has(self, topic: str, partition: int) -> bool:
        """Whether the topic has this partition; queries the cluster on a cache miss. NotFound like `count`."""
        return partition < self._counts.get(topic, 0) or partition < self.count(topic)

    def forget(self, topic: str) -> None:
        """Drop the cached partition count, because the topic may have been deleted."""
        self._counts.pop(topic, None)

    # -- offsets

    def bounds(self, topics: Sequence[str]) -> list[list[Bounds]]:
        places = {topic: [(topic, p) for p in range(count)] for topic, count in self._count_all(topics).items()}
        everywhere = [place for own in places.values() for place in own]
        first = self._offsets(everywhere, kafka.OffsetSpec.earliest())
        ends = self._offsets(everywhere, kafka.OffsetSpec.latest())
        return [[Bounds(_certain(first[at]), _certain(ends[at]) - 1) for at in places[topic]] for topic in topics]

    def end(self, topic: str, partition: int) -> int:
        """The offset after the last record that can be read."""
        return self._one(topic, partition, kafka.OffsetSpec.latest())

    def find(self, topic: str, partition: int, timestamp_ms: int) -> int:
        found = self._one(topic, partition, kafka.OffsetSpec.for_timestamp(timestamp_ms))
        return found if found >= 0 else self.end(topic, partition)

    def purge(self, topic: str, before_ms: int, until: Mapping[int, int]) -> int:
        """Delete records before a time, up to and including the offset of each partition; returns how many."""
        bounds = self.bounds([topic])[0]
        ends = {p: min(last + 1, self.find(topic, p, before_ms)) for p, last in until.items() if p < len(bounds)}
        ends = {p: end for p, end in ends.items() if end > bounds[p].first}
        if not ends:
            return 0
        places = [kafka.TopicPartition(topic, partition, end) for partition, end in ends.items()]
        with kafka.mapping(f"purging topic {topic}"):
            for future in self._admin.delete_records(places, **_timeouts()).values():
                future.result()
        return sum(end - bounds[partition].first for partition, end in ends.items())

    def _one(self, topic: str, partition: int, spec: Any) -> int:
        found = self._offsets([(topic, partition)], spec)[topic, partition]
        if isinstance(found, StrandlineError):
            self.count(topic)  # NotFound if the topic is missing; otherwise the partition has no leader
            raise Unavailable(found.detail) from found
        return found

    def ends(self, topics: Sequence[str]) -> dict[str, object]:
        """The ends of all partitions of each topic, or the error of its lookup; one request for all topics."""
        found: dict[str, object] = {}
        counts: dict[str, int] = {}
        for topic in topics:
            try:
                counts[topic] = self._counts.get(topic) or self.count(topic)
            except StrandlineError as error:
                found[topic] = error
        places = [(topic, partition) for topic, count in counts.items() for partition in range(count)]
        offsets = self._offsets(places, kafka.OffsetSpec.latest())
        for topic, count in counts.items():
            try:
                found[topic] = [_certain(offsets[topic, partition]) for partition in range(count)]
            except StrandlineError as error:
                self.forget(topic)
                found[topic] = error
        return found

    def await_visible(self, topic: str, deadline: float) -> None:
        """Return when every record that is stored now is visible, or was aborted: no transaction is open.

        Unavailable after the deadline, on the monotonic clock.
        """
        places = [(topic, partition) for partition in range(self.count(topic))]
        latest = kafka.OffsetSpec.latest()
        stored = self._offsets(places, latest, kafka.IsolationLevel.READ_UNCOMMITTED)
        while True:
            visible = self._offsets(places, latest)
            if all(_certain(visible[place]) >= _certain(stored[place]) for place in places):
                return
            if time.monotonic() > deadline:
                raise Unavailable(f"a transaction of another producer is open in topic {topic}", retry_after=1)
            time.sleep(_VISIBLE_SECONDS)

    def _offsets(
        self,
        places: Sequence[_Place],
        spec: Any,
        isolation: kafka.IsolationLevel = kafka.IsolationLevel.READ_COMMITTED,
    ) -> dict[_Place, int | StrandlineError]:
        """The offset of each place, or its error. Retries while the leader of a partition moves."""
        found: dict[_Place, int | StrandlineError] = {}
        deadline = time.monotonic() + _REQUEST_SECONDS
        while places:
            errors: dict[_Place, kafka.KafkaError] = {}
            for place, future in self._ask(places, spec, isolation).items():
                try:
                    found[place] = int(future.result().offset)
                except kafka.KafkaException as error:
                    errors[place] = error.args[0]
                    failure = kafka.mapped(error.args[0], f"looking for offsets of topic {place[0]}")
                    failure.__cause__ = error
                    found[place] = failure
            places = [place for place, error in errors.items() if kafka.says_moving(error)]
            if places and time.monotonic() > deadline:
                break
            if places:
                time.sleep(_RETRY_SECONDS)
                exists = {topic: self._refresh_leaders(topic) for topic, _ in places}
                places = [place for place in places if exists[place[0]]]
        return found

    def _refresh_leaders(self, topic: str) -> bool:
        """Whether the topic exists. This lookup also refreshes the driver's cache of its leaders."""
        with kafka.mapping(f"looking for the leaders of topic {topic}"):
            found = self._admin.list_topics(topic, timeout=_REQUEST_SECONDS).topics.get(topic)
        return found is not None and not (found.error and kafka.says_missing(found.error))

    def _ask(
        self, places: Iterable[_Place], spec: Any, isolation: kafka.IsolationLevel
    ) -> dict[_Place, Future[Any]]:
        futures = self._admin.list_offsets(
            {kafka.TopicPartition(*place): spec for place in places},
            isolation_level=isolation,
            request_timeout=_REQUEST_SECONDS,
        )
        return {(place.topic, place.partition): future for place, future in futures.items()}

    # -- the cluster

    def _describe(self, topics: Sequence[str]) -> dict[str, Any]:
        """The description of each topic; None for a topic that does not exist."""
        names = kafka.TopicCollection([*topics])
        described = self._admin.describe_topics(names, request_timeout=_REQUEST_SECONDS)
        found: dict[str, Any] = dict.fromkeys(topics)
        for topic, future in described.items():
            with suppress(NotFound), kafka.mapping(f"looking for topic {topic}"):
                found[topic] = future.result()
        return found

    def _led(self, topic: str) -> bool:
        found = self._describe([topic])[topic]
        return found is not None and all(part.leader is not None for part in found.partitions)

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        """Return when every leader serves its partition; brokers report a new leader before it is ready.

        A producer must not start earlier. A leader that is not ready may refuse the first batch and accept the
        second, and then the driver believes that both were stored.
        """
        self._wait_until(lambda: self._served(topic, partitions), f"leaders of topic {topic} are not ready yet")

    def _served(self, topic: str, partitions: int) -> bool:
        try:
            places = [(topic, partition) for partition in range(self.count(topic))]
            for found in self._offsets(places, kafka.OffsetSpec.latest()).values():
                _certain(found)
        except NotFound:  # one of the brokers does not know the topic yet
            return False
        return len(places) >= partitions

    def _brokers(self, seconds: float = _REQUEST_SECONDS) -> int:
        try:
            return len(self._admin.describe_cluster(request_timeout=seconds).result().nodes)
        except kafka.KafkaException as error:
            text = "the brokers do not answer; start them, or correct their addresses"
            raise Unavailable(text, retry_after=5) from error

    def _warn(self, factor: int, min_in_sync: int) -> None:
        enough = factor >= _ADVISED_REPLICAS and min_in_sync >= _ADVISED_IN_SYNC
        if not enough and self._warn_once.acquire(blocking=False):
            log.warning(
                "Kafka topics are created with replication factor %d and min.insync.replicas %d; use 3 and 2: "
                "with fewer, a single broken disk can lose acknowledged events",
                factor,
                min_in_sync,
            )

    @staticmethod
    def _wait_until(condition: Callable[[], bool], problem: str) -> None:
        """Poll, because the controller answers before all brokers know of a change."""
        deadline = time.monotonic() + _REQUEST_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise Unavailable(f"{problem}; try again later")
            time.sleep(_RETRY_SECONDS)


def _retention(retention_ms: int | None) -> dict[str, str]:
    if retention_ms is None:
        return {"retention.ms": "-1"}
    return {
        "retention.ms": str(retention_ms),
        # Only whole segments expire, and never the active one.
        "segment.ms": str(min(max(retention_ms // 4, _SHORTEST_SEGMENT_MS), _WEEK_MS)),
    }


def _timeouts() -> dict[str, float]:
    return {"operation_timeout": _REQUEST_SECONDS, "request_timeout": _REQUEST_SECONDS}


def _wait_ignoring(ignored: str, future: Future[Any]) -> None:
    try:
        future.result()
    except kafka.KafkaException as error:
        if error.args[0].name() != ignored:
            raise


def _certain(found: int | StrandlineError) -> int:
    if isinstance(found, StrandlineError):
        raise found
    return found
