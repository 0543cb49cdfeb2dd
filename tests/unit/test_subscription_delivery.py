"""What the stream of a subscription sends, with a clock that the test controls."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.log import records
from strandline.log.cursors import Position
from strandline.log.reading import Batch
from strandline.log.subscriptions.delivery import Delivery
from strandline.log.subscriptions.model import Share, Slot, StreamParameters

START = Position(1, -1)


def slot(partition: int) -> Slot:
    return Slot("et", partition)


def share(partition: int, offset: int = -1, *, timeline: int = 1, heir: str | None = None) -> Share:
    return Share(slot(partition), "orders", Position(timeline, offset), owner="me", heir=heir)


def batch(partition: int, first: int, last: int, *, timeline: int = 1, size: int = 1) -> Batch:
    offsets = [*range(first, last + 1)]
    nothing = [None] * len(offsets)
    columns = [offsets, [0] * len(offsets), nothing, [b"x" * size] * len(offsets), nothing]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, records.READ, strict=True)]
    return Batch("orders", str(partition), timeline, pa.RecordBatch.from_arrays(arrays, schema=records.READ))


def sizes(chunks) -> list[int]:
    """The number of records in every chunk; a keep-alive has 0."""
    return [0 if chunk.records is None else chunk.records.num_rows for chunk in chunks]


def delivery(*shares: Share, eager: bool = False, **parameters) -> Delivery:
    made = Delivery(StreamParameters(**parameters), 0, eager=eager)
    made.hold(shares or [share(0)], 0)
    return made


def test_batches_go_out_when_full_or_when_their_time_has_come():
    """A full batch is sent at once, an incomplete one after the flush timeout, then keep-alives."""
    stream = delivery(batch_limit=2, batch_flush_timeout=5)
    stream.add(slot(0), batch(0, 0, 2))
    assert sizes(stream.take(0)) == [2]
    assert sizes(stream.take(4_999)) == []
    assert stream.wait_ms(4_000) == 1_000
    assert sizes(stream.take(5_000)) == [1]
    (alive,) = stream.take(10_000)
    assert (alive.records, alive.position) == (None, Position(1, 2))


def test_an_eager_stream_waits_for_nothing():
    stream = delivery(batch_limit=100, eager=True)
    stream.add(slot(0), batch(0, 0, 2))
    assert sizes(stream.take(0)) == [3]


def test_large_records_go_out_before_the_batch_is_full():
    """The memory of a stream is limited."""
    stream = delivery(batch_limit=1000, max_uncommitted_events=1000)
    stream.add(slot(0), batch(0, 0, 19, size=1 << 20))
    assert sizes(stream.take(0)) == [20]


def test_signs_of_life_come_although_the_flush_timeout_is_long():
    """Existing clients close a stream after 30 s of silence."""
    stream = delivery(batch_flush_timeout=3600)
    assert stream.wait_ms(0) <= 15_000
    assert sizes(stream.take(15_000)) == [0]


def test_the_window_closes_and_opens_with_commits():
    """The window spans all partitions. A batch may be smaller than its limit because of the window."""
    stream = delivery(share(0), share(1), batch_limit=3, max_uncommitted_events=4)
    stream.add(slot(0), batch(0, 0, 9))
    stream.add(slot(1), batch(1, 0, 9))
    assert [(chunk.partition, chunk.records.num_rows) for chunk in stream.take(0)] == [(0, 3), (1, 1)]
    assert stream.wanted() == 0
    assert sizes(stream.take(1)) == []
    stream.hold([share(0, 2), share(1)], 2)
    assert [(chunk.partition, chunk.records.num_rows) for chunk in stream.take(2)] == [(0, 3)]
    stream.hold([share(0, 5), share(1, 0)], 3)
    assert [(chunk.partition, chunk.records.num_rows) for chunk in stream.take(3)] == [(1, 3), (0, 1)]


def test_a_long_backlog_does_not_keep_others_waiting():
    """Partitions take turns in a window of one event."""
    stream = delivery(share(0), share(1), share(2), max_uncommitted_events=1)
    for partition in range(3):
        stream.add(slot(partition), batch(partition, 0, 99))
    cursors = [-1, -1, -1]
    for turn in range(9):
        stream.hold([share(p, cursors[p]) for p in range(3)], turn)
        (chunk,) = stream.take(turn)
        assert chunk.partition == turn % 3
        cursors[chunk.partition] = chunk.position.offset


def test_a_commit_in_the_middle_of_a_batch_leaves_the_batch_uncommitted():
    """A batch counts as committed only as a whole."""
    stream = delivery(batch_limit=4, max_uncommitted_events=4)
    stream.add(slot(0), batch(0, 0, 9))
    assert sizes(stream.take(0)) == [4]
    stream.hold([share(0, 1)], 1)
    assert sizes(stream.take(1)) == []


def test_the_stream_ends_when_a_commit_is_overdue():
    """The timeout starts with the first uncommitted batch and restarts with every commit."""
    stream = delivery(batch_limit=1, commit_timeout=10)
    stream.add(slot(0), batch(0, 0, 1))
    assert sizes(stream.take(0)) == [1, 1]
    stream.hold([share(0, 0)], 9_999)
    assert not stream.overdue(10_000)
    assert stream.wait_ms(10_000) <= 9_999
    stream.take(19_998)
    assert not stream.finished
    assert stream.take(19_999) == []
    assert stream.finished


def test_without_anything_uncommitted_nothing_is_overdue():
    stream = delivery(commit_timeout=1)
    stream.add(slot(0), batch(0, 0, 0))
    stream.take(0)
    stream.hold([share(0, 0)], 500)
    stream.take(100_000)
    assert not stream.finished


def test_it_ends_after_its_limit_its_time_or_its_signs_of_life():
    """After stream_timeout, pending events are sent within the window."""
    stream = delivery(batch_limit=2, stream_limit=3)
    assert stream.wanted() == 3
    stream.add(slot(0), batch(0, 0, 4))
    assert sizes(stream.take(0)) == [2, 1]
    stream.hold([share(0, 1)], 1)
    stream.take(1)
    assert not stream.finished, "it waits for the commit of the last event"
    stream.hold([share(0, 2)], 2)
    assert stream.take(2) == []
    assert stream.finished
    stream = delivery(batch_limit=100, stream_timeout=60, batch_flush_timeout=60)
    stream.add(slot(0), batch(0, 0, 4))
    stream.take(59_999)
    assert not stream.finished
    stream.add(slot(0), batch(0, 5, 6))
    assert sizes(stream.take(60_000)) == [2]
    assert stream.finished
    stream = delivery(batch_flush_timeout=1, stream_keep_alive_limit=2)
    stream.take(1_000)
    assert not stream.finished
    stream.take(2_000)
    assert stream.finished


def test_a_partition_that_is_to_leave_is_not_sent_from_and_given_up_when_committed():
    """Keep-alives continue. If the heir leaves, delivery of events continues too."""
    stream = delivery(batch_limit=1, batch_flush_timeout=1)
    stream.add(slot(0), batch(0, 0, 2))
    assert sizes(stream.take(0)) == [1, 1, 1]
    stream.add(slot(0), batch(0, 3, 3))
    stream.hold([share(0, heir="you")], 1)
    assert stream.given_up() == []
    assert sizes(stream.take(1)) == []
    assert stream.hungry() == {}
    assert sizes(stream.take(1_000)) == [0]
    stream.hold([share(0, 2, heir="you")], 1_001)
    assert stream.given_up() == [slot(0)]
    stream.hold([share(0, 2)], 1_002)
    assert stream.given_up() == []
    assert sizes(stream.take(1_002)) == [1]


def test_partitions_come_and_go():
    """A lost partition and late reads of it are dropped. A new partition starts at its cursor."""
    stream = delivery(share(0), batch_limit=1)
    stream.add(slot(0), batch(0, 0, 0))
    stream.hold([share(1, 6)], 1)
    assert stream.hungry() == {"orders": {slot(1): Position(1, 6)}}
    stream.add(slot(0), batch(0, 1, 1))
    stream.add(slot(1), batch(1, 7, 7))
    (chunk,) = stream.take(1)
    assert (chunk.event_type, chunk.partition, chunk.position) == ("orders", 1, Position(1, 7))
    stream.hold([], 2)
    assert stream.take(100_000) == []
    assert not stream.finished
    assert stream.wait_ms(0) <= 15_000


def test_what_another_client_has_committed_is_not_sent():
    """Records that were read but then committed by the partition's former owner are skipped."""
    stream = delivery(batch_limit=100, batch_flush_timeout=1)
    stream.add(slot(0), batch(0, 0, 9))
    stream.hold([share(0, 6)], 0)
    assert stream.hungry() == {"orders": {slot(0): Position(1, 6)}}
    stream.add(slot(0), batch(0, 7, 9))
    (chunk,) = stream.take(1_000)
    assert chunk.records["offset"].to_pylist() == [7, 8, 9]


def test_batches_do_not_mix_timelines():
    """A cursor names one timeline."""
    stream = delivery(batch_limit=10, batch_flush_timeout=1)
    stream.add(slot(0), batch(0, 0, 1))
    stream.add(slot(0), batch(0, 0, 2, timeline=2))
    assert [str(chunk.position) for chunk in stream.take(1_000)] == ["001-0001-000000000000000001"]
    assert [str(chunk.position) for chunk in stream.take(2_000)] == ["001-0002-000000000000000002"]


def test_contradictory_limits_are_refused():
    for wrong in ({"batch_limit": 3, "stream_limit": 2}, {"stream_timeout": 5, "batch_flush_timeout": 6}):
        with pytest.raises(Invalid):
            delivery(**wrong)


@given(
    st.lists(st.integers(1, 6), max_size=12),
    st.integers(1, 5),
    st.integers(1, 9),
    st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_everything_is_sent_once_and_in_order_within_the_window(added, batch_limit, window, commits):
    """This is true for any order of reads and commits."""
    stream = delivery(batch_limit=batch_limit, max_uncommitted_events=window, batch_flush_timeout=1)
    sent: list[int] = []
    committed, written, now_ms = -1, 0, 0
    for turn in range(300):  # a window of one takes two turns per record
        now_ms += 700
        if turn < len(added):
            stream.add(slot(0), batch(0, written, written + added[turn] - 1))
            written += added[turn]
        for chunk in stream.take(now_ms):
            if chunk.records is not None:
                assert chunk.records.num_rows <= batch_limit
                sent += chunk.records["offset"].to_pylist()
        assert len(sent) - (committed + 1) <= window
        if turn >= len(added) or commits[turn]:
            committed = len(sent) - 1
            stream.hold([share(0, committed)], now_ms)
    assert sent == [*range(written)]
