"""Empties the schedule into the target: every event once, whenever the process is killed or replaced.

A publish and the deletion of the messages are two steps in two places. Before the first step, a record says which
messages are published, and where the target ended. After a crash between the two, or if the outcome of the publish
is unknown, the fence is raised, so that no other publish can follow; then the target is read from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline import failpoints
from strandline.errors import Fenced, Gap, InvalidCursor, OutcomeUnknown, Unavailable
from strandline.log import cursors
from strandline.log.cursors import Position, Span
from strandline.log.local import LocalLog
from strandline.log.model import EventType, PublishReport
from strandline.log.range_source import LogSnapshot, RangeSource
from strandline.log.ranges import patiently, read_range
from strandline.log.storage import Fence
from strandline.schedule.relay import rules
from strandline.schedule.relay.values import (
    OpenRecord,
    RelayLetter,
    RelayMessage,
    RelayOptions,
    TargetMark,
)
from strandline.schedule.storage.port import RelayBook

log = logging.getLogger(__name__)

# A record with more messages saves commits, but its messages are late by the time that the whole record takes.
_RECORD_MESSAGES = 2_000
_RECORD_BYTES = 8 << 20
# Only keeps others from leasing the messages: the record decides, also after the lease has expired.
_LEASE_MS = 60_000
_DECISION_SECONDS = 0.5


@dataclass
class Emptied:
    """How many events this process has published, and how many became dead letters."""

    published: int = 0
    dead: int = 0


@dataclass(frozen=True)
class TargetLog:
    """The target, as an emptier reads and writes it."""

    log: LocalLog
    ranges: RangeSource
    options: RelayOptions

    @property
    def fence_name(self) -> str:
        return f"relay.{self.options.schedule}"

    def raise_fence(self, held: Fence | None = None) -> Fence:
        return self.log.fenced.raise_fence(self.options.target, self.fence_name, held)

    def hold(self, fence: Fence) -> None:
        self.log.fenced.hold(self.options.target, fence)

    def mark(self) -> TargetMark:
        """Where the target ends now."""
        found = self._look()
        return TargetMark(found.entry_id, found.ends)

    def publish(self, messages: Sequence[RelayMessage], fence: Fence) -> PublishReport:
        kind: EventType = self.log.get(self.options.target)
        return self.log.fenced.publish(
            kind.name,
            [rules.for_target(message.value, kind) for message in messages],
            [rules.origin(self.options.source, message) for message in messages],
            fence,
            # The clock of this node may be behind the store's: no event may look earlier than it was due.
            not_before_ms=max(message.due_ms for message in messages),
        )

    def published_since(self, mark: TargetMark) -> set[str]:
        """The ids of the messages that were published after the mark.

        Gap if that cannot be known any more, Unavailable if it is not known yet.
        """
        found = self._look()
        name = self.options.target
        if found.entry_id != mark.target_id:
            raise Gap(f"event type {name!r} was deleted and created again")
        if any(spans[-1].closing for spans in found.spans):
            # Until the switch is decided, readers do not see the last events, which may be those of the relay.
            raise Unavailable(f"a timeline switch of {name!r} is not decided yet", retry_after=_DECISION_SECONDS)
        ids: set[str] = set()
        for partition, spans in enumerate(found.spans):
            start = _start(name, partition, spans, mark.ends.get(partition))
            end = cursors.at_index(spans, cursors.end_index(spans))
            part = self.ranges.range(name, found, partition, start, end)
            try:
                for batch in read_range(part):
                    ids |= rules.origins(batch.records["headers"])
            except InvalidCursor as error:
                raise Gap(error.detail) from error
        return ids

    def _look(self) -> LogSnapshot:
        return self.ranges.look(self.options.target, 0)


def _start(name: str, partition: int, spans: Sequence[Span], position: Position | None) -> Position:
    """Where to read on. Without a position the partition is new, and is read from its beginning."""
    try:
        return cursors.available(spans, position or Position(spans[0].order, -1))
    except InvalidCursor as error:
        raise Gap(f"partition {partition} of {name!r}: {error.detail}") from error


class Emptier:
    """One process that empties a schedule. Begins with `start`. Fenced if another process has taken over."""

    def __init__(self, target: TargetLog, book: RelayBook, emptied: Emptied) -> None:
        self.target = target
        self.book = book
        self.emptied = emptied
        self._fence = Fence(target.fence_name, 0)
        self._epoch = 0

    def start(self) -> None:
        """Take over from any other process, and finish what it has begun."""
        self._fence = self.target.raise_fence()
        failpoints.hit("relay.raised")
        self._epoch = self.book.take_over(self._schedule)
        self._finish_open()

    def recover(self) -> None:
        """Go on after an error: nothing that this process has begun can be published from now on."""
        self._fence = self.target.raise_fence(self._fence)
        self._finish_open()

    @property
    def _schedule(self) -> str:
        return self.target.options.schedule

    def _finish_open(self) -> None:
        """Finish the open record, if there is one. Its messages may have been published or not."""
        record = self.book.record(self._schedule)
        if record is not None:
            log.info("the relay finishes the record of %d events that was open", len(record.messages))
            self._finish(record, sure=False)

    def step(self) -> int:
        """Publish the oldest messages that are due. Returns how many there were.

        After any error except Fenced and Gap, call `recover` before the next step.
        """
        mark = self.target.mark()
        limits = {"limit": _RECORD_MESSAGES, "max_bytes": _RECORD_BYTES, "lease_ms": _LEASE_MS}
        record = self.book.lease(self._schedule, self._epoch, mark, **limits)
        if record is None:
            return 0
        failpoints.hit("relay.leased")
        self._finish(record, sure=True)
        return len(record.messages)

    def _finish(self, record: OpenRecord, *, sure: bool) -> None:
        """Publish what is not in the target yet, then delete all messages of the record."""
        dead: list[RelayLetter] = []
        while True:
            messages = record.messages if sure else self._unpublished(record)
            try:
                self._publish(rules.missing(messages, {letter.id for letter in dead}), dead)
            except OutcomeUnknown as error:
                log.warning("the relay checks what was published: %s", error.detail)
                self._fence = self.target.raise_fence(self._fence)
                sure = False
            else:
                break
        failpoints.hit("relay.published")
        self.book.close(self._schedule, self._epoch, record, dead)
        failpoints.hit("relay.closed")
        self.emptied.dead += len(dead)

    def _unpublished(self, record: OpenRecord) -> Sequence[RelayMessage]:
        failpoints.hit("relay.reading")
        try:
            found = patiently(lambda: self.target.published_since(record.mark))
            return rules.missing(record.messages, found)
        except Gap as error:
            choice = _CHOICES.get(self.target.options.unsure)
            if choice is None:
                raise Gap(
                    f"{error.detail}; it is unknown which of the last {len(record.messages)} events of the relay "
                    f"of {self._schedule} are in {self.target.options.target!r}. Start the relay once with "
                    "--relay-unsure publish, which may publish them twice, or with --relay-unsure delete, which "
                    "may lose them"
                ) from error
            log.warning("%s; --relay-unsure decides: %s", error.detail, self.target.options.unsure)
            return choice(record.messages)

    def _publish(self, messages: Sequence[RelayMessage], dead: list[RelayLetter]) -> None:
        """Publish all messages but those that break a rule of the target, which are added to `dead`."""
        while messages:
            try:
                report = self.target.publish(messages, self._fence)
            except Fenced:
                # Nothing is stored. A timeline switch, or a process that was replaced, has ended our hold.
                self.target.hold(self._fence)
                continue
            if report.ok:
                self.emptied.published += len(messages)
                return
            refused = [
                rules.letter(message, f"the target refuses the event at {item.step}: {item.detail}")
                for message, item in zip(messages, report.items, strict=True)
                if item.publishing_status == "failed"
            ]
            dead += refused
            messages = rules.missing(messages, {letter.id for letter in refused})


_CHOICES: dict[str, Callable[[Sequence[RelayMessage]], Sequence[RelayMessage]]] = {
    "publish": lambda messages: messages,
    "delete": lambda _: (),
}
