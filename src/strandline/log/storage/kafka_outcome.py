"""What became of an append to Kafka, put together from the driver's reports.

The driver reports record by record. A callback of its own for each would tell which one is meant, but costs more
than the record itself, so that all records of a `Run` share one. Which one failed is told by its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
        self.size = sum(records.size + _RECORD_BYTES * len(records) for records in batches.values())
        self.topic_missing = False
        self.open = 1  # runs that wait for reports, and the handing over
        self.future: Future[dict[int, Placed]] = Future()
        self.future.set_running_or_notify_cancel()  # what is on its way cannot be called back
        self._finished = finished

    def close_one(self) -> None:
        """One of those that `open` counts is through; the last one completes the append."""
        self.open -= 1
        if not self.open:
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
        self._runs: list[Run] = []
        # Reports are told apart by the value: records that have the same one each are a run of their own.
        self._most = len(records) if len({*records.values}) == len(records) else 1
        self._error: StrandlineError | None = None

    def begin(self) -> Run:
        """The next records, to be handed over one after the other."""
        return Run(self, min(self.sent + self._most, len(self.records)))

    def end(self, run: Run, sent: int) -> None:
        """The driver took the records before number `sent`."""
        if sent > self.sent:
            self._append.open += 1
            self._runs.append(run)
            run.expect(self.records.values[self.sent : sent])
        self.sent = sent

    def refuse(self, error: StrandlineError) -> None:
        """The driver did not take the rest."""
        self._error = self._error or error

    def failed(self, error: kafka.KafkaError, seconds: float | None) -> int:
        """What the driver's report means for its record: FAILED or UNKNOWN."""
        failure = kafka.undelivered(error, seconds)
        self._append.topic_missing |= kafka.says_missing(error)
        unknown = isinstance(failure, OutcomeUnknown)
        if self._error is None or unknown:
            self._error = failure
        return UNKNOWN if unknown else FAILED

    def answered(self) -> None:
        """All records of a run have their report."""
        self._append.close_one()

    def placed(self) -> Placed:
        offsets = [offset for run in self._runs for offset in run.offsets()]
        offsets += [FAILED] * (len(self.records) - self.sent)
        if self._error is None and UNKNOWN in offsets:
            self._error = OutcomeUnknown("Kafka stored records but did not say where")
        return Placed(offsets, self._error)


class Run:
    """Records, no two with the same value, that one producer takes one after the other, up to number `end`.

    It stores them in this order, so that the offsets, sorted, are those of the records in theirs.
    """

    def __init__(self, part: Part, end: int) -> None:
        self.end = end
        self._part = part
        self._values: Sequence[bytes] = ()
        self._offsets: list[int] = []
        self._others: dict[bytes, int] = {}  # FAILED or UNKNOWN by the record's value
        self._stored: float = math.inf  # how many offsets there will be if no more records fail

    def expect(self, values: Sequence[bytes]) -> None:
        """These were taken; their reports come later."""
        self._values = values
        self._stored = len(values)

    def delivered(self, error: kafka.KafkaError | None, message: kafka.Message) -> None:
        """The driver's report on one record. What is done here is done for every single one."""
        offset = message.offset() if error is None else None
        if offset is not None and offset >= 0:
            self._offsets.append(offset)
        else:
            self._stored -= 1
            outcome = UNKNOWN if error is None else self._part.failed(error, message.latency())
            self._others[message.value() or b""] = outcome
        if len(self._offsets) == self._stored:
            self._part.answered()

    def offsets(self) -> Sequence[int]:
        """Of every record, in order: where it is, or FAILED or UNKNOWN."""
        stored = sorted(self._offsets)  # once some have failed, reports may come in another order
        if not self._others:
            return stored
        left = iter(stored)
        return [self._others[value] if value in self._others else next(left) for value in self._values]
