"""Fenced appends to Kafka: each is a transaction of a producer whose `transactional.id` is the fence of the topic.

When another process begins to use the same `transactional.id`, the broker aborts the open transaction of the old
producer and refuses it from then on. The broker knows no epochs of ours. So a process that raises a fence must
check that its epoch is still the newest one, as `FencingStorage` requires.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from strandline import failpoints
from strandline.engine import kafka
from strandline.errors import Fenced, NotFound, OutcomeUnknown, StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.kafka_topics import Topics
from strandline.log.storage.port import FAILED, Fence, Placed

_POLL_SECONDS = 0.1


class KafkaFences:
    """The fences that this process holds. `new_producer` makes a producer for a `transactional.id`."""

    def __init__(
        self, new_producer: Callable[[str], kafka.Producer], topics: Topics, timeout_seconds: float
    ) -> None:
        self._new_producer = new_producer
        self._topics = topics
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], tuple[int, kafka.Producer]] = {}
        # One thread, so that appends are stored in the order in which they were started.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="strandline-kafka-fenced")

    def raise_fence(self, topic: str, fence: Fence) -> None:
        self._topics.count(topic)
        with self._lock:
            epoch, _ = self._held.get((topic, fence.name), (0, None))
            if epoch > fence.epoch:
                raise Fenced(f"the fence {fence.name} has a newer holder than {fence.epoch}")
            producer = self._new_producer(f"strandline.{topic}.{fence.name}")
            with kafka.mapping(f"raising the fence {fence.name}"):
                producer.init_transactions(self._timeout)
            self._topics.await_visible(topic, time.monotonic() + self._timeout)
            self._held[topic, fence.name] = (fence.epoch, producer)

    def append(self, topic: str, batches: Mapping[int, NewRecords], fence: Fence) -> Future[dict[int, Placed]]:
        return self._thread.submit(self._append, topic, batches, fence)

    def _append(self, topic: str, batches: Mapping[int, NewRecords], fence: Fence) -> dict[int, Placed]:
        with self._lock:
            epoch, producer = self._held.get((topic, fence.name), (0, None))
        if producer is None or epoch != fence.epoch:
            raise Fenced(f"the fence {fence.name} of topic {topic} is not held by {fence.epoch}")
        deadline = time.monotonic() + self._timeout
        try:
            placed = _Transaction(producer, topic, deadline).store(self._split(topic, batches))
        except StrandlineError as error:
            if not isinstance(error, NotFound):
                self._drop(topic, fence, producer)
            raise
        with suppress(StrandlineError):  # the records are stored, whatever the lookup says
            self._topics.await_visible(topic, deadline)
        return placed

    def _split(self, topic: str, batches: Mapping[int, NewRecords]) -> dict[int, NewRecords | Placed]:
        """The records of the partitions that exist, and the outcome for the others."""
        missing = {partition for partition in batches if not self._topics.has(topic, partition)}
        return {
            partition: Placed([FAILED] * len(records), NotFound(f"the topic has no partition {partition}"))
            if partition in missing
            else records
            for partition, records in batches.items()
        }

    def _drop(self, topic: str, fence: Fence, producer: kafka.Producer) -> None:
        """Do not use a producer again whose transaction failed: the caller raises the fence and gets a new one."""
        with self._lock:
            if self._held.get((topic, fence.name), (0, None))[1] is producer:
                del self._held[topic, fence.name]

    def close(self) -> None:
        """Finish the started appends."""
        self._thread.shutdown(wait=True)
        with self._lock:
            self._held.clear()


class _Transaction:
    """One append. After an error that is not OutcomeUnknown, nothing of it will ever be visible."""

    def __init__(self, producer: kafka.Producer, topic: str, deadline: float) -> None:
        self._producer = producer
        self._topic = topic
        self._deadline = deadline
        self._offsets: dict[int, list[int]] = {}
        self._error: kafka.KafkaError | None = None

    def store(self, parts: Mapping[int, NewRecords | Placed]) -> dict[int, Placed]:
        try:
            self._producer.begin_transaction()
            for partition, records in parts.items():
                if isinstance(records, NewRecords):
                    self._send(partition, records)
            self._await_reports()
        except kafka.KafkaException as error:
            self._abort()
            raise _refused(error.args[0]) from error
        failpoints.hit("fenced.append")
        self._commit()
        return {
            partition: records if isinstance(records, Placed) else Placed(sorted(self._offsets.get(partition, ())))
            for partition, records in parts.items()
        }

    def _send(self, partition: int, records: NewRecords) -> None:
        produce = partial(
            self._producer.produce,
            self._topic,
            partition=partition,
            on_delivery=partial(self._delivered, self._offsets.setdefault(partition, [])),
            timestamp=records.timestamp_ms,
        )
        keys = records.keys or [None] * len(records)
        headers = records.headers or [None] * len(records)
        for value, key, own in zip(records.values, keys, headers, strict=True):
            self._hand_over(partial(produce, value, key=key, headers=list(own or ())))

    def _hand_over(self, produce: Callable[[], None]) -> None:
        while True:
            try:
                produce()
            except BufferError:  # the driver's queue is full
                self._poll()
            else:
                return

    def _delivered(self, offsets: list[int], error: kafka.KafkaError | None, message: kafka.Message) -> None:
        if error is not None:
            self._error = self._error or error
        elif (offset := message.offset()) is not None:
            offsets.append(offset)

    def _await_reports(self) -> None:
        while len(self._producer):
            self._poll()
        if self._error is not None:
            raise kafka.KafkaException(self._error)

    def _poll(self) -> None:
        self._producer.poll(_POLL_SECONDS)
        if time.monotonic() > self._deadline:
            self._abort()
            raise Unavailable("Kafka is too slow; the events were not stored; try again later")

    def _abort(self) -> None:
        """Best effort: without a commit, the broker aborts the transaction later, and readers never see it."""
        try:
            self._producer.abort_transaction(max(1.0, self._deadline - time.monotonic()))
        except kafka.KafkaException:
            self._producer.purge()

    def _commit(self) -> None:
        while True:
            try:
                self._producer.commit_transaction(max(1.0, self._deadline - time.monotonic()))
            except kafka.KafkaException as error:
                reason = error.args[0]
                if reason.txn_requires_abort():
                    self._abort()
                    raise _refused(reason) from error
                if not reason.retriable() or time.monotonic() > self._deadline:
                    raise OutcomeUnknown(f"Kafka did not confirm the transaction: {reason.str()}") from error
            else:
                return


def _refused(error: kafka.KafkaError) -> StrandlineError:
    """The error for a transaction that was not committed."""
    if kafka.says_fenced(error):
        return Fenced(f"another process has raised the fence: {error.str()}")
    return kafka.mapped(error, "Kafka refused the transaction")
