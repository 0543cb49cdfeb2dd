"""The two wire formats of streams, for event types and for subscriptions."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from strandline.log import records
from strandline.log.cursors import Position
from strandline.log.model import CursorText
from strandline.log.records import NewRecords
from strandline.log.streaming import StreamChunk
from strandline.server.stream_encoders import ArrowBatches, JsonLines

PLACE = {"event_type": "orders", "partition": "3", "timeline": 2}


def chunk(*values: bytes) -> StreamChunk:
    _, stored = records.to_arrow([NewRecords(1, values)])
    return StreamChunk("orders", 3, Position(2, 7), records.with_offsets(6, [stored], [1]))


KEEP_ALIVE = StreamChunk("orders", 3, Position(2, 7), None)


def cursor(found: StreamChunk) -> CursorText:
    return CursorText(str(found.partition), str(found.position))


def test_a_batch_is_one_line():
    """Line breaks inside the JSON of events do not split the line."""
    line = JsonLines(cursor).encode(chunk(b'{"a":\n1}', b'{\r\n"b": 2}'))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    found = json.loads(line)
    assert found == {"cursor": {"partition": "3", "offset": str(Position(2, 7))}, "events": [{"a": 1}, {"b": 2}]}


def test_a_keep_alive_has_no_events():
    """A keep-alive has only the cursor. Without a partition nothing is sent."""
    assert json.loads(JsonLines(cursor).encode(KEEP_ALIVE)).keys() == {"cursor"}
    assert JsonLines(cursor).alive() is None


@pytest.mark.parametrize("columns", [("partition", "timeline"), ("event_type", "partition", "timeline")])
def test_arrow_says_where_records_are(columns):
    """One Arrow stream has a schema, batches with the position columns, and keep-alives without rows."""
    encoder = ArrowBatches(columns)
    sent = encoder.start() + encoder.encode(chunk(b"{}", b"[]")) + encoder.encode(KEEP_ALIVE) + encoder.alive()
    with pa.ipc.open_stream(sent) as stream:
        batch, *keep_alives = list(stream)
    assert batch.schema.names == [*columns, *records.READ.names]
    assert batch["value"].to_pylist() == [b"{}", b"[]"]
    assert [batch[name].to_pylist() for name in columns] == [[PLACE[name]] * 2 for name in columns]
    assert [alive.num_rows for alive in keep_alives] == [0, 0]
