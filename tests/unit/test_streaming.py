"""When a stream sends what: the state machine against Nakadi's rules, with a given time."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Invalid
from strandline.log import records
from strandline.log.cursors import Position
from strandline.log.reading import Batch
from strandline.log.records import NewRecords
from strandline.log.streaming import StreamLimits, StreamState

START = {0: Position(1, -1), 1: Position(1, -1)}


def batch(partition: int, first: int, count: int, *, timeline: int = 1, size: int = 2) -> Batch:
    values = [b"{}".ljust(size) for _ in range(count)]
    _, stored = records.to_arrow([NewRecords(1, values)])
    return Batch("orders", str(partition), timeline, records.with_offsets(first, [stored], [1]))


def offsets(chunk) -> list[int]:
    return [] if chunk.records is None else chunk.records["offset"].to_pylist()


def test_full_batches_go_out_at_once_and_the_rest_waits():
    """Only whole batches are sent before the flush timeout."""
    state = StreamState("orders", StreamLimits(batch_limit=3), START, 0)
    state.add(batch(0, 0, 7))
    assert [offsets(chunk) for chunk in state.take(0)] == [[0, 1, 2], [3, 4, 5]]
    assert state.take(1) == []


def test_the_cursor_of_a_batch_is_its_last_record():
    """A reader that resumes from the cursor gets exactly the records after it."""
    state = StreamState("orders", StreamLimits(batch_limit=2), START, 0)
    state.add(batch(1, 5, 2))
    (chunk,) = state.take(0)
    assert (chunk.partition, chunk.position) == (1, Position(1, 6))


def test_the_flush_timeout_sends_what_is_there():
    """After batch_flush_timeout an incomplete batch is sent, and an empty partition gets a keep-alive."""
    state = StreamState("orders", StreamLimits(batch_limit=10, batch_flush_timeout=2), START, 0)
    state.add(batch(0, 0, 1))
    assert state.take(1999) == []
    chunks = state.take(2000)
    assert [(chunk.partition, offsets(chunk)) for chunk in chunks] == [(0, [0]), (1, [])]
    assert state.take(2001) == []


def test_a_keep_alive_repeats_the_last_cursor():
    """A keep-alive has no events and the cursor that was sent last."""
    state = StreamState("orders", StreamLimits(batch_limit=1, batch_flush_timeout=1), {0: Position(2, 41)}, 0)
    (chunk,) = state.take(1000)
    assert (chunk.records, chunk.position) == (None, Position(2, 41))


def test_keep_alives_come_well_within_thirty_seconds():
    """Clients close a stream that is silent for 30 s, with any flush timeout."""
    state = StreamState("orders", StreamLimits(batch_flush_timeout=3600), START, 0)
    assert state.wait_ms(0) <= 15_000
    assert state.take(15_000)


def test_the_stream_ends_after_as_many_keep_alives_in_a_row_as_asked():
    """Events reset the count."""
    limits = StreamLimits(batch_limit=1, batch_flush_timeout=1, stream_keep_alive_limit=2)
    state = StreamState("orders", limits, {0: Position(1, -1)}, 0)
    state.take(1000)
    state.add(batch(0, 0, 1))
    state.take(1500)
    state.take(2500)
    assert not state.finished
    state.take(3500)
    assert state.finished


def test_stream_limit_counts_events_over_all_partitions():
    """The last batch is cut to meet the limit exactly."""
    state = StreamState("orders", StreamLimits(batch_limit=3, stream_limit=5), START, 0)
    assert state.wanted() == 5
    state.add(batch(0, 0, 3))
    state.add(batch(1, 0, 3))
    assert sum(len(offsets(chunk)) for chunk in state.take(0)) == 5
    assert state.finished


def test_the_end_of_the_stream_flushes_what_is_pending():
    """After stream_timeout, pending events are sent, without keep-alives."""
    state = StreamState("orders", StreamLimits(batch_limit=10, batch_flush_timeout=1, stream_timeout=1), START, 0)
    state.add(batch(0, 0, 2))
    assert [offsets(chunk) for chunk in state.take(1000)] == [[0, 1]]
    assert state.finished


def test_a_stream_timeout_past_the_longest_means_the_default():
    """As in Nakadi, a timeout over 4,200 s means the default: an hour, plus or minus ten minutes."""
    assert 3_000_000 <= StreamLimits(stream_timeout=5000).lifetime_ms <= 4_200_000
    assert StreamLimits(stream_timeout=4200).lifetime_ms == 4_200_000


def test_a_batch_never_spans_two_timelines():
    """The cursor of a batch names one timeline, so the batch ends with its timeline."""
    state = StreamState("orders", StreamLimits(batch_limit=4, batch_flush_timeout=1), {0: Position(1, 6)}, 0)
    state.add(batch(0, 7, 3, timeline=1))
    state.add(batch(0, 0, 3, timeline=2))
    chunks = [*state.take(1000), *state.take(2000)]
    assert [(chunk.position.order, offsets(chunk)) for chunk in chunks] == [(1, [7, 8, 9]), (2, [0, 1, 2])]


def test_much_data_is_sent_before_the_batch_is_full():
    """The memory of a stream is limited, with any batch_limit."""
    state = StreamState("orders", StreamLimits(batch_limit=1_000_000), {0: Position(1, -1)}, 0)
    state.add(batch(0, 0, 40, size=1 << 19))
    assert state.take(0)


def test_a_stream_does_not_read_more_than_it_can_use():
    """Records that wait for a full batch reduce the number of records to read."""
    state = StreamState("orders", StreamLimits(batch_limit=2000), {0: Position(1, -1)}, 0)
    state.add(batch(0, 0, 1500))
    assert state.wanted() == 500


@pytest.mark.parametrize(
    "limits",
    [
        StreamLimits(batch_limit=10, stream_limit=5),
        StreamLimits(stream_timeout=5, batch_flush_timeout=10),
        StreamLimits(stream_timeout=29),
    ],
)
def test_contradictory_limits_are_refused(limits):
    """The message names both limits."""
    with pytest.raises(Invalid, match="is lower than"):
        limits.check()


@given(
    st.integers(1, 7),
    st.integers(0, 40),
    st.lists(st.tuples(st.sampled_from(["read", "take"]), st.integers(0, 1), st.integers(1, 9)), max_size=60),
)
def test_everything_read_is_sent_once_and_in_order(batch_limit, stream_limit, steps):
    """Any interleaving of reads and time sends a gapless prefix of each partition, within all limits."""
    limits = StreamLimits(
        batch_limit=batch_limit, stream_limit=max(stream_limit, batch_limit) if stream_limit else 0
    )
    state = StreamState("orders", limits, START, 0)
    now, read = 0, {0: 0, 1: 0}
    sent: dict[int, list[int]] = {0: [], 1: []}
    for step, partition, amount in steps:
        if step == "read":
            count = min(amount, state.wanted())
            if count and not state.finished:
                state.add(batch(partition, read[partition], count))
                read[partition] += count
        else:
            now += amount * 1000
        for chunk in state.take(now):
            assert len(offsets(chunk)) <= batch_limit
            sent[chunk.partition] += offsets(chunk)
    for partition in (0, 1):
        assert sent[partition] == list(range(len(sent[partition])))
        assert len(sent[partition]) <= read[partition]
    if limits.stream_limit:
        assert len(sent[0]) + len(sent[1]) <= limits.stream_limit
    else:
        assert all(read[p] - len(sent[p]) < batch_limit for p in (0, 1))


def test_records_keep_their_bytes():
    """A chunk is a slice of the records that were read."""
    state = StreamState("orders", StreamLimits(batch_limit=1), {0: Position(1, -1)}, 0)
    _, stored = records.to_arrow([NewRecords(1, [b'{"a":1.10}', b'{"b":1E5}'])])
    state.add(Batch("orders", "0", 1, records.with_offsets(0, [stored], [1])))
    chunks = state.take(0)
    assert [chunk.records["value"] for chunk in chunks] == [pa.array([b'{"a":1.10}']), pa.array([b'{"b":1E5}'])]


def test_a_stream_keeps_no_more_bytes_than_it_may():
    """Records above the share of a partition are sent before the batch is full, and less is read."""
    state = StreamState("orders", StreamLimits(batch_limit=1_000), START, 0)
    state.most_bytes = 100_000
    assert state.wanted_bytes() == 100_000
    state.add(batch(0, 0, 3, size=10_000))
    assert state.take(0) == []
    assert state.wanted_bytes() < 80_000
    state.add(batch(0, 3, 3, size=10_000))
    assert [offsets(chunk) for chunk in state.take(0)] == [[0, 1, 2, 3, 4, 5]]
    assert state.wanted_bytes() == 100_000
    state.add(batch(1, 0, 1, size=500_000))
    assert state.wanted_bytes() == 1
    assert [offsets(chunk) for chunk in state.take(0)] == [[0]]
