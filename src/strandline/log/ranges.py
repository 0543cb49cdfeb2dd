"""A range of one partition as a value, which another process can read without the catalog.

A process with the catalog creates the range. The process that reads it needs only the storages, for example a
Spark task on another machine. Storages are opened on first use and kept open, because more ranges may follow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa

from strandline.errors import InvalidCursor, NotFound, Unavailable
from strandline.log.cursors import Position, Span, starts
from strandline.log.model import StorageInfo, Timeline
from strandline.log.open_storages import Storages
from strandline.log.reading import Batch
from strandline.log.settings import LogSettings
from strandline.log.storage import Storage

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_PATIENCE_SECONDS = 60.0
_READ_RECORDS = 100_000
_READ_BYTES = 64 << 20
# Consumers, with the records they have prefetched, that are kept by a process that reads many partitions.
_OPEN_READS = 16


@dataclass(frozen=True)
class Piece:
    """The offsets `first` to `last`, both included, of one timeline's topic."""

    timeline: int
    storage: StorageInfo
    topic: str
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class PartitionRange:
    """Consecutive records of one partition, across all its timelines.

    `data` is the data directory, which contains the local storages. Storages carry secrets only as references,
    which the reading process resolves.
    """

    event_type: str
    partition: int
    pieces: tuple[Piece, ...]
    data: str
    settings: LogSettings = field(default_factory=LogSettings)
    #: Skip records that expired before they were read, with a warning, instead of failing.
    skip_expired: bool = False

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def of_one_machine(self) -> bool:
        """Whether only processes of one machine can read the range."""
        return any(piece.storage.configuration.local for piece in self.pieces)


def pieces(
    timelines: Iterable[Timeline], storages: Mapping[str, StorageInfo], spans: Sequence[Span], start: int, end: int
) -> tuple[Piece, ...]:
    """The records of a partition between two indexes."""
    own = {timeline.order: timeline for timeline in timelines}
    return tuple(
        Piece(span.order, storages[own[span.order].storage_id], own[span.order].topic, first, last)
        for span, first, last in cut(spans, start, end)
    )


def cut(spans: Sequence[Span], start: int, end: int) -> Iterator[tuple[Span, int, int]]:
    """The timelines between two indexes, each with its first and last offset; expired offsets are left out."""
    for before, span in starts(spans):
        first, last = max(start - before, span.first), min(end - before, span.size) - 1
        if first <= last:
            yield span, first, last


def read_range(wanted: PartitionRange) -> Iterator[Batch]:
    """All records of the range, in order, in large batches.

    InvalidCursor if records have expired, unless the range skips them. An unavailable storage is retried for a
    minute.
    """
    for piece in wanted.pieces:
        try:
            yield from _read_piece(wanted, piece)
        except NotFound as error:
            _expired(wanted, piece, piece.first, f"its topic was deleted ({error.detail})")


def read_chunks(wanted: PartitionRange, most_records: int, most_bytes: int) -> Iterator[Batch]:
    """The same in smaller batches, which have about as many bytes at most."""
    for batch in read_range(wanted):
        size = max(1, int(batch.records.nbytes) // len(batch))
        count = max(1, min(most_records, most_bytes // size))
        for start in range(0, len(batch), count):
            yield Batch(batch.event_type, batch.partition, batch.timeline, batch.records.slice(start, count))


def _read_piece(wanted: PartitionRange, piece: Piece) -> Iterator[Batch]:
    storage = _storage(wanted, piece.storage)
    offset = piece.first
    while offset <= piece.last:
        records = patiently(lambda at=offset: _read(storage, wanted, piece, at))  # type: ignore[misc]  # its default
        found = records["offset"][0].as_py() if records.num_rows else piece.last + 1
        if found > offset:
            _check_gap(storage, wanted, piece, offset, found)
        if not records.num_rows:
            return
        yield Batch(wanted.event_type, str(wanted.partition), piece.timeline, records)
        offset = records["offset"][-1].as_py() + 1


def _read(storage: Storage, wanted: PartitionRange, piece: Piece, offset: int) -> pa.RecordBatch:
    most = min(_READ_RECORDS, piece.last - offset + 1)
    records = storage.read(piece.topic, wanted.partition, offset, max_records=most, max_bytes=_READ_BYTES)
    if records.num_rows and records["offset"][-1].as_py() > piece.last:
        # Offsets may have gaps, so this many records may reach past the end of the range.
        inside = sum(offset <= piece.last for offset in records["offset"].to_pylist())
        records = records.slice(0, inside)
    return records


def _check_gap(storage: Storage, wanted: PartitionRange, piece: Piece, offset: int, found: int) -> None:
    """Check why there is no record from `offset` up to `found`: a gap in the offsets, or records expired."""
    bounds = patiently(lambda: storage.bounds(piece.topic))[wanted.partition]
    if bounds.last < piece.last:
        detail = f"{Position(piece.timeline, piece.last)} existed, but the newest offset is {bounds.last} now"
        raise InvalidCursor(f"{_name(wanted)}: {detail}", reason="UNAVAILABLE")
    if bounds.first > offset:
        _expired(wanted, piece, offset, f"the oldest offset is {min(bounds.first, found)} now")


def _expired(wanted: PartitionRange, piece: Piece, offset: int, why: str) -> None:
    detail = f"{_name(wanted)}: {Position(piece.timeline, offset)} expired before it was read: {why}"
    if not wanted.skip_expired:
        raise InvalidCursor(detail, reason="UNAVAILABLE")
    log.warning("%s; the records are skipped", detail)


def _name(wanted: PartitionRange) -> str:
    return f"event type {wanted.event_type!r}, partition {wanted.partition}"


def patiently(act: Callable[[], _T], seconds: float = _PATIENCE_SECONDS) -> _T:
    """Call `act` and return its result. Retry for at most `seconds` while it raises Unavailable."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return act()
        except Unavailable as error:
            if time.monotonic() + error.retry_after > deadline:
                raise
            log.warning("%s; retrying", error)
            time.sleep(error.retry_after)


_lock = threading.Lock()
_open: dict[tuple[str, bytes], Storage] = {}


def _storage(wanted: PartitionRange, info: StorageInfo) -> Storage:
    """The storage, opened once per process, data directory and configuration."""
    key = (wanted.data, msgspec.json.encode(info))
    with _lock:
        for storage in _open.values():
            storage.tidy()
        if key not in _open:
            settings = replace(wanted.settings, max_open_reads=_OPEN_READS)
            storages = Storages(lambda: [info], Path(wanted.data), settings)
            _open[key] = storages.get(info.id)
        return _open[key]


def close_storages() -> None:
    """Close the storages that this process has opened to read ranges."""
    with _lock:
        for storage in _open.values():
            storage.close()
        _open.clear()
