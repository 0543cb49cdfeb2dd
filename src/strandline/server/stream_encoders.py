"""Encodes the batches of a stream: as lines of JSON, or as one Arrow stream for the SDK.

`start` is sent when the stream opens, `encode` is one batch or a keep-alive, `alive` is a keep-alive that names no
partition. An `eager` stream sends available records at once instead of waiting to fill a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from strandline.log import records
from strandline.log.streaming import StreamChunk

JSON_STREAM = "application/x-json-stream"
ARROW_STREAM = "application/vnd.apache.arrow.stream"

_COLUMNS = {"event_type": pa.string(), "partition": pa.string(), "timeline": pa.int32()}


class JsonLines:
    """Nakadi's format: one JSON object per line. `cursor` makes the cursor of a batch."""

    media_type = JSON_STREAM
    eager = False

    def __init__(self, cursor: Callable[[StreamChunk], msgspec.Struct]) -> None:
        self._cursor = cursor

    def start(self) -> bytes:
        return b""

    def encode(self, chunk: StreamChunk) -> bytes:
        cursor = msgspec.json.encode(self._cursor(chunk))
        if chunk.records is None:
            return b'{"cursor":%b}\n' % cursor
        # Events are sent as stored. JSON can contain line ends between tokens, but not inside a string.
        events = b",".join(chunk.records["value"].to_pylist()).replace(b"\n", b" ").replace(b"\r", b" ")
        return b'{"cursor":%b,"events":[%b]}\n' % (cursor, events)

    def alive(self) -> None:
        return None  # every line needs a cursor


class ArrowBatches:
    """Records, with `columns` in front that say where each record is stored."""

    media_type = ARROW_STREAM
    # Small batches are cheap in this format, and a reader that follows wants its records without delay.
    eager = True

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._schema = pa.schema([*((name, _COLUMNS[name]) for name in columns), *records.READ])

    def start(self) -> bytes:
        return bytes(self._schema.serialize())

    def encode(self, chunk: StreamChunk) -> bytes:
        found = records.empty() if chunk.records is None else chunk.records
        place = {
            "event_type": chunk.event_type,
            "partition": str(chunk.partition),
            "timeline": chunk.position.order,
        }
        front = [pa.repeat(pa.scalar(place[name], _COLUMNS[name]), found.num_rows) for name in self._columns]
        return bytes(pa.RecordBatch.from_arrays([*front, *found.columns], schema=self._schema).serialize())

    def alive(self) -> bytes:
        return bytes(pa.RecordBatch.from_pylist([], schema=self._schema).serialize())


StreamEncoder = JsonLines | ArrowBatches
