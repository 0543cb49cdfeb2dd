"""Reads Kafka's partitions with consumers that are kept between reads.

A seek takes as long as the consumer's open fetch, which is slower than a new consumer. So a consumer only moves
forward, and after a read it is cached for the read that continues at its offset.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import pyarrow as pa

from strandline.engine import kafka
from strandline.errors import Unavailable
from strandline.log.records import HEADERS, READ, empty

_TIME = itemgetter(1)
_EMPTY = empty()
_PATIENCE_SECONDS = 10.0
# A reader that continues is back within this time; one that waits at the end may take longer.
_LIKELY_SECONDS = 2.0
_IDLE_SECONDS = 30.0
# Few enough to stay in the CPU cache until they are converted to Arrow: memory access is most of the work.
_FETCH_RECORDS = 500
_FIRST_FETCH_RECORDS = 100
_WAIT_SECONDS = 0.1


class ConsumerCache:
    """Idle consumers by their next offset: at most `limit`, each for at most half a minute.

    With more readers than `limit`, some of them get a new consumer for every read and the others keep theirs.
    If the longest idle consumer were evicted instead, every reader would lose its consumer between two reads.
    """

    def __init__(self, new_consumer: Callable[[], kafka.Consumer], limit: int) -> None:
        self._new_consumer = new_consumer
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: OrderedDict[PartitionConsumer, float] = OrderedDict()
        self._closed = False

    def take(self, topic: str, partition: int, offset: int) -> PartitionConsumer:
        """A consumer at this offset, for one caller, which must `give_back` or close it."""
        with self._lock:
            for kept in reversed(self._idle):
                if kept.place == (topic, partition) and kept.offset == offset:
                    del self._idle[kept]
                    return kept
        return PartitionConsumer(self._new_consumer, topic, partition, offset)

    def give_back(self, used: PartitionConsumer) -> None:
        if not used.started:
            return  # it has fetched nothing
        self.expire()
        now = time.monotonic()
        with self._lock:
            full = len(self._idle) >= self._limit
            if self._closed or (full and next(iter(self._idle.values())) > now - _LIKELY_SECONDS):
                gone: PartitionConsumer | None = used
            else:
                gone = self._idle.popitem(last=False)[0] if full else None
                self._idle[used] = now
        if gone is not None:
            gone.close()

    def drop(self, topic: str) -> None:
        """Close the consumers of a deleted topic."""
        self._close(lambda kept, _: kept.place[0] == topic)

    def expire(self) -> None:
        moment = time.monotonic() - _IDLE_SECONDS
        self._close(lambda _, since: since <= moment)

    def close(self) -> None:
        self._closed = True
        self._close(lambda *_: True)

    def _close(self, which: Callable[[PartitionConsumer, float], bool]) -> None:
        with self._lock:
            gone = [kept for kept, since in self._idle.items() if which(kept, since)]
            for old in gone:
                del self._idle[old]
        for old in gone:
            old.close()


class PartitionConsumer:
    """Reads one partition from an offset on, forward only. Not thread-safe."""

    def __init__(
        self, new_consumer: Callable[[], kafka.Consumer], topic: str, partition: int, offset: int
    ) -> None:
        self.place = (topic, partition)
        self.offset = offset
        self._new_consumer = new_consumer
        self._consumer: kafka.Consumer | None = None
        self._ready = _EMPTY
        self._seen = offset  # all records before this offset were fetched
        self._end = -1  # the end of the partition when it was last asked for
        self._mean_bytes = 0

    @property
    def started(self) -> bool:
        """Whether it has connected a consumer."""
        return self._consumer is not None

    def read(self, ask_end: Callable[[], int], max_records: int, max_bytes: int) -> pa.RecordBatch:
        """The records from `offset` on that exist now, within the limits; at least one if there is one."""
        found: list[pa.RecordBatch] = []
        left, room, deadline = max_records, max_bytes, time.monotonic() + _PATIENCE_SECONDS
        asked = False
        while left > 0:
            if not self._ready.num_rows and self._seen >= self._end:
                if asked:
                    break
                self._end, asked = ask_end(), True
            elif not self._ready.num_rows:
                self._fetch(min(left, self._fitting_fetch(room)), deadline)
            else:
                taken = self._take(left, room, at_least=0 if found else 1)
                if not taken.num_rows:
                    break
                found.append(taken)
                left -= taken.num_rows
                room -= int(_ends(taken)[-1])
        if not found:
            return _EMPTY
        self.offset = found[-1].column("offset")[-1].as_py() + 1
        return found[0] if len(found) == 1 else pa.concat_batches(found)

    def _take(self, most: int, room: int, at_least: int) -> pa.RecordBatch:
        """Fetched records, within the limits."""
        fitting = np.searchsorted(_ends(self._ready), room, side="right") - 1
        count = max(at_least, min(most, int(fitting)))
        taken, self._ready = self._ready.slice(0, count), self._ready.slice(count)
        return taken

    def _fitting_fetch(self, room: int) -> int:
        # While the size of the records is unknown, few are fetched at a time, to limit the memory.
        return min(_FETCH_RECORDS, max(1, room // self._mean_bytes)) if self._mean_bytes else _FIRST_FETCH_RECORDS

    def _fetch(self, most: int, deadline: float) -> None:
        """Fetch the next records, or find that the partition has no more."""
        consumer = self._consumer or self._start()
        trouble: kafka.KafkaError | None = None
        while True:
            # The driver waits for all requested records. So take those that have arrived, or wait for one.
            messages = consumer.consume(most, 0) or consumer.consume(1, _WAIT_SECONDS)
            if any(map(kafka.Message.error, messages)):
                for message in messages:
                    trouble = self._checked(message) or trouble
                messages = [message for message in messages if message.error() is None]
            if messages:
                self._ready = _batch(messages)
                self._seen = max(self._seen, _offset(messages[-1]) + 1)
                self._mean_bytes = 1 + int(_ends(self._ready)[-1]) // len(messages)
            if messages or self._seen >= self._end:
                return
            if time.monotonic() > deadline:
                break
        if trouble is not None:
            raise kafka.mapped(trouble, f"reading topic {self.place[0]}") from kafka.KafkaException(trouble)
        raise Unavailable(f"Kafka did not return the records of topic {self.place[0]} in time; try again later")

    def _checked(self, message: kafka.Message) -> kafka.KafkaError | None:
        error = message.error()
        if error is not None and error.name() == "_PARTITION_EOF":
            # The last offsets may be transaction markers, which are not records.
            self._seen = max(self._seen, _offset(message))
            return None
        if error is not None and kafka.says_missing(error):
            raise kafka.mapped(error, f"reading topic {self.place[0]}")
        return error

    def _start(self) -> kafka.Consumer:
        with kafka.mapping(f"reading topic {self.place[0]}"):
            self._consumer = self._new_consumer()
            self._consumer.assign([kafka.TopicPartition(*self.place, self.offset)])
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _offset(message: kafka.Message) -> int:
    return cast("int", message.offset())  # a fetched message always has one


def _ends(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The total size of the first 0, 1, 2 … values, taken from Arrow's own offsets."""
    values = batch.column("value")
    places = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return np.asarray(places - places[0])


def _batch(found: Sequence[kafka.Message]) -> pa.RecordBatch:
    message, count = kafka.Message, len(found)
    headers = [*map(message.headers, found)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.fromiter(map(message.offset, found), np.int64, count)),
            pa.array(np.fromiter(map(_TIME, map(message.timestamp, found)), np.int64, count)),
            pa.array([*map(message.key, found)], pa.binary()),
            pa.array([*map(message.value, found)], pa.binary()),
            pa.array(headers, HEADERS) if any(headers) else pa.nulls(count, HEADERS),
        ],
        schema=READ,
    )
