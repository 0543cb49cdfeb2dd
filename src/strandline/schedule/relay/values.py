"""The values of a relay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from strandline.config import setting
from strandline.errors import Invalid
from strandline.log import cursors
from strandline.log.cursors import Position

#: What to do with messages if it cannot be known whether they were published: see `RelayOptions.unsure`.
_UNSURE = ("stop", "publish", "delete")


@dataclass(frozen=True)
class RelayOptions:
    """What a relay does. A schedule belongs to one relay.

    An event is due `delay_ms` after it was published or, with `due_field`, at the time in that field. `unsure` is
    for an operator: after a crash, events of the target may have expired that would show what was published.
    """

    source: str = setting("", "Event type to read.")
    target: str = setting("", "Event type to publish to.")
    schedule: str = setting("", "Schedule in which the events wait; created if missing, for this relay alone.")
    delay_ms: int = setting(0, "How long after its publication in the source an event is due.", minimum=0)
    due_field: str = setting(
        "", "Instead: field with the time at which an event is due, in RFC 3339 or milliseconds."
    )
    unsure: str = setting(
        "stop",
        "After a crash, if it cannot be known which events were published: `stop`, `publish` (perhaps again) "
        "or `delete` (perhaps unpublished).",
    )

    def check(self) -> None:
        """Invalid if an option is missing or cannot be used."""
        for name in ("source", "target", "schedule"):
            if not getattr(self, name):
                raise Invalid(f"the relay needs a {name}; name it with --relay-{name}")
        if self.source == self.target:
            raise Invalid(f"source and target of the relay are both {self.source!r}; it would never end")
        if self.unsure not in _UNSURE:
            raise Invalid(f"unsure of the relay must be one of {', '.join(_UNSURE)}, not {self.unsure!r}")
        if self.delay_ms < 0:
            raise Invalid(f"delay_ms of the relay must not be negative, but is {self.delay_ms}")
        if self.delay_ms and self.due_field:
            raise Invalid("the relay has delay_ms and due_field; leave one of them out")


class RelayRoute(msgspec.Struct, frozen=True):
    """The two event types that a schedule connects. The id is that of the source's current life."""

    schedule: str
    source: str
    source_id: str
    target: str


class RelayMessage(msgspec.Struct, frozen=True):
    """An event that waits in a schedule. Its id says where it is in the source."""

    id: str
    due_ms: int
    value: bytes


class RelayLetter(msgspec.Struct, frozen=True):
    """A record of the source that cannot be relayed, with the reason."""

    id: str
    partition: int
    cursor: Position
    reason: str
    value: bytes | None


class RelayLetterView(msgspec.Struct, frozen=True):
    """A `RelayLetter` in JSON; `value` is base64."""

    id: str
    partition: int
    cursor: str
    reason: str
    value: bytes | None

    @classmethod
    def of(cls, letter: RelayLetter) -> RelayLetterView:
        return cls(letter.id, letter.partition, str(letter.cursor), letter.reason, letter.value)

    def to_letter(self) -> RelayLetter:
        return RelayLetter(self.id, self.partition, cursors.stored(self.cursor), self.reason, self.value)


class RelayLetterList(msgspec.Struct, frozen=True):
    items: list[RelayLetterView]


class FilledRange(msgspec.Struct, frozen=True):
    """How many records were filled into the schedule, and how many of them became dead letters."""

    records: int = 0
    dead: int = 0


class TargetMark(msgspec.Struct, frozen=True):
    """Where the partitions of the target ended before messages were published. Others did not exist then."""

    target_id: str
    ends: Mapping[int, Position]


class OpenRecord(msgspec.Struct, frozen=True):
    """Messages that are being published, ordered by (due, id). There is one record at a time."""

    round: int
    mark: TargetMark
    messages: Sequence[RelayMessage]
