"""Retention that waits: expired records that are not archived yet are kept, up to a limit in bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from strandline.log.cursors import Position
from strandline.log.model import CatalogEntry, Timeline
from strandline.log.open_storages import Storages
from strandline.room import GaugeMetric, GaugeValues

log = logging.getLogger(__name__)

_KEPT = GaugeMetric(
    "strandline_unarchived_expired_bytes",
    "Bytes of events that are past their retention and kept until they are archived, estimated from samples.",
    "event_type",
)
_SAMPLE_RECORDS = 100
_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Wait:
    """Records after these positions are kept although they have expired, unless they have more than `max_bytes`.

    A partition without a position is kept as a whole.
    """

    positions: Mapping[int, Position]
    max_bytes: int


#: The event types whose retention waits, by name.
Waits = Callable[[], Mapping[str, Wait]]


class WaitingRetention:
    """Decides for which event types retention waits now, and measures what is kept because of it."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._waits: Waits = dict
        self._bytes: dict[str, float] = {}
        self._exceeded: set[str] = set()

    def ask(self, waits: Waits) -> None:
        """From now on, `waits` says which event types wait. While it fails, nothing is removed."""
        self._waits = waits

    def gauges(self) -> GaugeValues:
        return {_KEPT: self._bytes}

    def waits(self) -> Mapping[str, Wait]:
        return self._waits()

    def forget(self, others: Collection[str]) -> None:
        """Drop the measurements of all other event types."""
        self._bytes = {name: size for name, size in self._bytes.items() if name in others}

    def of(self, entry: CatalogEntry, wait: Wait | None, before_ms: int) -> Wait | None:
        """The wait, or None if the records from before that time are too many to be kept."""
        name = entry.event_type.name
        if wait is None:
            return None
        timelines = [timeline for timeline in entry.timelines if timeline.cleaned_up_at is None]
        size = sum(self._unarchived(timeline, wait.positions, before_ms) for timeline in timelines)
        self._bytes = {**self._bytes, name: float(size)}
        if size <= wait.max_bytes:
            self._exceeded.discard(name)
            return wait
        if name not in self._exceeded:
            self._exceeded.add(name)
            log.warning(
                "expired events of %s that are not archived have about %d bytes, more than "
                "archive.max_waiting_bytes, and are removed; start the archive, or retire the event type",
                *(name, size),
            )
        return None

    def _unarchived(self, timeline: Timeline, positions: Mapping[int, Position], before_ms: int) -> int:
        """About how many bytes are after the positions and older than that time."""
        storage, topic, total = self._storages.get(timeline.storage_id), timeline.topic, 0
        for partition, bounds in enumerate(storage.bounds(topic)):
            start = max(bounds.first, first_after(timeline, positions.get(partition)))
            if start > bounds.last:
                continue
            end = storage.find(topic, partition, before_ms)
            if end > start:
                sample = storage.read(
                    topic, partition, start, max_records=_SAMPLE_RECORDS, max_bytes=_SAMPLE_BYTES
                )
                total += (end - start) * sample.nbytes // max(sample.num_rows, 1)
        return total


def first_after(timeline: Timeline, position: Position | None) -> int:
    """The first offset of the timeline after a position; None is the beginning."""
    if position is None or position.order < timeline.order:
        return 0
    return position.offset + 1 if position.order == timeline.order else 2**63 - 1
