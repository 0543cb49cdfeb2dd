"""The cursors of subscriptions: where they begin, where they continue, and where a reset sets them."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.errors import Invalid, InvalidCursor, NotFound
from strandline.log import cursors
from strandline.log.cursors import Position, Resumed, Span
from strandline.log.event_types import EventTypes
from strandline.log.model import CursorText
from strandline.log.reading import View
from strandline.log.subscriptions.model import Share, Slot, SubscriptionCursor


def view_of(event_types: EventTypes, name: str, event_type_id: str | None = None) -> View:
    """The event type with that id; InvalidCursor if it was deleted, even if it was created again."""
    try:
        view = event_types.view(name)
    except NotFound:
        raise InvalidCursor(f"event type {name!r} was deleted", reason="UNAVAILABLE") from None
    if event_type_id not in {None, view.entry.id}:
        raise InvalidCursor(
            f"event type {name!r} was deleted and created again; reset the cursors of the subscription to read it",
            reason="UNAVAILABLE",
        )
    return view


def first_shares(view: View, read_from: str, *, began: bool) -> list[Share]:
    """Cursors for all partitions. If the subscription has begun, new partitions are read from their start."""
    index_of = cursors.end_index if read_from == "end" and not began else cursors.begin_index
    return [
        _share(view, partition, cursors.at_index(spans, index_of(spans)))
        for partition, spans in enumerate(view.spans())
    ]


def initial_shares(view: View, given: Sequence[SubscriptionCursor]) -> list[Share]:
    """The initial cursors of a subscription, one for every partition of the event type."""
    name = view.entry.event_type.name
    positions = view.positions([CursorText(c.partition, c.offset) for c in given if c.event_type == name])
    spans = view.spans(positions.items())
    if missing := {*range(len(spans))} - positions.keys():
        raise Invalid(f"initial_cursors must have every partition; {name!r} lacks {min(missing)}")
    return [_share(view, p, cursors.available(spans[p], position)) for p, position in sorted(positions.items())]


def _share(view: View, partition: int, position: Position) -> Share:
    return Share(Slot(view.entry.id, partition), view.entry.event_type.name, position)


def resumed(spans: Sequence[Span], position: Position) -> Resumed:
    """Where a subscription continues: at its cursor, or with the oldest event that it can still read."""
    if cursors.ahead(spans, position):  # the events that follow are known once the switch is decided
        return Resumed(position, cursors.end_index(spans))
    return cursors.resume(spans, position, "earliest")


def committed(view: View, cursor: SubscriptionCursor) -> tuple[str, int, Position]:
    """The cursor that a client commits; InvalidCursor if it is past the last record."""
    partition, position = view.position(CursorText(cursor.partition, cursor.offset))
    spans = view.spans([(partition, position)])[partition]
    if position is None:
        position = cursors.available(spans, None)
    cursors.index_of(spans, position)
    return view.entry.event_type.name, partition, position


def target(view: View, cursor: SubscriptionCursor) -> Share:
    """The cursor after a reset: at an available offset, BEGIN, END, or just before a time."""
    partition = view.partition(cursor.partition)
    return _share(view, partition, view.locate(partition, view.spans()[partition], cursor.offset))
