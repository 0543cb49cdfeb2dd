"""Where subscriptions begin, go on and are put back to, in the event types as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strandline.errors import Invalid, InvalidCursor, NotFound
from strandline.log import cursors
from strandline.log.cursors import Position, Resumed, Span
from strandline.log.model import CatalogEntry, CursorText
from strandline.log.reading import Reader, View
from strandline.log.room import Start
from strandline.log.subscriptions.model import Share, Slot, SubscriptionCursor


class Readable(Protocol):
    """What subscriptions need of the log room in this process."""

    def entry(self, name: str) -> CatalogEntry: ...

    def view(self, name: str) -> View: ...

    def reader(self, name: str, start: Start) -> Reader: ...


def view_of(log: Readable, name: str, event_type_id: str | None = None) -> View:
    """An event type, of the given incarnation: its successor of the same name is not what a cursor is about."""
    try:
        view = log.view(name)
    except NotFound:
        raise InvalidCursor(f"event type {name!r} was deleted", reason="UNAVAILABLE") from None
    if event_type_id not in {None, view.entry.id}:
        raise InvalidCursor(
            f"event type {name!r} was deleted and made anew; reset the cursors of the subscription to read it",
            reason="UNAVAILABLE",
        )
    return view


def first_shares(view: View, read_from: str, *, began: bool) -> list[Share]:
    """Cursors for all partitions. Those that came after the subscription began are read from their start."""
    index_of = cursors.end_index if read_from == "end" and not began else cursors.begin_index
    return [
        _share(view, partition, cursors.at_index(spans, index_of(spans)))
        for partition, spans in enumerate(view.spans())
    ]


def initial_shares(view: View, given: Sequence[SubscriptionCursor]) -> list[Share]:
    """The cursors a subscription is to begin at, one for every partition of the event type."""
    name = view.entry.event_type.name
    positions = view.positions([CursorText(c.partition, c.offset) for c in given if c.event_type == name])
    spans = view.spans(positions.items())
    if missing := {*range(len(spans))} - positions.keys():
        raise Invalid(f"initial_cursors must have one for every partition; {name!r} lacks {min(missing)}")
    return [_share(view, p, cursors.available(spans[p], position)) for p, position in sorted(positions.items())]


def _share(view: View, partition: int, position: Position) -> Share:
    return Share(Slot(view.entry.id, partition), view.entry.event_type.name, position)


def resumed(spans: Sequence[Span], position: Position) -> Resumed:
    """Where a subscription continues: at its cursor, or with the oldest event that it can still read."""
    if cursors.ahead(spans, position):  # the events that follow are known once the switch is decided
        return Resumed(position, cursors.end_index(spans))
    return cursors.resume(spans, position, "earliest")


def committed(view: View, cursor: SubscriptionCursor) -> tuple[str, int, Position]:
    """A cursor that a client says it has read up to; what is not written yet cannot have been read."""
    partition, position = view.position(CursorText(cursor.partition, cursor.offset))
    spans = view.spans([(partition, position)])[partition]
    if position is None:
        position = cursors.available(spans, None)
    cursors.index_of(spans, position)
    return view.entry.event_type.name, partition, position


def target(view: View, cursor: SubscriptionCursor) -> Share:
    """Where a reset puts a cursor: an offset that is available, BEGIN, END, or just before a moment in time."""
    partition = view.partition(cursor.partition)
    return _share(view, partition, view.locate(partition, view.spans()[partition], cursor.offset))
