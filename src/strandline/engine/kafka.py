"""Kafka clients with the settings that our guarantees need, and error mapping.

The only importer of the driver. The caller chooses which properties of a storage are passed to the driver.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from strandline.errors import Invalid, NotFound, OutcomeUnknown, StrandlineError, TooLarge, Unavailable

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import (  # type: ignore[attr-defined]  # all of them are public
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        OffsetSpec,
        ResourceType,
    )
    from confluent_kafka.cimpl import NewPartitions, NewTopic
except ImportError as cause:
    raise Unavailable("the Kafka driver is not installed; run pip install 'strandline[kafka]'") from cause

__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "ConfigEntry",
    "ConfigResource",
    "Consumer",
    "IsolationLevel",
    "KafkaConnection",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "ResourceType",
    "TopicCollection",
    "TopicPartition",
    "mapped",
    "mapping",
    "says_fenced",
    "says_missing",
    "says_moving",
    "undelivered",
]

_Client = TypeVar("_Client")

_driver_log = logging.getLogger("strandline.engine.kafka.driver")

# The parts in which the lines about attempts of one kind differ: the client, and the duration.
_OF_ATTEMPT = re.compile(r"rdkafka#\S+|\(after .*\)")
_QUIET_SECONDS = 60.0
_KNOWN_LINES = 1000


class _NotRepeated(logging.Filter):
    """Passes equal lines once a minute: the driver logs every attempt to connect, several in a second."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = _OF_ATTEMPT.sub("", record.getMessage()), time.monotonic()
        if now - self._passed.get(text, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        if len(self._passed) >= _KNOWN_LINES:
            self._passed.clear()
        self._passed[text] = now
        return True


_driver_log.addFilter(_NotRepeated())

# Prefixes of the properties that only one kind of client accepts.
_PRODUCER_ONLY = (*("compression.", "linger.ms", "batch.", "queue.buffering.max.", "request.timeout.ms"),)
_CONSUMER_ONLY = ("fetch.", "max.partition.fetch.bytes", "queued.", "check.crcs")

# Names of Kafka's errors, grouped by what they mean for us.
_MISSING = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_WRONG = frozenset(
    {"INVALID_CONFIG", "INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "POLICY_VIOLATION", "TOPIC_EXCEPTION"}
)
# The leader of a partition is being elected or has just moved; a retry helps.
_MOVING = frozenset(
    {
        *("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "REPLICA_NOT_AVAILABLE", "OFFSET_NOT_AVAILABLE"),
        *("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "KAFKA_STORAGE_ERROR", "_NOENT"),
    }
)
# Another producer with the same `transactional.id` has replaced this one.
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
# Errors with which the broker rejects a write without starting it.
_REFUSED = frozenset(
    {
        *("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP", "INVALID_RECORD"),
        *("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION"),
    }
)
# The driver retries after its backoff of 100 ms at the earliest, minus 20 % jitter.
_RETRY_BACKOFF_MS = 100
_ONE_ATTEMPT_SECONDS = 0.08


@dataclass(frozen=True)
class KafkaConnection:
    """Creates clients for one cluster. `secrets` are properties whose values are never shown."""

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def producer(
        self, *, message_bytes: int, delivery_timeout_ms: int, transactional_id: str | None = None
    ) -> Producer:
        """An idempotent producer: retries inside the driver neither duplicate nor reorder records.

        With a `transactional_id`, its records are visible after their transaction is committed.
        """
        settings: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "allow.auto.create.topics": False,
            "compression.type": "lz4",
            "linger.ms": 2,
            "retry.backoff.ms": _RETRY_BACKOFF_MS,
            "message.max.bytes": message_bytes,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 << 10,
            # Records of a deleted topic fail after this time, not after the delivery timeout.
            "topic.metadata.propagation.max.ms": 5_000,
            "delivery.timeout.ms": delivery_timeout_ms,
        }
        if transactional_id is not None:
            # The driver requires that this is not shorter than the delivery timeout.
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": delivery_timeout_ms}
        return self._client(Producer, settings, _CONSUMER_ONLY)

    def consumer(self) -> Consumer:
        """A consumer for one partition at a time. It joins no group and commits no offsets."""
        settings = {
            "group.id": "strandline",  # required by the driver, but never used
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 16 << 10,
            # How long a consumer with a full queue waits before it fetches again.
            "fetch.queue.backoff.ms": 10,
        }
        return self._client(Consumer, settings, _PRODUCER_ONLY)

    def admin(self) -> AdminClient:
        return self._client(AdminClient, {"allow.auto.create.topics": False}, _PRODUCER_ONLY + _CONSUMER_ONLY)

    def _client(
        self, kind: Callable[..., _Client], settings: Mapping[str, Any], excluded: tuple[str, ...]
    ) -> _Client:
        """A client with our settings and the storage's properties, without the excluded ones."""
        given = {name: value for name, value in self.properties.items() if not name.startswith(excluded)}
        own = {"bootstrap.servers": self.bootstrap_servers, **settings}
        try:
            return kind({**own, **given, **self.secrets}, logger=_driver_log)
        except KafkaException as error:
            text = _text(error.args[0])
            if any(secret and secret in text for secret in self.secrets.values()):
                raise Invalid("Kafka rejects the value of a property that is given as env:NAME") from None
            raise Invalid(f"Kafka rejects these properties: {text}") from error


@contextmanager
def mapping(what: str) -> Iterator[None]:
    """Map Kafka's errors to ours; `what` describes the attempt."""
    try:
        yield
    except KafkaException as error:
        raise mapped(error.args[0], what) from error


def mapped(error: KafkaError, what: str) -> StrandlineError:
    """Our error for one of Kafka's; raise it from the original."""
    detail = f"{what}: {_text(error)}"
    if says_missing(error):
        return NotFound(detail)
    if error.name() == "MSG_SIZE_TOO_LARGE":
        return TooLarge(detail)
    if error.name() in _WRONG:
        return Invalid(detail)
    return Unavailable(detail)


def undelivered(error: KafkaError, seconds: float | None) -> StrandlineError:
    """The error for a record that was not confirmed: OutcomeUnknown unless it is certainly not stored.

    The driver does not report whether it has sent a record before. So a rejection by the broker proves that the
    record is not stored only if there was a single attempt, because the answer to an earlier one may have been
    lost. `seconds` is the time from handing the record to the driver to its report: it must be too short for two.
    """
    if error.name() in _REFUSED and seconds is not None and 0 <= seconds < _ONE_ATTEMPT_SECONDS:
        failure = mapped(error, "Kafka refused the record")
    else:
        failure = OutcomeUnknown(f"Kafka did not confirm the record: {_text(error)}")
    failure.__cause__ = KafkaException(error)
    return failure


def says_fenced(error: KafkaError) -> bool:
    """Whether another producer with the same `transactional.id` has replaced this one."""
    return error.name() in _FENCED


def says_missing(error: KafkaError) -> bool:
    """Whether the broker that was asked does not know the topic or partition; other brokers may know it."""
    return error.name() in _MISSING


def says_moving(error: KafkaError) -> bool:
    """Whether the partition has no leader at the moment. If the topic exists, it will have one soon."""
    return error.name() in _MOVING


def _text(error: KafkaError) -> str:
    return f"{error.str().strip()} ({error.name()})"
