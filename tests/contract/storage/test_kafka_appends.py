"""The Kafka storage when its driver refuses records, which a real broker cannot be made to do."""

from __future__ import annotations

import gc
import time
import weakref

import confluent_kafka as ck
import pytest
from storage_place import records

from services import until
from strandline.errors import OutcomeUnknown, TooLarge, Unavailable
from strandline.log.storage import FAILED, UNKNOWN
from strandline.log.storage.kafka_appends import Appender

FATAL = ck.KafkaException(ck.KafkaError(ck.KafkaError._FATAL, "fenced", True))
TIMED_OUT = ck.KafkaError(ck.KafkaError._MSG_TIMED_OUT)
TOO_LARGE = ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE)
NOT_TOLD = None  # stored at an unknown offset


class Topics:
    def has(self, *_: object) -> bool:
        return True

    def forget(self, *_: object) -> None:
        pass


class Reported:
    def __init__(self, value: bytes, offset: int | None) -> None:
        self._value = value
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def latency(self) -> float:
        return 0.01


class Producer:
    """Raises the given errors, one for each call, then accepts every record.

    Accepted records are stored from offset `first` on, except the numbers in `reports`, which get the error there.
    """

    def __init__(self, *errors: Exception, reports: dict | None = None, first: int = 0) -> None:
        self.errors = list(errors)
        self.taken: list[bytes] = []
        self._reports = reports or {}
        self._offset = first
        self._waiting: list = []

    def produce(self, _topic, value, _key, _partition, callback, *_: object) -> None:
        if self.errors and (error := self.errors.pop(0)):
            raise error
        error = self._reports.get(len(self.taken))
        stored = len(self.taken) not in self._reports
        self._waiting.append((callback, error, Reported(value, self._offset if stored else None)))
        self._offset += stored
        self.taken.append(value)

    def poll(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))
        while self._waiting:  # callbacks have no guaranteed order
            callback, error, message = self._waiting.pop()
            callback(error, message)

    def __len__(self) -> int:
        return len(self._waiting)


@pytest.fixture
def appender():
    made: list[Appender] = []

    def make(*producers: Producer, patience: float = 20) -> Appender:
        left = iter(producers)
        made.append(Appender(lambda: next(left), Topics(), patience_seconds=patience, housekeeping=lambda: None))
        return made[-1]

    yield make
    for each in made:
        each.close(1)


def test_a_producer_that_cannot_go_on_is_replaced(appender):
    """The next producer gets the records that the failed one did not accept, in order."""
    first, second = Producer(FATAL), Producer()
    placed = appender(first, second).append("t", {0: records(b"a", b"b", b"c")}).result(10)
    assert list(placed[0].offsets) == [0, 1, 2]
    assert (first.taken, second.taken) == ([], [b"a", b"b", b"c"])


def test_a_producer_that_cannot_go_on_leaves_its_records_where_they_are(appender):
    """The offsets of a failed producer and of its successor are kept apart."""
    first, second = Producer(None, None, FATAL, first=100), Producer(first=7)
    placed = appender(first, second).append("t", {0: records(b"a", b"b", b"c")}).result(10)
    assert list(placed[0].offsets) == [100, 101, 7]


def test_a_closed_one_makes_nothing_ready(appender):
    """A closed appender has no producer, so `make_ready` is Unavailable."""
    sender = appender(Producer())
    sender.close(1)
    with pytest.raises(Unavailable):
        sender.make_ready("t")


def test_every_record_has_its_own_outcome(appender):
    """Each record gets its own outcome, in whatever order the driver reports them."""
    producer = Producer(reports={1: TOO_LARGE, 3: TIMED_OUT, 4: NOT_TOLD})
    placed = appender(producer).append("t", {0: records(b"a", b"b", b"c", b"d", b"", b"f")}).result(10)[0]
    assert list(placed.offsets) == [0, FAILED, 1, UNKNOWN, UNKNOWN, 2]
    assert isinstance(placed.error, OutcomeUnknown)


def test_records_that_are_refused_for_certain_have_failed(appender):
    """A refused record has failed with the driver's reason; the others are stored."""
    producer = Producer(reports={0: TOO_LARGE})
    placed = appender(producer).append("t", {0: records(b"a", b"b")}).result(10)[0]
    assert list(placed.offsets) == [FAILED, 0]
    assert isinstance(placed.error, TooLarge)


def test_of_equal_records_each_has_its_own_outcome(appender):
    """Records with the same value keep separate outcomes."""
    producer = Producer(reports={2: TIMED_OUT})
    placed = appender(producer).append("t", {0: records(b"same", b"other", b"same", b"same")}).result(10)[0]
    assert list(placed.offsets) == [0, 1, UNKNOWN, 2]


def test_partitions_have_their_own_outcomes(appender):
    """A failed partition does not affect the other one."""
    producer = Producer(reports={0: TIMED_OUT, 1: TIMED_OUT})
    placed = appender(producer).append("t", {0: records(b"a", b"b"), 1: records(b"a", b"b")}).result(10)
    assert [list(placed[number].offsets) for number in (0, 1)] == [[UNKNOWN, UNKNOWN], [0, 1]]
    assert placed[1].complete


def test_a_finished_append_is_let_go_at_once(appender):
    """A finished append frees its records without the garbage collector."""
    gc.disable()
    try:
        sender = appender(Producer())
        future = sender.append("t", {0: records(b"a", b"b"), 1: records(b"a")})
        assert future.result(10)[0].complete
        gone = weakref.ref(future)
        del future
        until(lambda: gone() is None)
    finally:
        gc.enable()


def test_a_full_queue_is_waited_for_in_order(appender):
    """While the queue is full, no record is skipped or sent twice."""
    producer = Producer(*[BufferError("full")] * 5)
    sender = appender(producer)
    futures = [sender.append("t", {0: records(b"%d" % number)}) for number in range(5)]
    assert [future.result(10)[0].offsets[0] for future in futures] == [0, 1, 2, 3, 4]
    assert producer.taken == [b"0", b"1", b"2", b"3", b"4"]


def test_a_full_queue_is_not_waited_for_for_ever(appender):
    """Records that were never sent before the timeout have certainly failed."""
    producer = Producer(*[BufferError("full")] * 100_000)
    placed = appender(producer, patience=0.1).append("t", {0: records(b"a", b"b")}).result(10)[0]
    assert list(placed.offsets) == [FAILED, FAILED]
    assert isinstance(placed.error, Unavailable)
    assert producer.taken == []
