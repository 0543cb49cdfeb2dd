"""What a source reads next, from the event types as they are now. Knows nothing of Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.errors import Invalid, InvalidCursor
from strandline.log import cursors
from strandline.log.cursors import Position, Resumed, Span, resume
from strandline.log.model import StorageInfo
from strandline.log.ranges import PartitionRange, Piece, cut, patiently
from strandline.log.reading import View
from strandline.pipeline import positions
from strandline.pipeline.options import ReadOptions
from strandline.pipeline.positions import QueryPosition, QueryPositions

if TYPE_CHECKING:
    from strandline.platform import Platform

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Ground:
    """An event type with the timelines of all its partitions, at one moment."""

    view: View
    spans: list[list[Span]]

    @property
    def id(self) -> str:
        return self.view.entry.id

    def place(self, indexes: Mapping[int, int]) -> QueryPosition:
        found = {p: cursors.at_index(self.spans[p], index) for p, index in indexes.items()}
        return QueryPosition(self.id, {str(partition): str(position) for partition, position in found.items()})


class Planner:
    """Positions of a query and the ranges between them.

    A storage or catalog that does not answer is asked again for a minute.
    """

    def __init__(self, platform: Platform, options: ReadOptions) -> None:
        self._platform = platform
        self._options = options
        self._policy = options.on_unavailable
        #: The ends of all event types when they were last looked at: what a query's lag is counted from.
        self.newest: dict[str, QueryPosition] = {}
        self._reported: set[tuple[str, int, str]] = set()

    def located(self, text: str) -> dict[str, QueryPosition]:
        """BEGIN, END, a time, or cursors as JSON: where that is in every event type."""
        given = _cursors(text)
        if given is not None and (strangers := given.keys() - {*self._options.event_types}):
            raise Invalid(f"there are cursors for {min(strangers)!r}, which event_types does not name")
        return {
            name: self._located(name, text if given is None else given.get(name, {}))
            for name in self._options.event_types
        }

    def _located(self, name: str, text: str | QueryPosition | Mapping[str, str]) -> QueryPosition:
        ground = self._look(name)
        partitions = range(len(ground.spans))
        if isinstance(text, QueryPosition):
            return ground.place({p: found.index for p, found in self._resumed(name, ground, text).items()})
        texts = dict.fromkeys(partitions, text) if isinstance(text, str) else _by_partition(ground, text)
        if missing := {*partitions} - texts.keys():
            raise Invalid(f"cursors must name every partition; {name!r} lacks {min(missing)}")
        return ground.place({p: self._index(ground, p, texts[p]) for p in partitions})

    def _index(self, ground: _Ground, partition: int, text: str) -> int:
        spans = ground.spans[partition]
        try:
            position = patiently(lambda: ground.view.locate(partition, spans, text))
        except InvalidCursor as error:
            if error.reason == "INVALID_FORMAT" or self._policy == "fail":
                raise
            position = _position(text)
        return resume(spans, position, self._policy).index

    def latest(
        self, start: QueryPositions, limit: int | None, target: QueryPositions | None = None
    ) -> dict[str, QueryPosition]:
        """How far the batch after `start` goes: to the end, or the target, but for no more than `limit` records.

        Never behind the start, unless what was there is lost; the same as the start if there is nothing to do.
        """
        grounds = {name: self._look(name) for name in self._options.event_types}
        self.newest = {name: ground.place(_ends(ground, None)) for name, ground in grounds.items()}
        resumed = {name: self._resumed(name, ground, start.get(name)) for name, ground in grounds.items()}
        lags = {
            (name, p): max(0, end - resumed[name][p].index)
            for name, ground in grounds.items()
            for p, end in _ends(ground, None if target is None else target.get(name)).items()
        }
        given = lags if limit is None else positions.shares(lags, limit)
        ends = {
            name: ground.place({p: found.index + given[name, p] for p, found in resumed[name].items()})
            for name, ground in grounds.items()
        }
        return {**start, **{name: _moved(start.get(name), end, resumed[name]) for name, end in ends.items()}}

    def ranges(self, start: QueryPositions, end: QueryPositions) -> list[PartitionRange]:
        """One for every partition that has something between two places."""
        storages = patiently(self._platform.log.types.storages)
        return [found for name in end for found in self._ranges(name, start.get(name), end[name], storages)]

    def _ranges(
        self, name: str, start: QueryPosition | None, end: QueryPosition, storages: Mapping[str, StorageInfo]
    ) -> Iterator[PartitionRange]:
        if start == end:
            return
        ground = self._look(name)
        if self._is_of_another(name, ground, end):
            return
        began = QueryPosition(end.id, end.began) if end.began else start
        timelines = {timeline.order: timeline for timeline in ground.view.entry.timelines}
        resumed = self._resumed(name, ground, began)
        for partition in sorted(map(int, end.cursors)):
            last = resume(ground.spans[partition], _position(end.cursors[str(partition)]), self._policy)
            pieces = tuple(
                Piece(span.order, storages[timelines[span.order].storage_id], timelines[span.order].topic, *part)
                for span, *part in cut(ground.spans[partition], resumed[partition].index, last.index)
            )
            if pieces:
                yield self._range(name, partition, pieces)

    def _range(self, name: str, partition: int, pieces: tuple[Piece, ...]) -> PartitionRange:
        return PartitionRange(
            name,
            partition,
            pieces,
            str(self._platform.data.resolve()),
            self._platform.settings.log,
            skip_expired=self._policy != "fail",
        )

    def _look(self, name: str) -> _Ground:
        view = patiently(lambda: self._platform.log.types.view(name))
        return _Ground(view, patiently(view.spans))

    def _resumed(self, name: str, ground: _Ground, place: QueryPosition | None) -> dict[int, Resumed]:
        """Where to continue in every partition; partitions that are new to the query are read from their start."""
        if place is not None and self._is_of_another(name, ground, place):
            index_of = cursors.end_index if self._policy == "latest" else cursors.begin_index
            indexes = [index_of(spans) for spans in ground.spans]
            return {p: Resumed(cursors.at_index(ground.spans[p], index), index) for p, index in enumerate(indexes)}
        known = {} if place is None else place.cursors
        return {p: self._resumed_in(name, ground, p, known.get(str(p))) for p in range(len(ground.spans))}

    def _resumed_in(self, name: str, ground: _Ground, partition: int, text: str | None) -> Resumed:
        found = resume(ground.spans[partition], None if text is None else _position(text), self._policy)
        if found.problem:
            self._report(
                (name, partition, str(text)),
                f"event type {name!r}, partition {partition}: the query skips {found.skipped} records"
                f" and continues after {found.position}: {found.problem}",
            )
        return found

    def _is_of_another(self, name: str, ground: _Ground, place: QueryPosition) -> bool:
        """Whether the place is one in an event type of the same name that was deleted."""
        if place.id == ground.id:
            return False
        why = f"event type {name!r} was deleted and made anew"
        if self._policy == "fail":
            raise InvalidCursor(why, reason="UNAVAILABLE")
        self._report((name, -1, place.id), f"{why}; the query continues at its {self._policy} record")
        return True

    def _report(self, key: tuple[str, int, str], message: str) -> None:
        """Log once, however often Spark asks for the same batch."""
        if key not in self._reported:
            self._reported.add(key)
            log.warning("%s", message)


def _cursors(text: str) -> dict[str, Any] | None:
    """Cursors as JSON, by event type and partition, or places as a query reports them; None for other texts."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        return {
            name: msgspec.convert(value, QueryPosition if "cursors" in value else dict[str, str])
            for name, value in found.items()
        }
    except msgspec.MsgspecError as error:
        raise Invalid(f'cursors look like {{"orders": {{"0": "BEGIN"}}}}: {error}') from None


def _position(text: str) -> Position:
    """A position that was written by us."""
    position = cursors.parse(text)
    if position is None:
        raise Invalid("BEGIN is not the place of a query")
    return position


def _by_partition(ground: _Ground, texts: Mapping[str, str]) -> dict[int, str]:
    return {ground.view.partition(partition): text for partition, text in texts.items()}


def _ends(ground: _Ground, target: QueryPosition | None) -> dict[int, int]:
    """How far each partition may be read: to its end, or to the target's."""
    if target is None or target.id != ground.id:
        return {p: cursors.end_index(spans) for p, spans in enumerate(ground.spans)}
    aimed = {int(partition): _position(text) for partition, text in target.cursors.items()}
    return {p: cursors.index_of(spans, aimed[p]) if p in aimed else 0 for p, spans in enumerate(ground.spans)}


def _moved(before: QueryPosition | None, after: QueryPosition, resumed: Mapping[int, Resumed]) -> QueryPosition:
    """The place after with what was left out on the way; the place before, unchanged, if it is the same one."""
    if before is None:
        return after
    if (before.id, before.cursors) == (after.id, after.cursors):
        return before
    skipped = dict(before.skipped)
    for partition, found in resumed.items():
        if found.skipped:
            skipped[str(partition)] = skipped.get(str(partition), 0) + found.skipped
    return msgspec.structs.replace(after, skipped=skipped)
