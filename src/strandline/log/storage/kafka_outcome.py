"""What became of an append to Kafka, put together from one report per record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from strandline.engine import kafka
from strandline.errors import OutcomeUnknown, StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage.port import FAILED, UNKNOWN, Placed

_RECORD_BYTES = 100  # what a record costs in memory besides its value


class Append:
    """An append on its way. One thread hands its records over and takes the reports."""

    def __init__(
        self,
        topic: str,
        batches: Mapping[int, NewRecords],
        deadline: float,
        finished: Callable[[Append], None],
    ) -> None:
        self.topic = topic
        self.deadline = deadline
        self.parts = {partition: Part(self, records) for partition, records in batches.items()}
        self.size = sum(sum(map(len, r.values)) + _RECORD_BYTES * len(r) for r in batches.values())
        self.topic_missing = False
        self.answered = 0
        self.expected = -1
        self.future: Future[dict[int, Placed]] = Future()
        self.future.set_running_or_notify_cancel()  # what is on its way cannot be called back
        self._finished = finished

    def all_sent(self) -> None:
        self.expected = sum(part.sent for part in self.parts.values())
        if self.answered == self.expected:
            self.finish()

    def finish(self) -> None:
        self._end(lambda: self.future.set_result({p: part.placed() for p, part in self.parts.items()}))

    def fail(self, error: StrandlineError) -> None:
        """Nothing was handed over."""
        self._end(lambda: self.future.set_exception(error))

    def give_up(self, cause: Exception | None) -> None:
        """Nobody waits for reports any more."""
        unknown = OutcomeUnknown("Kafka's answer was not waited for")
        unknown.__cause__ = cause
        self._end(lambda: self.future.set_exception(unknown))

    def _end(self, tell: Callable[[], None]) -> None:
        if not self.future.done():  # reports may come after it was given up
            tell()
            self._finished(self)


class Part:
    """One partition's records of an append; the first `sent` of them were handed to the driver."""

    def __init__(self, append: Append, records: NewRecords) -> None:
        self.records = records
        self.sent = 0
        self._append = append
        self._offsets = [UNKNOWN] * len(records)
        self._error: StrandlineError | None = None

    def refuse(self, start: int, error: StrandlineError) -> None:
        """The driver did not take the records from `start` on."""
        self._offsets[start:] = [FAILED] * (len(self._offsets) - start)
        self._error = self._error or error

    def delivered(self, number: int, error: kafka.KafkaError | None, message: kafka.Message) -> None:
        """The driver's report on one record."""
        append = self._append
        offset = message.offset() if error is None else None
        if offset is not None and offset >= 0:
            self._offsets[number] = offset
        elif error is not None:
            self._failed(number, error, message.latency())
        append.answered += 1
        if append.answered == append.expected:
            append.finish()

    def _failed(self, number: int, error: kafka.KafkaError, seconds: float | None) -> None:
        failure = kafka.undelivered(error, seconds)
        self._append.topic_missing |= kafka.says_missing(error)
        if not isinstance(failure, OutcomeUnknown):
            self._offsets[number] = FAILED
        if self._error is None or isinstance(failure, OutcomeUnknown):
            self._error = failure

    def placed(self) -> Placed:
        if self._error is None and UNKNOWN in self._offsets:
            self._error = OutcomeUnknown("Kafka stored records but did not say where")
        return Placed(self._offsets, self._error)
