"""Appends to Kafka: sent in the order in which they were started, each with its own outcome.

One thread hands records to the driver and receives its reports; two threads would contend for the interpreter on
every record. Callers do not wait for the thread: its queue is bounded, and an append that does not fit is refused.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import repeat
from operator import length_hint

from strandline.engine import kafka
from strandline.errors import NotFound, StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.kafka_outcome import KafkaAppend, Part
from strandline.log.storage.kafka_topics import Topics
from strandline.log.storage.port import Placed

log = logging.getLogger(__name__)

# Limit of the queue in this process. The driver holds up to a quarter of this in addition.
_QUEUE_BYTES = 1 << 30
# How long the thread waits for a report while appends are open, and for work while none are.
_REPORT_SECONDS = 0.002
_IDLE_SECONDS = 0.1
_PURGE_SECONDS = 2.0


class Appender:
    """`patience_seconds`: an append that could not be handed to the driver within this time is refused.

    `housekeeping` is called about once a second.
    """

    def __init__(
        self,
        new_producer: Callable[[], kafka.Producer],
        topics: Topics,
        *,
        patience_seconds: float,
        housekeeping: Callable[[], None],
    ) -> None:
        self._new_producer = new_producer
        self._producers = [new_producer()]  # the last one is in use, the others still have reports to deliver
        self._topics = topics
        self._patience = patience_seconds
        self._housekeeping = housekeeping
        self._changed = threading.Condition()
        self._queue: deque[KafkaAppend] = deque()
        self._queued_bytes = 0
        self._open: set[KafkaAppend] = set()
        self._closing = False
        self._last_moment = math.inf
        self._housekept_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="strandline-kafka-appends", daemon=True)
        self._thread.start()

    def make_ready(self, topic: str) -> None:
        """Have the driver look up the topic's leaders before the first append."""
        producers = self._producers[-1:]
        if not producers:
            raise Unavailable("the storage is closed")
        with kafka.mapping(f"looking for topic {topic}"):
            producers[0].list_topics(topic, timeout=self._patience)

    def append(self, topic: str, batches: Mapping[int, NewRecords]) -> Future[dict[int, Placed]]:
        append = KafkaAppend(topic, batches, time.monotonic() + self._patience, self._finished)
        refusal: str | None = None
        with self._changed:
            if self._closing:
                refusal = "the storage is closed"
            elif self._queue and self._queued_bytes + append.size > _QUEUE_BYTES:
                refusal = "too many events wait for Kafka; try again later"
            else:
                self._queue.append(append)
                self._queued_bytes += append.size
                self._open.add(append)
                self._changed.notify()
        if refusal is not None:
            append.fail(Unavailable(refusal))
        return append.future

    def _finished(self, append: KafkaAppend) -> None:
        if append.topic_missing:
            self._topics.forget(append.topic)
        self._open.discard(append)

    # -- the thread

    def _run(self) -> None:
        while not self._closing or self._queue or (self._open and time.monotonic() < self._last_moment):
            append = self._next()
            if append is not None:
                self._start(append)
            self._serve(_REPORT_SECONDS if self._open and not self._queue else 0)
        self._give_up_the_rest()

    def _next(self) -> KafkaAppend | None:
        with self._changed:
            if not self._queue and not self._open and not self._closing:
                self._changed.wait(_IDLE_SECONDS)
            if not self._queue:
                return None
            append = self._queue.popleft()
            self._queued_bytes -= append.size
            return append

    def _start(self, append: KafkaAppend) -> None:
        try:
            self._send(append)
        except StrandlineError as error:
            append.fail(error)
        except Exception as error:
            log.exception("an append to Kafka topic %s failed", append.topic)
            append.give_up(error)

    def _serve(self, seconds: float) -> None:
        """Receive reports, waiting for the first one at most this long."""
        try:
            for producer in self._producers:
                producer.poll(seconds)
            self._producers[:-1] = [producer for producer in self._producers[:-1] if len(producer)]
            if time.monotonic() - self._housekept_at > 1:
                self._housekept_at = time.monotonic()
                self._housekeeping()
        except Exception:
            log.exception("processing reports of Kafka's producer failed")

    def _give_up_the_rest(self) -> None:
        deadline = time.monotonic() + _PURGE_SECONDS
        if self._open:
            for producer in self._producers:
                producer.purge()
        while self._open and time.monotonic() < deadline:
            self._serve(_REPORT_SECONDS)
        for append in self._open.copy():
            append.give_up(None)
        self._producers.clear()

    # -- handing over

    def _send(self, append: KafkaAppend) -> None:
        """A StrandlineError from here means that no record was handed over."""
        self._refuse_late(append)
        missing = {number for number in append.parts if not self._topics.has(append.topic, number)}
        for number, part in append.parts.items():
            try:
                if number in missing:
                    part.refuse(NotFound(f"the topic has no partition {number}"))
                else:
                    self._hand_over(append, number, part)
            except StrandlineError as error:
                part.refuse(error)
        append.close_one()

    def _hand_over(self, append: KafkaAppend, partition: int, part: Part) -> None:
        while part.sent < len(part.records):
            try:
                self._produce(append.topic, partition, part)
            except BufferError:  # the driver's queue is full
                self._refuse_late(append)
                self._serve(_REPORT_SECONDS)
            except kafka.KafkaException as error:
                if not self._recovered(append, error.args[0]):
                    raise kafka.mapped(error.args[0], "Kafka's driver refused the record") from error

    def _produce(self, topic: str, partition: int, part: Part) -> None:
        """Hand over the next group of records. Only this thread does, which keeps the order."""
        group, at = part.begin(), part.records.timestamp_ms
        values, keys, headers = group.columns()
        left = iter(values)
        # Positional arguments cost a third less than keywords: callback, on_delivery (its alias), timestamp.
        same = (repeat(partition), repeat(group.reporter()), repeat(None), repeat(at))
        calls = map(self._producers[-1].produce, repeat(topic), left, keys, *same, headers)
        sent = group.end
        try:
            deque(calls, 0)  # runs all calls without executing Python code in between
        except BaseException:
            sent -= length_hint(left) + 1  # the driver did not accept the one that failed
            raise
        finally:
            part.end(group, sent)

    def _refuse_late(self, append: KafkaAppend) -> None:
        if time.monotonic() > min(append.deadline, self._last_moment):
            raise Unavailable("Kafka is too slow; the events were not sent; try again later")

    def _recovered(self, append: KafkaAppend, error: kafka.KafkaError) -> bool:
        """Whether to try again. The driver has accepted no record of the failed call."""
        self._refuse_late(append)
        if error.fatal() or error.name() == "_FATAL":
            log.error("Kafka's producer failed permanently and is replaced: %s", error.str())
            self._producers.append(self._new_producer())
            return True
        if kafka.says_missing(error) and not append.topic_missing:
            append.topic_missing = True  # set, so that this is tried only once
            self.make_ready(append.topic)
            return True
        return False

    # -- the end

    def close(self, seconds: float) -> None:
        """Finish the started appends. After this time, refuse those that wait and give up those that were sent."""
        with self._changed:
            if not self._closing:
                self._last_moment = time.monotonic() + seconds
                self._closing = True
                self._changed.notify()
        self._thread.join()
