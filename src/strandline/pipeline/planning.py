"""Plans what a source reads next, from the current state of the event types. Independent of Spark."""

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
from strandline.log.ranges import PartitionRange, Piece, patiently, pieces
from strandline.log.reading import View
from strandline.pipeline import positions
from strandline.pipeline.options import ReadOptions
from strandline.pipeline.positions import QueryPosition, QueryPositions

if TYPE_CHECKING:
    from strandline.platform import Platform

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Snapshot:
    """An event type and the timelines of all its partitions, at one moment."""

    view: View
    spans: list[list[Span]]

    @property
    def id(self) -> str:
        return self.view.entry.id

    def position(self, indexes: Mapping[int, int]) -> QueryPosition:
        found = {p: cursors.at_index(self.spans[p], index) for p, index in indexes.items()}
        return QueryPosition(self.id, {str(partition): str(position) for partition, position in found.items()})


class Planner:
    """Positions of a query and the ranges between them.

    A call to a storage or catalog that does not answer is retried for a minute.
    """

    def __init__(self, platform: Platform, options: ReadOptions) -> None:
        self._platform = platform
        self._options = options
        self._policy = options.on_unavailable
        #: The ends of all event types at the last check. The lag of a query is counted from them.
        self.newest: dict[str, QueryPosition] = {}
        self._reported: set[tuple[str, int, str]] = set()

    def located(self, text: str) -> dict[str, QueryPosition]:
        """The positions in all event types that a text means: BEGIN, END, a time, or cursors as JSON."""
        given = _cursors(text)
        if given is not None and (unknown := given.keys() - {*self._options.event_types}):
            raise Invalid(f"there are cursors for {min(unknown)!r}, which event_types does not name")
        return {
            name: self._located(name, text if given is None else given.get(name, {}))
            for name in self._options.event_types
        }

    def _located(self, name: str, text: str | QueryPosition | Mapping[str, str]) -> QueryPosition:
        snapshot = self._snapshot(name)
        partitions = range(len(snapshot.spans))
        if isinstance(text, QueryPosition):
            return snapshot.position({p: found.index for p, found in self._resumed(name, snapshot, text).items()})
        if isinstance(text, str):
            texts = dict.fromkeys(partitions, text)
        else:
            texts = {snapshot.view.partition(partition): cursor for partition, cursor in text.items()}
        if missing := {*partitions} - texts.keys():
            raise Invalid(f"cursors must name every partition; partition {min(missing)} of {name!r} is missing")
        return snapshot.position({p: self._index(snapshot, p, texts[p]) for p in partitions})

    def _index(self, snapshot: _Snapshot, partition: int, text: str) -> int:
        spans = snapshot.spans[partition]
        try:
            position = patiently(lambda: snapshot.view.locate(partition, spans, text))
        except InvalidCursor as error:
            if error.reason == "INVALID_FORMAT" or self._policy == "fail":
                raise
            position = _position(text)
        return resume(spans, position, self._policy).index

    def latest(
        self, start: QueryPositions, limit: int | None, target: QueryPositions | None = None
    ) -> dict[str, QueryPosition]:
        """Where the batch after `start` ends: at the end or the target, after at most `limit` records.

        Never before the start, unless records were lost. Equal to the start if there is nothing to read.
        """
        snapshots = {name: self._snapshot(name) for name in self._options.event_types}
        self.newest = {name: snapshot.position(_ends(snapshot, None)) for name, snapshot in snapshots.items()}
        resumed = {name: self._resumed(name, snapshot, start.get(name)) for name, snapshot in snapshots.items()}
        lags = {
            (name, p): max(0, end - resumed[name][p].index)
            for name, snapshot in snapshots.items()
            for p, end in _ends(snapshot, None if target is None else target.get(name)).items()
        }
        given = lags if limit is None else positions.shares(lags, limit)
        ends = {
            name: snapshot.position({p: found.index + given[name, p] for p, found in resumed[name].items()})
            for name, snapshot in snapshots.items()
        }
        return {**start, **{name: _moved(start.get(name), end, resumed[name]) for name, end in ends.items()}}

    def ranges(self, start: QueryPositions, end: QueryPositions) -> list[PartitionRange]:
        """One range for every partition that has records between the two positions."""
        storages = patiently(self._platform.log.types.storages)
        return [found for name in end for found in self._ranges(name, start.get(name), end[name], storages)]

    def _ranges(
        self, name: str, start: QueryPosition | None, end: QueryPosition, storages: Mapping[str, StorageInfo]
    ) -> Iterator[PartitionRange]:
        if start == end:
            return
        snapshot = self._snapshot(name)
        if self._is_of_deleted(name, snapshot, end):
            return
        began = QueryPosition(end.id, end.began) if end.began else start
        resumed = self._resumed(name, snapshot, began)
        for partition in sorted(map(int, end.cursors)):
            last = resume(snapshot.spans[partition], _position(end.cursors[str(partition)]), self._policy)
            between = resumed[partition].index, last.index
            found = pieces(snapshot.view.entry.timelines, storages, snapshot.spans[partition], *between)
            if found:
                yield self._range(name, partition, found)

    def _range(self, name: str, partition: int, found: tuple[Piece, ...]) -> PartitionRange:
        return PartitionRange(
            name,
            partition,
            found,
            str(self._platform.data.resolve()),
            self._platform.settings.log,
            skip_expired=self._policy != "fail",
        )

    def _snapshot(self, name: str) -> _Snapshot:
        view = patiently(lambda: self._platform.log.types.view(name))
        return _Snapshot(view, patiently(view.spans))

    def _resumed(self, name: str, snapshot: _Snapshot, position: QueryPosition | None) -> dict[int, Resumed]:
        """Where to continue in every partition. Partitions that are new to the query are read from their start."""
        if position is not None and self._is_of_deleted(name, snapshot, position):
            index_of = cursors.end_index if self._policy == "latest" else cursors.begin_index
            indexes = [index_of(spans) for spans in snapshot.spans]
            return {p: Resumed(cursors.at_index(snapshot.spans[p], i), i) for p, i in enumerate(indexes)}
        known = {} if position is None else position.cursors
        return {p: self._resumed_in(name, snapshot, p, known.get(str(p))) for p in range(len(snapshot.spans))}

    def _resumed_in(self, name: str, snapshot: _Snapshot, partition: int, text: str | None) -> Resumed:
        found = resume(snapshot.spans[partition], None if text is None else _position(text), self._policy)
        if found.problem:
            where = f"event type {name!r}, partition {partition}"
            skip = f"the query skips {found.skipped} records and continues after {found.position}"
            self._report((name, partition, str(text)), f"{where}: {skip}: {found.problem}")
        return found

    def _is_of_deleted(self, name: str, snapshot: _Snapshot, position: QueryPosition) -> bool:
        """Whether the position belongs to a deleted event type of the same name."""
        if position.id == snapshot.id:
            return False
        why = f"event type {name!r} was deleted and created again"
        if self._policy == "fail":
            raise InvalidCursor(why, reason="UNAVAILABLE")
        self._report((name, -1, position.id), f"{why}; the query continues at its {self._policy} record")
        return True

    def _report(self, key: tuple[str, int, str], message: str) -> None:
        """Log a message once, even if Spark plans the same batch several times."""
        if key not in self._reported:
            self._reported.add(key)
            log.warning("%s", message)


def _cursors(text: str) -> dict[str, Any] | None:
    """Cursors as JSON, by event type and partition, or positions as a query reports them; None for other texts."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
        return {
            name: msgspec.convert(value, QueryPosition if "cursors" in value else dict[str, str])
            for name, value in found.items()
        }
    except msgspec.MsgspecError as error:
        raise Invalid(f'cursors must look like {{"orders": {{"0": "BEGIN"}}}}: {error}') from None


def _position(text: str) -> Position:
    """Parse a cursor of a query's position."""
    position = cursors.parse(text)
    if position is None:
        raise Invalid("BEGIN is not a position of a query")
    return position


def _ends(snapshot: _Snapshot, target: QueryPosition | None) -> dict[int, int]:
    """How far each partition may be read: to its end, or to the target."""
    if target is None or target.id != snapshot.id:
        return {p: cursors.end_index(spans) for p, spans in enumerate(snapshot.spans)}
    aimed = {int(partition): _position(text) for partition, text in target.cursors.items()}
    return {p: cursors.index_of(spans, aimed[p]) if p in aimed else 0 for p, spans in enumerate(snapshot.spans)}


def _moved(before: QueryPosition | None, after: QueryPosition, resumed: Mapping[int, Resumed]) -> QueryPosition:
    """`after` with the number of skipped records added; `before` itself if both have the same cursors."""
    if before is None:
        return after
    if (before.id, before.cursors) == (after.id, after.cursors):
        return before
    skipped = dict(before.skipped)
    for partition, found in resumed.items():
        if found.skipped:
            skipped[str(partition)] = skipped.get(str(partition), 0) + found.skipped
    return msgspec.structs.replace(after, skipped=skipped)
