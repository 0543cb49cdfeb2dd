"""The JSON and MessagePack of the feeds, for the server and its client.

Ids are texts in JSON that goes out, because many readers of JSON lose digits of large numbers, and integers in
MessagePack. Both forms are accepted. Metadata are base64 in JSON and binary in MessagePack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from strandline import errors
from strandline.errors import Invalid, StrandlineError
from strandline.feeds import operation_log
from strandline.feeds.fanout.values import FanoutLetter
from strandline.feeds.model import MAX_ID, MAX_TIME, MIN_ID, DeadOperation, Entry, FeedAnswer, Status
from strandline.log import cursors

_is_number = re.compile(r"-?[0-9]{1,20}", re.ASCII).fullmatch
# Texts also in queries: there a number may have an exponent or a point, and would be rounded.
IdText = Annotated[str, Meta(pattern=r"^-?[0-9]{1,19}$")]
TimeText = Annotated[str, Meta(pattern=r"^[0-9]{1,19}$")]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_TIME >> 20)]
AnyId = Annotated[int, Meta(ge=MIN_ID, le=MAX_ID)] | IdText
AnyTime = Annotated[int, Meta(ge=0, le=MAX_TIME)] | TimeText


def number(given: int | str) -> int:
    """The number of an integer or a text; the caller checks its range."""
    if isinstance(given, str):
        if not _is_number(given):
            raise Invalid(f"{given!r:.60} is not a whole number")
        return int(given)
    return given


# -- requests


class EntryItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    id: AnyId
    metadata: bytes | None = None

    def to_entry(self) -> Entry:
        return Entry(number(self.id), self.metadata)


class OperationTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The time of an operation, for a replay: its 64 bits, or only its milliseconds."""

    operation_time: AnyTime | None = None
    operation_ms: Milliseconds | TimeText | None = None

    def times(self) -> dict[str, int | None]:
        given = {"operation_time": self.operation_time, "operation_ms": self.operation_ms}
        return {name: None if value is None else number(value) for name, value in given.items()}


class FeedEntries(OperationTimes, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The entries of a set, a merge or an unmerge."""

    entries: list[EntryItem]


class EntryForFeeds(OperationTimes, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    entry: EntryItem
    feeds: list[str]


class IdForFeeds(OperationTimes, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    id: AnyId
    feeds: list[str]


class FeedsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which feeds to read, and which part of each."""

    feeds: list[str]
    offset: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    length: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 20


# -- answers


class EntryView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry in JSON. In MessagePack it has the same members, and its id is an integer."""

    id: str
    metadata: bytes | None = None


class EntryList(msgspec.Struct, frozen=True):
    entries: list[EntryView]


class AcceptedFeeds(msgspec.Struct, frozen=True):
    """`accepted` counts the named feeds that exist."""

    accepted: int


class TimeView(msgspec.Struct, frozen=True):
    operation_time: str


class FeedView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A feed of several. A `hit` has entries; an `error` says what failed."""

    name: str
    status: Status
    entries: list[EntryView] | UnsetType = UNSET
    code: str | None = None
    detail: str | None = None


class FeedViews(msgspec.Struct, frozen=True):
    feeds: list[FeedView]


class DeadOperationView(msgspec.Struct, frozen=True):
    """A dead letter; `operation` is an event of `feeds.operations`."""

    number: int
    failed_ms: int
    reason: str
    operation: operation_log.RecordedOperation

    @classmethod
    def of(cls, letter: DeadOperation) -> DeadOperationView:
        recorded = operation_log.recorded(letter.operation)
        return cls(letter.number, letter.failed_ms, letter.reason, recorded)

    def to_letter(self) -> DeadOperation:
        operation = operation_log.to_operation(self.operation)
        return DeadOperation(self.number, self.failed_ms, self.reason, operation)


class DeadOperationList(msgspec.Struct, frozen=True):
    items: list[DeadOperationView]


class FanoutLetterView(msgspec.Struct, frozen=True):
    """A record that the job `fanout` has set aside; `value` is base64."""

    source: str
    partition: int
    cursor: str
    reason: str
    value: bytes | None

    @property
    def place(self) -> str:
        return self.to_letter().place

    @classmethod
    def of(cls, letter: FanoutLetter) -> FanoutLetterView:
        return cls(letter.source, letter.partition, str(letter.cursor), letter.reason, letter.value)

    def to_letter(self) -> FanoutLetter:
        return FanoutLetter(self.source, self.partition, cursors.stored(self.cursor), self.reason, self.value)


class FanoutLetterList(msgspec.Struct, frozen=True):
    items: list[FanoutLetterView]


def entries(found: Iterable[Entry], *, msgpack: bool) -> list[Any]:
    """Entries as they go out."""
    return [*found] if msgpack else [EntryView(str(entry.id), entry.metadata) for entry in found]


def feeds(found: Iterable[FeedAnswer], *, msgpack: bool) -> dict[str, Any]:
    return {"feeds": [_feed(answer, msgpack=msgpack) for answer in found]}


def _feed(answer: FeedAnswer, *, msgpack: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": answer.name, "status": answer.status}
    if answer.status == "hit":
        shown["entries"] = entries(answer.entries, msgpack=msgpack)
    if answer.error is not None:
        shown |= {"code": answer.error.code, "detail": answer.error.detail}
    return shown


# -- answers as the client reads them


class PackedFeed(msgspec.Struct, frozen=True):
    """A feed of several in MessagePack."""

    name: str
    status: Status
    entries: tuple[Entry, ...] = ()
    code: str | None = None
    detail: str | None = None

    def to_answer(self) -> FeedAnswer:
        error = None
        if self.status == "error":
            error = errors.families().get(self.code or "", StrandlineError)(self.detail)
        return FeedAnswer(self.name, self.status, self.entries, error)
