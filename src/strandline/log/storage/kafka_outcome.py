"""What became of an append to Kafka, put together from the driver's reports.

The driver reports record by record. A callback of its own for each would tell which one is meant, but costs more
than the record itself, so that all records of a `Run` share one. Which one failed is told by its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import repeat

from strandline.engine import kafka
from strandline.errors import OutcomeUnknown, StrandlineError
from strandline.log.records import NewRecords
from strandline.log.storage.port import FAILED, UNKNOWN, Placed

# No other thread runs while a run is handed over: about a millisecond.
_RUN_RECORDS = 1000
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
            self.parts.clear()  # for the same reason as a part's runs


class Part:
    """One partition's records of an append; the first `sent` of them were handed to the driver."""

    def __init__(self, append: Append, records: NewRecords) -> None:
        self.records = records
        self.sent = 0
        self._append = append
        self._runs: list[Run] = []
        # Reports are told apart by the value: records that have the same one each are a run of their own.
        self._most = _RUN_RECORDS if len({*records.values}) == len(records) else 1
        self._error: StrandlineError | None = None

    def begin(self) -> Run:
        """The next records."""
        return Run(self, self.sent, min(self.sent + self._most, len(self.records)))

    def end(self, run: Run, sent: int) -> None:
        """The driver took the records before number `sent`."""
        if sent > self.sent:
            self._append.open += 1
            self._runs.append(run)
            run.expect(sent)
        self.sent = sent

    def refuse(self, error: StrandlineError) -> None:
        """The driver did not take the rest."""
        self._error = self._error or error

    def failed(self, error: kafka.KafkaError | None, seconds: float | None) -> int:
        """What the driver's report means for its record: FAILED or UNKNOWN."""
        # Without an error and without an offset: the driver believes it stored because a later one was.
        failure: StrandlineError = OutcomeUnknown("Kafka did not say where the record is")
        if error is not None:
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
        """What became of the records, now that all reports are in."""
        offsets: list[int] = []
        for run in self._runs:
            offsets += run.offsets()
        self._runs.clear()  # they refer to this, and would wait for the collector with all records
        offsets += [FAILED] * (len(self.records) - self.sent)
        return Placed(offsets, self._error)


class Run:
    """Records from `start` up to `end`, no two with the same value, that one producer takes one after the other.

    It stores them in this order, so that the offsets, sorted, are those of the records in theirs.
    """

    # Read for every single record, which is quicker from slots.
    __slots__ = ("_offsets", "_others", "_part", "_stored", "end", "start")

    def __init__(self, part: Part, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._part = part
        self._offsets: list[int] = []
        self._others: dict[bytes, int] = {}  # FAILED or UNKNOWN by the record's value
        self._stored = -1  # how many offsets there will be if no more records fail

    def columns(self) -> tuple[Iterable[bytes], Iterable[bytes | None], Iterable[list[tuple[str, bytes]] | None]]:
        """Values, keys and headers; of what there is none, None without end."""
        of, own = self._part.records, slice(self.start, self.end)
        keys = repeat(None) if of.keys is None else of.keys[own]
        headers = repeat(None) if of.headers is None else [list(each or ()) for each in of.headers[own]]
        return of.values[own], keys, headers

    def expect(self, end: int) -> None:
        """The driver took the records before number `end`, and will report on each."""
        self.end = end
        self._stored = end - self.start

    def reporter(self) -> Callable[[kafka.KafkaError | None, kafka.Message], None]:
        """What the driver calls with its report on each record."""
        offsets = self._offsets
        stored = offsets.append  # looked up once, not for every record

        def delivered(error: kafka.KafkaError | None, message: kafka.Message) -> None:
            if error is None and (offset := message.offset()) is not None:
                stored(offset)
            else:
                self._stored -= 1
                self._others[message.value() or b""] = self._part.failed(error, message.latency())
            if len(offsets) == self._stored:
                self._part.answered()

        return delivered

    def offsets(self) -> Sequence[int]:
        """Of every record, in order: where it is, or FAILED or UNKNOWN."""
        stored = sorted(self._offsets)  # the driver promises no order of its reports
        if not self._others:
            return stored
        left = iter(stored)
        own = self._part.records.values[self.start : self.end]
        return [self._others[value] if value in self._others else next(left) for value in own]
