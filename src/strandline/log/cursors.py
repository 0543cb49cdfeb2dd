"""Cursor arithmetic over any list of timelines: pure functions.

Reading starts after a position. The *index* of a position is the number of records that were ever written up to
it, over all timelines, so the last offset of one timeline and −1 of the next have the same index. The canonical
position of an index names the record just before it; that of index 0 is −1 of the first timeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from strandline.errors import InvalidCursor, Unavailable

BEGIN = "BEGIN"

#: What a reader does when it cannot continue at its stored position: see `resume`.
OnUnavailable = Literal["fail", "earliest", "latest"]

# The orders of a name never restart, so an event type that is often created again can need more than four digits.
_TEXT = re.compile(r"001-([0-9a-fA-F]{4}|[1-9a-fA-F][0-9a-fA-F]{4,6})-(\d{18}|-1)", re.ASCII)
_PLAIN = re.compile(r"\d{1,18}|-1", re.ASCII)


class Position(NamedTuple):
    """Just after the record at `offset` of timeline `order`; offset −1 is before its first record."""

    order: int
    offset: int

    def __str__(self) -> str:
        offset = "-1" if self.offset < 0 else f"{self.offset:018d}"
        return f"001-{self.order:04x}-{offset}"


@dataclass(frozen=True)
class Span:
    """One timeline as one partition sees it.

    `first` is the oldest available offset, or `last + 1` if the timeline is empty or removed. `last` is the newest
    offset ever written, or −1 if the partition never got a record in this timeline. While a switch is `closing`
    the timeline, `last` is the end that this process knows; other processes may have seen more.
    """

    order: int
    first: int
    last: int
    closed: bool = True
    closing: bool = False

    @property
    def size(self) -> int:
        return self.last + 1


@dataclass(frozen=True)
class Resumed:
    """Where a reader continues: the position and its index.

    `problem` says why this is not the stored position; None if it is. `skipped` counts the records in between.
    """

    position: Position
    index: int
    skipped: int = 0
    problem: str | None = None


def parse(text: str | None) -> Position | None:
    """A position from any of its text forms; None means BEGIN. Plain decimals always mean timeline 1."""
    if text is None:
        raise InvalidCursor("a cursor needs an offset", reason="NULL_OFFSET")
    if text in {BEGIN, BEGIN.lower()}:
        return None
    if match := _TEXT.fullmatch(text):
        return Position(int(match[1], 16), int(match[2]))
    if _PLAIN.fullmatch(text):
        return Position(1, int(text))
    raise InvalidCursor(
        f"{_short(text)} is not an offset; write BEGIN, 001-0001-000000000000000012 or 001-0001--1",
        reason="INVALID_FORMAT",
    )


def stored(text: str) -> Position:
    """A position from `str(position)`. InvalidCursor for another text, and for BEGIN, which is not a position."""
    found = parse(text)
    if found is None:
        raise InvalidCursor("BEGIN is not the place of a record", reason="INVALID_FORMAT")
    return found


def starts(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Each timeline with the index of its start."""
    return zip(accumulate((span.size for span in spans), initial=0), spans, strict=False)


def index_of(spans: Sequence[Span], position: Position) -> int:
    """The number of records that were ever written up to and including the position."""
    for start, span in starts(spans):
        if span.order == position.order:
            _check_offset(span, position)
            return start + position.offset + 1
    why = f"there is no timeline {position.order} ({position})"
    if 0 < position.order < spans[0].order:
        why = f"timeline {position.order} belonged to an event type of the same name that was deleted"
    raise InvalidCursor(why, reason="TIMELINE_NOT_FOUND")


def index_after(spans: Sequence[Span], position: Position) -> int:
    """The index of the first record after a position; the end if the position is newer than these timelines."""
    end = end_index(spans)
    return end if position >= at_index(spans, end) else index_of(spans, position)


def at_index(spans: Sequence[Span], index: int) -> Position:
    """The canonical position of an index within the timelines."""
    for start, span in starts(spans):
        if start < index <= start + span.size:
            return Position(span.order, index - start - 1)
    return Position(spans[0].order, -1)


def begin_index(spans: Sequence[Span]) -> int:
    """The smallest index after which all records are available."""
    return max((start + span.first for start, span in starts(spans) if span.first > 0), default=0)


def end_index(spans: Sequence[Span]) -> int:
    return sum(span.size for span in spans)


def distance(spans: Sequence[Span], initial: Position, final: Position) -> int:
    """The number of records after `initial` up to and including `final`; negative if `final` comes first."""
    return index_of(spans, final) - index_of(spans, initial)


def available(spans: Sequence[Span], position: Position | None) -> Position:
    """Return the position if all records after it are available; None (BEGIN) gives the oldest such position.

    InvalidCursor otherwise, with the range of available offsets.
    """
    begin = begin_index(spans)
    if position is None:
        return at_index(spans, begin)
    try:
        index = index_of(spans, position)
    except InvalidCursor as error:
        reason = "INVALID_OFFSET" if error.reason == "INVALID_OFFSET" else "UNAVAILABLE"
        raise _unavailable(spans, position, error.detail, reason) from error
    if index < begin:
        raise _unavailable(spans, position, "its records have expired")
    return position


def ahead(spans: Sequence[Span], position: Position | None) -> bool:
    """Whether a switch is closing the timeline and the position is past the end that this process knows."""
    newest = spans[-1]
    return (
        newest.closing
        and position is not None
        and position.order == newest.order
        and position.offset > newest.last
    )


def resume(spans: Sequence[Span], position: Position | None, on_unavailable: OnUnavailable) -> Resumed:
    """Where a reader continues after reading up to and including `position`; None starts at the oldest record.

    A position can become unavailable: its records expired, or the log lost its newest records, for example because
    it was restored from a backup. Then `fail` raises InvalidCursor, `earliest` continues with the oldest available
    record that the reader has not read, and `latest` continues at the end. Unavailable if the position is ahead of
    a timeline that is being closed: retry when the switch is decided.
    """
    begin, end = begin_index(spans), end_index(spans)
    if position is None:
        return Resumed(at_index(spans, begin), begin)
    if ahead(spans, position):
        raise Unavailable("a timeline switch is not decided yet", retry_after=1)
    read = _records_up_to(spans, position)
    try:
        available(spans, position)
    except InvalidCursor as error:
        if on_unavailable == "fail":
            raise
        index = end if on_unavailable == "latest" else max(begin, read)
        return Resumed(at_index(spans, index), index, index - read, error.detail)
    return Resumed(at_index(spans, read), read)


def _records_up_to(spans: Sequence[Span], position: Position) -> int:
    """The index of the position, or of the last record before it if the position does not exist."""
    older = sum(span.size for span in spans if span.order < position.order)
    return older + sum(min(span.size, position.offset + 1) for span in spans if span.order == position.order)


def shift(spans: Sequence[Span], position: Position | None, by: int) -> Position:
    """The position `by` records after the given one, or before it if negative. Both must be available."""
    start = available(spans, position)
    index = index_of(spans, start) + by
    if not begin_index(spans) <= index <= end_index(spans):
        where = "before the oldest record" if by < 0 else "past the newest record"
        raise _unavailable(spans, start, f"a shift by {by} ends {where}")
    return at_index(spans, index)


def lag(spans: Sequence[Span], position: Position | None) -> int:
    """The number of records after the position."""
    return end_index(spans) - index_of(spans, available(spans, position))


def oldest_text(spans: Sequence[Span]) -> str:
    """Nakadi's oldest available offset: of the oldest record, or of the next one if the partition is empty."""
    begin = begin_index(spans)
    for start, span in starts(spans):
        if begin < start + span.size or not span.closed:
            return str(Position(span.order, max(begin - start, 0)))
    return str(Position(spans[-1].order, spans[-1].size))


def newest_text(spans: Sequence[Span]) -> str:
    """The cursor of the newest record; −1 of the first timeline if there never was a record."""
    return str(at_index(spans, end_index(spans)))


def read_next(spans: Sequence[Span], position: Position) -> tuple[Span, int] | None:
    """The timeline and the first offset to read after an available position; None at the end.

    At the end of a closed timeline it continues with the next one. Empty and removed timelines are skipped.
    """
    for span in spans:
        offset = max(position.offset + 1, span.first) if span.order == position.order else span.first
        if span.order >= position.order and offset <= span.last:
            return span, offset
    return None


def with_range(spans: Sequence[Span], error: InvalidCursor) -> InvalidCursor:
    """The same error, which also names the available offsets."""
    oldest, newest = oldest_text(spans), newest_text(spans)
    return InvalidCursor(
        f"{error.detail}; available offsets are {oldest} to {newest}",
        reason=error.reason,
        oldest_available_offset=oldest,
        newest_available_offset=newest,
    )


def _check_offset(span: Span, position: Position) -> None:
    if position.offset <= span.last:
        return
    if span.closed:
        raise InvalidCursor(f"timeline {span.order} ended at offset {span.last}", reason="INVALID_OFFSET")
    raise InvalidCursor(f"the newest offset is {span.last}", reason="UNAVAILABLE")


def _unavailable(
    spans: Sequence[Span], position: Position, why: str, reason: str = "UNAVAILABLE"
) -> InvalidCursor:
    return with_range(spans, InvalidCursor(f"{position} is not available: {why}", reason=reason))


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")  # noqa: PLR2004 - a readable length
