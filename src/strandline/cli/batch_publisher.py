"""Publishes batches one after the other, counts the results, and stops only between batches."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Self

import msgspec

from strandline.cli.inputs import Line
from strandline.errors import Invalid, OutcomeUnknown, StrandlineError
from strandline.log import Log, PublishReport
from strandline.log.model import OUTCOME_UNKNOWN

_KEPT = 100


class Failure(msgspec.Struct, frozen=True):
    """An event that was not published, or may not be. If a batch failed as a whole: its first event."""

    line: int
    step: str
    detail: str


class Tally(msgspec.Struct):
    """The results of all events so far. `next_line` is where to continue after a stop."""

    event_type: str
    published: int = 0
    failed: int = 0
    aborted: int = 0
    unknown: int = 0
    batches: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    next_line: int = 1
    failures: list[Failure] = []
    #: First and last line of every batch that was not completely published.
    incomplete: list[tuple[int, int]] = []

    @property
    def clean(self) -> bool:
        return not (self.failed or self.aborted or self.unknown or self.interrupted)

    def add_report(self, batch: Sequence[Line], report: PublishReport) -> None:
        self.published += report.submitted
        if not report.ok:
            self.incomplete.append((batch[0].number, batch[-1].number))
        for line, item in zip(batch, report.items, strict=False):
            if item.publishing_status == "aborted":
                self.aborted += 1
            elif item.publishing_status == "failed":
                self._add_failure(Failure(line.number, item.step, item.detail))

    def add_error(self, batch: Sequence[Line], error: StrandlineError) -> None:
        """The batch failed as a whole."""
        self.incomplete.append((batch[0].number, batch[-1].number))
        unknown = isinstance(error, OutcomeUnknown)
        self._add_failure(Failure(batch[0].number, "publishing", OUTCOME_UNKNOWN if unknown else error.detail))
        if unknown:
            self.unknown += len(batch) - 1
        else:
            self.aborted += len(batch) - 1

    def _add_failure(self, failure: Failure) -> None:
        if failure.detail == OUTCOME_UNKNOWN:
            self.unknown += 1
        else:
            self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(failure)


def feed(
    log: Log,
    batches: Iterable[Sequence[Line]],
    tally: Tally,
    *,
    stop_on_error: bool,
    advance: Callable[[Sequence[Line]], None],
) -> None:
    """Publish every batch and count the results. Raises errors that are not about one batch, like Unavailable."""
    with _Interrupts() as interrupts:
        try:
            for batch in batches:
                with interrupts.held():
                    _publish(log, batch, tally)
                advance(batch)
                if stop_on_error and not tally.clean:
                    return
                tally.next_line = batch[-1].number + 1
                if interrupts.pending:
                    tally.interrupted = True
                    return
        except KeyboardInterrupt:
            tally.interrupted = True


def _publish(log: Log, batch: Sequence[Line], tally: Tally) -> None:
    tally.batches += 1
    try:
        tally.add_report(batch, log.publish(tally.event_type, [line.text for line in batch]))
    except (Invalid, OutcomeUnknown) as error:
        tally.add_error(batch, error)


class _Interrupts:
    """Ctrl-C during a publish takes effect after its answer; a second Ctrl-C takes effect at once."""

    def __init__(self) -> None:
        self._holding = False
        self.pending = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self._holding or self.pending:
            raise KeyboardInterrupt
        self.pending = True

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
