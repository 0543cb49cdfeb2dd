"""The outcome of an append to Kafka, from the driver's delivery reports.

The driver reports on every record. A callback per record would identify the record, but costs more than the record
itself. So all records of a `DeliveryGroup` share one callback, and a failed record is found by its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import repeat

from strandline.engine import kafka
from strandline.errors import OutcomeUnknown, StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage.port import FAILED, UNKNOWN, Placed

# No other thread runs while a group is handed to the driver: about a millisecond.
_GROUP_RECORDS = 1000
_RECORD_BYTES = 100  # memory for a record besides its value


class KafkaAppend:
    """An append in progress. One thread hands its records to the driver and receives the reports."""

    def __init__(
        self,
        topic: str,
        batches: Mapping[int, NewRecords],
        deadline: float,
        finished: Callable[[KafkaAppend], None],
    ) -> None:
        self.topic = topic
        self.deadline = deadline
        self.parts = {partition: Part(self, records) for partition, records in batches.items()}
        self.size = sum(records.size + _RECORD_BYTES * len(records) for records in batches.values())
        self.topic_missing = False
        self.open = 1  # groups that wait for reports, plus one until all records are handed over
        self.future: Future[dict[int, Placed]] = Future()
        self.future.set_running_or_notify_cancel()  # an append cannot be cancelled
        self._finished = finished

    def close_one(self) -> None:
        """Count `open` down; the last one completes the append."""
        self.open -= 1
        if not self.open:
            self._end(lambda: self.future.set_result({p: part.placed() for p, part in self.parts.items()}))

    def fail(self, error: StrandlineError) -> None:
        """No record was handed over."""
        self._end(lambda: self.future.set_exception(error))

    def give_up(self, cause: Exception | None) -> None:
        """End without the missing reports; the outcome is unknown."""
        unknown = OutcomeUnknown("the storage was closed before Kafka confirmed the append")
        unknown.__cause__ = cause
        self._end(lambda: self.future.set_exception(unknown))

    def _end(self, complete: Callable[[], None]) -> None:
        if not self.future.done():  # reports may arrive after `give_up`
            complete()
            self._finished(self)
            self.parts.clear()  # breaks a reference cycle that would keep all records until garbage collection


class Part:
    """The records of an append for one partition; the first `sent` of them were handed to the driver."""

    def __init__(self, append: KafkaAppend, records: NewRecords) -> None:
        self.records = records
        self.sent = 0
        self.append = append
        self._groups: list[DeliveryGroup] = []
        # A report is matched by its value. If values repeat, every record gets a group of its own.
        self._most = _GROUP_RECORDS if len({*records.values}) == len(records) else 1
        self._error: StrandlineError | None = None

    def begin(self) -> DeliveryGroup:
        """The next group of records."""
        return DeliveryGroup(self, self.sent, min(self.sent + self._most, len(self.records)))

    def end(self, group: DeliveryGroup, sent: int) -> None:
        """The driver accepted the records before number `sent`."""
        if sent > self.sent:
            self.append.open += 1
            self._groups.append(group)
            group.expect(sent)
        self.sent = sent

    def refuse(self, error: StrandlineError) -> None:
        """The driver did not accept the other records."""
        self._error = self._error or error

    def failed(self, error: kafka.KafkaError | None, seconds: float | None) -> int:
        """The state of a record that was not stored for certain: FAILED or UNKNOWN."""
        # No error and no offset: the driver assumes that the record is stored because a later one is.
        failure: StrandlineError = OutcomeUnknown("Kafka did not report the offset of the record")
        if error is not None:
            failure = kafka.undelivered(error, seconds)
            self.append.topic_missing |= kafka.says_missing(error)
        unknown = isinstance(failure, OutcomeUnknown)
        if self._error is None or unknown:
            self._error = failure
        return UNKNOWN if unknown else FAILED

    def placed(self) -> Placed:
        """The outcome of all records, once all reports have arrived."""
        offsets: list[int] = []
        for group in self._groups:
            offsets += group.offsets()
        self._groups.clear()  # breaks a reference cycle that would keep all records until garbage collection
        offsets += [FAILED] * (len(self.records) - self.sent)
        return Placed(offsets, self._error)


class DeliveryGroup:
    """Records from number `start` up to `end` with distinct values, handed to one producer in order.

    The producer stores them in this order, so the sorted offsets belong to the records in order.
    """

    # Slots, because the attributes are read for every record.
    __slots__ = ("_offsets", "_others", "_part", "_stored", "end", "start")

    def __init__(self, part: Part, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._part = part
        self._offsets: list[int] = []
        self._others: dict[bytes | None, int] = {}  # FAILED or UNKNOWN by the record's value
        self._stored = -1  # the number of offsets to expect if no more records fail

    def columns(
        self,
    ) -> tuple[Iterable[bytes | None], Iterable[bytes | None], Iterable[list[tuple[str, bytes]] | None]]:
        """Values, keys and headers; endless None for keys or headers that the records do not have."""
        of, own = self._part.records, slice(self.start, self.end)
        keys = repeat(None) if of.keys is None else of.keys[own]
        headers = repeat(None) if of.headers is None else [list(each or ()) for each in of.headers[own]]
        return of.values[own], keys, headers

    def expect(self, end: int) -> None:
        """The driver accepted the records before number `end` and will report on each."""
        self.end = end
        self._stored = end - self.start

    def reporter(self) -> Callable[[kafka.KafkaError | None, kafka.Message], None]:
        """The callback for the driver's report on each record."""
        offsets = self._offsets
        stored = offsets.append  # one attribute lookup instead of one per record

        def delivered(error: kafka.KafkaError | None, message: kafka.Message) -> None:
            if error is None and (offset := message.offset()) is not None:
                stored(offset)
            else:
                self._stored -= 1
                self._others[message.value()] = self._part.failed(error, message.latency())
            if len(offsets) == self._stored:
                self._part.append.close_one()

        return delivered

    def offsets(self) -> Sequence[int]:
        """The offset of every record, in order, or FAILED or UNKNOWN."""
        stored = sorted(self._offsets)  # reports may arrive in any order
        if not self._others:
            return stored
        left = iter(stored)
        own = self._part.records.values[self.start : self.end]
        return [self._others[value] if value in self._others else next(left) for value in own]
