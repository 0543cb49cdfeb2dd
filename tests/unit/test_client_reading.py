"""The HTTP reader with fake streams: where it trims, resumes and gives up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.client.reading import HttpReader, PartitionRead
from strandline.errors import InvalidCursor, Unavailable
from strandline.log.cursors import Position
from strandline.log.records import READ
from strandline.log.streaming import StreamLimits, StreamState

SCHEMA = pa.schema([("partition", pa.string()), ("timeline", pa.int32()), *READ])
HEAD = bytes(SCHEMA.serialize())


def records(partition: str, timeline: int, offsets: list[int]) -> bytes:
    rows = [
        {"partition": partition, "timeline": timeline, "offset": offset, "timestamp": 0, "value": b"%d" % offset}
        for offset in offsets
    ]
    return bytes(pa.RecordBatch.from_pylist(rows, schema=SCHEMA).serialize())


KEEP_ALIVE = records("0", 1, [])


class Streams:
    """A fake transport: each stream is a list of chunks, the last of which may be an error."""

    def __init__(self, *streams: list[bytes | Exception]) -> None:
        self._streams = list(streams)
        self.asked: list[dict[str, str]] = []
        self.limits: list[dict[str, int]] = []

    @contextmanager
    def stream(self, path: str, params: dict[str, int], headers: dict[str, str]) -> Iterator[Streams]:
        assert path == "/event-types/orders/events"
        cursors = json.loads(headers["X-Nakadi-Cursors"])
        self.asked.append({cursor["partition"]: cursor["offset"] for cursor in cursors})
        self.limits.append(params)
        self._current = self._streams.pop(0)
        yield self

    def check_open(self) -> None:
        """It is never closed."""

    def iter_bytes(self) -> Iterator[bytes]:
        for chunk in self._current:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def reading(streams: Streams, places: dict[str, PartitionRead], limit: int | None = None) -> Iterator[tuple]:
    reader = HttpReader(streams, "orders", places, lambda: None, 100, limit)
    return ((b.partition, b.timeline, b.records["offset"].to_pylist()) for b in reader.batches())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch):
    pauses = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)
    monkeypatch.setattr("strandline.client.reading.time", pauses)


def test_a_read_ends_exactly_at_its_end():
    """Records past the end of a partition are not returned, also if they arrive in a later batch."""
    streams = Streams([HEAD, records("0", 1, [0, 1, 2, 3]), records("0", 1, [4]), records("1", 1, [7, 8, 9])])
    places = {
        "0": PartitionRead("001-0001--1", Position(1, 1), 2),
        "1": PartitionRead("001-0001--1", Position(1, 8), 2),
    }
    assert list(reading(streams, places)) == [("0", 1, [0, 1]), ("1", 1, [7, 8])]


def test_the_end_may_be_in_a_later_timeline():
    """All records of the earlier timelines are before the end."""
    streams = Streams([HEAD, records("0", 1, [5, 6]), records("0", 2, [0, 1])])
    assert list(reading(streams, {"0": PartitionRead("4", Position(2, 0), 3)})) == [
        ("0", 1, [5, 6]),
        ("0", 2, [0]),
    ]


def test_keep_alives_are_not_batches():
    """An empty record batch is a keep-alive and is not returned."""
    streams = Streams([HEAD, KEEP_ALIVE, records("0", 1, [0]), KEEP_ALIVE, records("0", 1, [1])])
    assert list(reading(streams, {"0": PartitionRead("BEGIN", Position(1, 1), 2)})) == [
        ("0", 1, [0]),
        ("0", 1, [1]),
    ]


@pytest.mark.parametrize("cut", [-1, -20, 0, 3])
@pytest.mark.parametrize("loss", [None, Unavailable("lost")])
def test_a_broken_stream_goes_on_after_the_last_whole_batch(cut: int, loss: Exception | None):
    """A stream that ends inside or between batches, with or without an error, loses and repeats no record."""
    torn: list[bytes | Exception] = [HEAD, records("0", 1, [0, 1]), records("0", 1, [2, 3])[:cut]]
    streams = Streams(torn + ([loss] if loss else []), [HEAD, records("0", 1, [2, 3])])
    found = list(reading(streams, {"0": PartitionRead("BEGIN", Position(1, 3), 4)}))
    assert [offset for _, _, offsets in found for offset in offsets] == [0, 1, 2, 3]
    assert streams.asked == [{"0": "BEGIN"}, {"0": "001-0001-000000000000000001"}]


def test_chunks_may_be_cut_anywhere():
    """Chunks from the network do not have to end where batches end."""
    whole = HEAD + records("0", 1, [0, 1]) + records("0", 1, [2])
    streams = Streams([whole[at : at + 1] for at in range(len(whole))])
    assert list(reading(streams, {"0": PartitionRead("BEGIN", Position(1, 2), 3)})) == [
        ("0", 1, [0, 1]),
        ("0", 1, [2]),
    ]


def test_a_limit_cuts_a_batch():
    """The limit is also sent to the server."""
    streams = Streams([HEAD, records("0", 1, [0, 1, 2])])
    assert list(reading(streams, {"0": PartitionRead("BEGIN")}, limit=2)) == [("0", 1, [0, 1])]
    assert streams.limits[0]["stream_limit"] == streams.limits[0]["batch_limit"] == 2


def test_a_stream_that_never_was_is_not_waited_for():
    """The first failure to open a stream is raised, without a retry."""
    with pytest.raises(Unavailable, match="no"):
        list(reading(Streams([Unavailable("no")]), {"0": PartitionRead("BEGIN")}))


def test_an_error_that_waiting_does_not_change_is_raised():
    """An invalid cursor is not retried, also after records were read."""
    streams = Streams([HEAD, records("0", 1, [0])], [InvalidCursor("gone", reason="UNAVAILABLE")])
    with pytest.raises(InvalidCursor):
        list(reading(streams, {"0": PartitionRead("BEGIN")}))


def test_an_eager_stream_does_not_wait_to_fill_a_batch():
    """Records are due as soon as they arrive. The speed of the SDK depends on it."""
    batch = next(
        HttpReader(
            Streams([HEAD, records("0", 1, [0])]), "orders", {"0": PartitionRead("BEGIN")}, lambda: None, 10, 1
        ).batches()
    )
    limits = StreamLimits(batch_limit=10)
    for eager, due in ((True, 1), (False, 0)):
        state = StreamState("orders", limits, {0: Position(1, -1)}, 0, eager=eager)
        state.add(batch)
        assert len(state.take(1)) == due
