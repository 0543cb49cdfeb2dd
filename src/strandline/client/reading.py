"""Reads an event type over HTTP: an Arrow stream that is reopened at the last cursors when it breaks."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx
import msgspec
import numpy as np
import pyarrow as pa

from strandline.client.transport import Transport
from strandline.errors import InvalidCursor, Unavailable
from strandline.log import cursors
from strandline.log.cursors import Position
from strandline.log.model import CursorText, PartitionInfo
from strandline.log.reading import Batch
from strandline.log.records import READ
from strandline.log.room import Log, Start

ARROW_STREAM = "application/vnd.apache.arrow.stream"
# How long a reader tries to reconnect, with growing pauses.
_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
# The shortest timeout of the protocol. It is also the time between two keep-alives.
_FLUSH_S = 1


@dataclass(frozen=True)
class PartitionRead:
    """Where one partition is read from and, unless it is followed, its last record and the number of records."""

    offset: str
    end: Position | None = None
    count: int = 0


def identity(log: Log, name: str) -> str:
    """An id that a later event type of the same name does not have."""
    return log.timelines(name)[0].id


def plan(log: Log, name: str, start: Start, *, follow: bool) -> dict[str, PartitionRead]:
    """What to read from each partition. Raises InvalidCursor if a given position is not available."""
    if isinstance(start, str) and start.upper() == "END":
        infos = log.partitions(name)
        return {info.partition: PartitionRead(info.newest_available_offset) for info in infos} if follow else {}
    if isinstance(start, str):
        if start.upper() != cursors.BEGIN:
            raise InvalidCursor(
                f"start must be BEGIN, END or offsets by partition, not {start!r}", reason="INVALID_FORMAT"
            )
        asked = [CursorText(info.partition, cursors.BEGIN) for info in log.partitions(name)]
    elif isinstance(start, Mapping):
        asked = [CursorText(partition, offset) for partition, offset in start.items()]
    else:
        asked = list(start)
    offsets = {cursor.partition: cursor.offset or "" for cursor in asked}
    reads = {}
    for info in log.lag(name, asked):
        offset = _pinned(offsets[info.partition], info)
        end = None if follow else cursors.parse(info.newest_available_offset)
        if follow or info.unconsumed_events:
            reads[info.partition] = PartitionRead(offset, end, info.unconsumed_events or 0)
    return reads


def _pinned(offset: str, info: PartitionInfo) -> str:
    """BEGIN as its current position: records that expire before they are read must cause an error, not a gap."""
    if cursors.parse(offset) is not None:
        return offset
    oldest = cursors.parse(info.oldest_available_offset)
    return offset if oldest is None else str(Position(oldest.order, oldest.offset - 1))


class HttpReader:
    """Reads one event type. Keeps the position of each partition and resumes there when a stream breaks."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        reads: Mapping[str, PartitionRead],
        check_identity: Callable[[], None],
        batch_size: int,
        limit: int | None,
    ) -> None:
        self._transport = transport
        self._name = name
        self._reads = dict(reads)
        self._check_identity = check_identity
        self._batch_size = batch_size
        self._left = limit
        self._alive_at: float | None = None

    def batches(self) -> Iterator[Batch]:
        pause, lost_at = _FIRST_PAUSE_S, 0.0
        while self._unfinished():
            alive_before = self._alive_at
            try:
                yield from self._one_stream()
            except Unavailable:
                self._transport.check_open()
                if self._alive_at is None:
                    raise
                # Not since the last batch: the caller may have worked on it for a long time.
                if self._alive_at != alive_before:
                    lost_at = time.monotonic()
                elif time.monotonic() - lost_at > _PATIENCE_S:
                    raise
            if self._alive_at != alive_before:
                pause = _FIRST_PAUSE_S
            else:
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _unfinished(self) -> bool:
        return bool(self._reads) and (self._left is None or self._left > 0)

    def _one_stream(self) -> Iterator[Batch]:
        asked = [CursorText(partition, read.offset) for partition, read in self._reads.items()]
        headers = {"Accept": ARROW_STREAM, "X-Nakadi-Cursors": msgspec.json.encode(asked).decode()}
        path = f"/event-types/{self._name}/events"
        with self._transport.stream(path, self._limits(), headers) as response:
            # Checked after opening, so that the opened stream certainly belongs to the same event type.
            self._check_identity()
            for records in record_batches(response):
                self._alive_at = time.monotonic()
                batch = self._accept(records) if records.num_rows else None
                if batch is not None:
                    yield batch
                if not self._unfinished():
                    return

    def _limits(self) -> dict[str, int]:
        """A finite read states its exact length, so that the server does not wait to fill the last batch."""
        counts = [read.count for read in self._reads.values() if read.end is not None]
        bounds = [bound for bound in (sum(counts), self._left) if bound]
        limits = {"batch_limit": min([self._batch_size, *bounds]), "batch_flush_timeout": _FLUSH_S}
        return {**limits, "stream_limit": min(bounds)} if bounds else limits

    def _accept(self, records: pa.RecordBatch) -> Batch | None:
        """The requested part of a batch. Moves the position of the partition past it."""
        partition, timeline = records["partition"][0].as_py(), records["timeline"][0].as_py()
        read = self._reads.get(partition)
        if read is None:
            return None
        records = records.select(READ.names)
        if read.end is not None:
            records = _up_to(records, timeline, read.end)
        if self._left is not None:
            records = records.slice(0, self._left)
            self._left -= records.num_rows
        batch = Batch(self._name, partition, timeline, records)
        if read.end is not None and Position(timeline, records["offset"][-1].as_py()) >= read.end:
            del self._reads[partition]
        else:
            self._reads[partition] = PartitionRead(batch.offset, read.end, max(read.count - len(batch), 1))
        return batch


def _up_to(records: pa.RecordBatch, timeline: int, end: Position) -> pa.RecordBatch:
    if timeline < end.order:
        return records
    offsets = records["offset"].to_numpy(zero_copy_only=False)
    return records.slice(0, int(np.searchsorted(offsets, end.offset, side="right")))


def record_batches(response: httpx.Response) -> Iterator[pa.RecordBatch]:
    try:
        with pa.ipc.open_stream(_Body(response.iter_bytes())) as reader:
            yield from reader
    except (pa.ArrowInvalid, OSError) as error:
        raise Unavailable(f"the stream broke: {error}") from error


class _Body(io.RawIOBase):
    """A response body as a file. `read(n)` waits for n bytes, as Arrow expects."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = []
        while size:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    break
                self._rest = memoryview(chunk)
            part = self._rest[: size if size > 0 else None]
            self._rest = self._rest[len(part) :]
            parts.append(part)
            size -= len(part) if size > 0 else 0
        return b"".join(parts)
