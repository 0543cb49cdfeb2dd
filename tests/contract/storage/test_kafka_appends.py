"""What the Kafka storage does when its driver refuses records, which a real broker cannot be made to cause."""

from __future__ import annotations

import time

import confluent_kafka as ck
import pytest
from storage_place import records

from strandline.errors import Unavailable
from strandline.log.storage import FAILED
from strandline.log.storage.kafka_appends import Appender

FATAL = ck.KafkaException(ck.KafkaError(ck.KafkaError._FATAL, "fenced", True))


class Topics:
    def has(self, *_: object) -> bool:
        return True

    def forget(self, *_: object) -> None:
        pass


class Reported:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Producer:
    """Refuses with the errors it was given, one after the other, then takes and confirms everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.taken: list[bytes] = []
        self._waiting: list = []

    def produce(self, _topic, value, _key, _partition, callback, *_: object) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self._waiting.append((callback, len(self.taken)))
        self.taken.append(value)

    def poll(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))
        while self._waiting:
            callback, offset = self._waiting.pop(0)
            callback(None, Reported(offset))

    def __len__(self) -> int:
        return len(self._waiting)


@pytest.fixture
def appender():
    made: list[Appender] = []

    def make(*producers: Producer, patience: float = 20) -> Appender:
        left = iter(producers)
        made.append(Appender(lambda: next(left), Topics(), patience_seconds=patience, keep_house=lambda: None))
        return made[-1]

    yield make
    for each in made:
        each.close(1)


def test_a_producer_that_cannot_go_on_is_replaced(appender):
    """The records it did not take go to the next one, in order."""
    first, second = Producer(FATAL), Producer()
    placed = appender(first, second).append("t", {0: records(b"a", b"b", b"c")}).result(10)
    assert list(placed[0].offsets) == [0, 1, 2]
    assert (first.taken, second.taken) == ([], [b"a", b"b", b"c"])


def test_a_full_queue_is_waited_for_in_order(appender):
    """Nothing is skipped and nothing is handed over twice."""
    producer = Producer(*[BufferError("full")] * 5)
    sender = appender(producer)
    futures = [sender.append("t", {0: records(b"%d" % number)}) for number in range(5)]
    assert [future.result(10)[0].offsets[0] for future in futures] == [0, 1, 2, 3, 4]
    assert producer.taken == [b"0", b"1", b"2", b"3", b"4"]


def test_a_full_queue_is_not_waited_for_for_ever(appender):
    """What was never handed over has failed, and that is certain."""
    producer = Producer(*[BufferError("full")] * 100_000)
    placed = appender(producer, patience=0.1).append("t", {0: records(b"a", b"b")}).result(10)[0]
    assert list(placed.offsets) == [FAILED, FAILED]
    assert isinstance(placed.error, Unavailable)
    assert producer.taken == []
