"""Appends to Kafka: sent in the order in which they were started, answered one by one.

One thread hands records to the driver, another one takes its reports. Whoever appends waits for neither:
the queue before the first thread is bounded, and what does not fit is refused.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from strandline.engine import kafka
from strandline.errors import NotFound, StrandlineError, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage.kafka_outcome import Append, Part
from strandline.log.storage.kafka_topics import Topics
from strandline.log.storage.port import Placed

log = logging.getLogger(__name__)

# What may wait in this process, besides the quarter of it that the driver holds.
_QUEUE_BYTES = 1 << 30
_FULL_SECONDS = 0.005
_POLL_SECONDS = 0.1
_PURGE_SECONDS = 2.0


class Appender:
    """`patience_seconds`: an append that could not be handed over for so long is refused.

    `keep_house` is called several times a second, from the thread that takes the reports.
    """

    def __init__(
        self,
        new_producer: Callable[[], kafka.Producer],
        topics: Topics,
        *,
        patience_seconds: float,
        keep_house: Callable[[], None],
    ) -> None:
        self._new_producer = new_producer
        self._producers = [new_producer()]  # the last one is used, the others have reports to give
        self._topics = topics
        self._patience = patience_seconds
        self._keep_house = keep_house
        self._changed = threading.Condition()
        self._queue: deque[Append] = deque()
        self._queued_bytes = 0
        self._open: set[Append] = set()
        self._closing = False
        self._last_moment = math.inf
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._send_all, name="strandline-kafka-sender", daemon=True),
            threading.Thread(target=self._poll_all, name="strandline-kafka-reports", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def append(self, topic: str, batches: Mapping[int, NewRecords]) -> Future[dict[int, Placed]]:
        append = Append(topic, batches, time.monotonic() + self._patience, self._finished)
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
                self._changed.notify_all()
        if refusal is not None:
            append.fail(Unavailable(refusal))
        return append.future

    def _finished(self, append: Append) -> None:
        if append.topic_missing:
            self._topics.forget(append.topic)
        with self._changed:
            self._open.discard(append)
            if self._closing:
                self._changed.notify_all()

    # -- handing over

    def _send_all(self) -> None:
        while (append := self._next()) is not None:
            try:
                self._send(append)
            except StrandlineError as error:
                append.fail(error)
            except Exception as error:
                log.exception("an append to Kafka topic %s failed", append.topic)
                append.give_up(error)

    def _next(self) -> Append | None:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            if not self._queue:
                return None
            append = self._queue.popleft()
            self._queued_bytes -= append.size
            return append

    def _send(self, append: Append) -> None:
        """StrandlineErrors from here mean that nothing was handed over."""
        self._refuse_late(append)
        missing = {number for number in append.parts if not self._topics.has(append.topic, number)}
        for number, part in append.parts.items():
            try:
                if number in missing:
                    part.refuse(0, NotFound(f"the topic has no partition {number}"))
                else:
                    self._hand_over(append, number, part)
            except StrandlineError as error:
                part.refuse(part.sent, error)
        append.all_sent()

    def _hand_over(self, append: Append, partition: int, part: Part) -> None:
        while part.sent < len(part.records):
            try:
                self._produce(append.topic, partition, part)
            except BufferError:  # the driver's queue is full
                self._refuse_late(append)
                time.sleep(_FULL_SECONDS)
            except kafka.KafkaException as error:
                if not self._recovered(append, error.args[0]):
                    raise kafka.mapped(error.args[0], "Kafka's driver refused the record") from error

    def _produce(self, topic: str, partition: int, part: Part) -> None:
        """Everything that was not handed over yet. This thread alone does it, so the order holds."""
        produce, values = self._producers[-1].produce, part.records.values
        keys, headers, at = part.records.keys, part.records.headers, part.records.timestamp_ms
        for number in range(part.sent, len(values)):
            key = None if keys is None else keys[number]
            header: Any = None if headers is None else list(headers[number] or ())
            # By position, which is a third faster: the callback comes before its alias, then time and headers.
            produce(topic, values[number], key, partition, partial(part.delivered, number), None, at, header)
            part.sent += 1

    def _refuse_late(self, append: Append) -> None:
        if time.monotonic() > min(append.deadline, self._last_moment):
            raise Unavailable("Kafka is too slow; the events were not sent")

    def _recovered(self, append: Append, error: kafka.KafkaError) -> bool:
        """Whether it is worth another try. Nothing of what failed was taken by the driver."""
        self._refuse_late(append)
        if error.fatal() or error.name() == "_FATAL":
            log.error("Kafka's producer cannot go on and is replaced: %s", error.str())
            self._producers.append(self._new_producer())
            return True
        if kafka.says_missing(error) and not append.topic_missing:
            append.topic_missing = True  # also: only once
            with kafka.mapping(f"looking for topic {append.topic}"):
                self._producers[-1].list_topics(append.topic, timeout=self._patience)
            return True
        return False

    # -- reports

    def _poll_all(self) -> None:
        while not self._stopped.is_set():
            retired = self._producers[:-1]
            try:
                for producer in self._producers.copy():
                    producer.poll(0.01 if retired else _POLL_SECONDS)
                self._keep_house()
            except Exception:
                log.exception("a report of Kafka's producer could not be used")
            for producer in retired:
                if not len(producer):
                    self._producers.remove(producer)

    # -- the end

    def close(self, seconds: float) -> None:
        """Finish what was started, or give it up after so long."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._last_moment = time.monotonic() + seconds
            self._changed.notify_all()
        self._threads[0].join()
        if not self._wait_for_answers(self._last_moment):
            for producer in self._producers.copy():
                producer.purge()
            self._wait_for_answers(time.monotonic() + _PURGE_SECONDS)
        for append in self._open.copy():
            append.give_up(None)
        self._stopped.set()
        self._threads[1].join()
        self._producers.clear()

    def _wait_for_answers(self, deadline: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, max(0.0, deadline - time.monotonic()))
