"""Reading and cursor arithmetic, in process and over HTTP."""

from __future__ import annotations

import threading
from itertools import islice

import pyarrow as pa
import pytest

from services import until
from strandline import EventType
from strandline.errors import InvalidCursor
from strandline.log import CursorText, DistanceQuery, Log, ShiftedCursor
from strandline.log.records import READ
from strandline.log.subscriptions import Subscription, SubscriptionCursor


def fill(log: Log, name: str, count: int, start: int = 0) -> None:
    log.publish(name, [{"id": str(number)} for number in range(start, start + count)]).raise_for_failed()


def ids(batches) -> list[int]:
    return [int(event["id"]) for batch in batches for event in batch.events]


def offset(number: int) -> str:
    return f"001-0001-{number:018d}"


@pytest.fixture
def single(log: Log, name: str) -> str:
    """An event type of one partition with the events 0 to 9."""
    log.create(EventType(name, partition_strategy="hash", partition_key_fields=("id",)))
    fill(log, name, 10)
    return name


def test_an_empty_event_type_ends_at_once(log: Log, orders: str):
    """A read without `follow` does not wait for events."""
    assert list(log.read(orders)) == []
    assert list(log.read(orders, "END")) == []


def test_batches_say_what_and_where(log: Log, single: str):
    """A batch has records with offset, timestamp, key, value and headers, and the cursor after them."""
    (batch,) = log.read(single)
    assert (batch.event_type, batch.partition, batch.timeline) == (single, "0", 1)
    assert batch.cursor == CursorText("0", offset(9))
    assert len(batch) == 10
    records = batch.to_arrow()
    assert isinstance(records, pa.RecordBatch)
    assert records.schema == READ
    assert records["offset"].to_pylist() == list(range(10))
    assert records["key"].to_pylist() == [str(number).encode() for number in range(10)]
    assert records["headers"].to_pylist() == [None] * 10
    assert all(stamp > 1_700_000_000_000 for stamp in records["timestamp"].to_pylist())


def test_every_event_is_read_once_from_all_partitions(log: Log, orders: str):
    """All partitions are read, each in order, in batches up to the given size."""
    fill(log, orders, 500)
    batches = list(log.read(orders, batch_size=64))
    assert sorted(ids(batches)) == list(range(500))
    assert max(map(len, batches)) <= 64
    for partition in ("0", "1", "2"):
        own = ids(batch for batch in batches if batch.partition == partition)
        assert own
        assert own == sorted(own)


def test_a_reader_goes_on_from_any_cursor_it_was_given(log: Log, orders: str):
    """A read from the cursors of a batch continues after it without a gap or a duplicate."""
    fill(log, orders, 300)
    seen = list(islice(log.read(orders, batch_size=20), 5))
    cursors = {"0": "BEGIN", "1": "BEGIN", "2": "BEGIN"} | {b.partition: b.offset for b in seen}
    rest = log.read(orders, cursors)
    assert sorted(ids(seen) + ids(rest)) == list(range(300))


def test_only_the_named_partitions_are_read(log: Log, orders: str):
    """A start that names some partitions reads only those."""
    fill(log, orders, 100)
    assert {batch.partition for batch in log.read(orders, {"1": "BEGIN"})} == {"1"}
    assert {batch.partition for batch in log.read(orders, [CursorText("2", "BEGIN")])} == {"2"}
    assert list(log.read(orders, {})) == []


def test_a_cursor_is_exclusive(log: Log, single: str):
    """Reading starts after the cursor, in every format of the cursor."""
    for text in (offset(6), "6"):
        assert ids(log.read(single, {"0": text})) == [7, 8, 9]
    assert ids(log.read(single, {"0": "001-0001--1"})) == list(range(10))
    assert ids(log.read(single, {"0": "begin"})) == list(range(10))
    assert ids(log.read(single, {"0": offset(9)})) == []


@pytest.mark.parametrize("limit", [0, 1, 7, 10, 11])
def test_a_limit_is_exact(log: Log, single: str, limit: int):
    """A read returns at most `limit` records over all batches."""
    assert ids(log.read(single, limit=limit, batch_size=3)) == list(range(min(limit, 10)))


def test_the_end_is_where_it_was_when_the_read_began(log: Log, single: str):
    """A read ends even if events are published after it began, and may leave them out."""
    batches = log.read(single, batch_size=4)
    fill(log, single, 1000, start=10)
    found = ids(batches)
    assert found[:10] == list(range(10))
    assert len(found) <= 14


def test_a_read_ends_while_others_keep_publishing(log: Log, orders: str):
    """A read during publishing returns every earlier event once and ends."""
    fill(log, orders, 300)
    stop = threading.Event()

    def publish_on() -> None:
        number = 300
        while not stop.is_set():
            fill(log, orders, 20, start=number)
            number += 20

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        found = ids(log.read(orders, batch_size=10))
    finally:
        stop.set()
        publisher.join(30)
    assert set(range(300)) <= set(found)
    assert len(found) == len(set(found))


def test_following_waits_for_more(log: Log, single: str):
    """A follower gets the existing events, then the new ones, and can be closed."""
    batches = log.read(single, follow=True)
    assert ids([next(batches)]) == list(range(10))
    fill(log, single, 5, start=10)
    later: list[int] = []
    while len(later) < 5:
        later += ids([next(batches)])
    assert later == [10, 11, 12, 13, 14]
    batches.close()


def test_following_from_the_end_sees_only_what_is_new(log: Log, single: str):
    """The end is fixed at the time of the call, not at the first `next`."""
    batches = log.read(single, "END", follow=True)
    fill(log, single, 3, start=10)
    assert ids([next(batches)])[0] == 10
    batches.close()


def test_following_with_a_limit_ends(log: Log, single: str):
    """A follower ends as soon as it reaches its limit."""
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(ids(log.read(single, follow=True, limit=12))))
    reader.start()
    until(lambda: log.partitions(single))
    fill(log, single, 5, start=10)
    reader.join(20)
    assert not reader.is_alive()
    assert found == list(range(12))


@pytest.mark.parametrize("begun", [True, False])
def test_a_reader_never_goes_on_in_another_event_type(log: Log, single: str, begun: bool):
    """A reader of a deleted event type is UNAVAILABLE, even if a new one has the same name and offsets."""
    # The limit ends a reader that wrongly continues in the new event type.
    batches = log.read(single, follow=True, batch_size=4, limit=20)
    if begun:
        next(batches)
    log.delete(single)
    log.create(EventType(single))
    fill(log, single, 20, start=100)
    with pytest.raises(InvalidCursor) as caught:
        ids(batches)
    assert caught.value.reason == "UNAVAILABLE"


@pytest.mark.parametrize("old", [offset(4), "001-0001--1", "001-0002--1", "4", "-1"])
def test_a_cursor_of_a_deleted_event_type_is_unavailable(log: Log, single: str, old: str):
    """All verbs refuse cursors of a deleted event type after a new one of the same name was created."""
    log.admin.switch(single, "default")
    fill(log, single, 1, start=10)
    assert ids(log.read(single, {"0": old}))[-1] == 10
    log.delete(single)
    log.create(EventType(single))
    fill(log, single, 20, start=100)
    cursor = CursorText("0", old)
    for act in (
        lambda: ids(log.read(single, {"0": old})),
        lambda: ids(log.read(single, {"0": old}, follow=True, limit=1)),
        lambda: log.lag(single, [cursor]),
        lambda: log.partitions(single, [cursor]),
        lambda: log.shift(single, [ShiftedCursor("0", old, 1)]),
        lambda: log.subscriptions.create(
            Subscription(
                *("app", (single,)),
                read_from="cursors",
                initial_cursors=(SubscriptionCursor(single, "0", old),),
            )
        ),
    ):
        with pytest.raises(InvalidCursor) as caught:
            act()
        assert caught.value.reason == "UNAVAILABLE"
    newest = log.partitions(single)[0].newest_available_offset
    assert newest == "001-0003-000000000000000019"
    with pytest.raises(InvalidCursor) as caught:
        log.distances(single, [DistanceQuery(cursor, CursorText("0", newest))])
    assert caught.value.reason == "TIMELINE_NOT_FOUND"
    assert ids(log.read(single, {"0": "001-0003--1"})) == ids(log.read(single)) == [*range(100, 120)]


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ({"0": offset(10)}, "UNAVAILABLE"),
        ({"0": "001-0002-000000000000000000"}, "UNAVAILABLE"),
        ({"7": "BEGIN"}, "PARTITION_NOT_FOUND"),
        ({"zero": "BEGIN"}, "PARTITION_NOT_FOUND"),
        ({"0": "yesterday"}, "INVALID_FORMAT"),
        ([CursorText(None, "BEGIN")], "NULL_PARTITION"),
        ([CursorText("0", None)], "NULL_OFFSET"),
        ("yesterday", "INVALID_FORMAT"),
    ],
)
def test_a_bad_start_is_refused_at_once(log: Log, single: str, start, reason: str):
    """The call itself raises the error with its reason, before the first `next`."""
    with pytest.raises(InvalidCursor) as caught:
        log.read(single, start)
    assert caught.value.reason == reason


def test_an_unavailable_cursor_names_the_range(log: Log, single: str):
    """The error has the oldest and the newest available offset."""
    with pytest.raises(InvalidCursor) as caught:
        log.read(single, {"0": offset(99)})
    assert caught.value.info["oldest_available_offset"] == offset(0)
    assert caught.value.info["newest_available_offset"] == offset(9)


def test_partitions_tell_oldest_newest_and_what_follows_a_cursor(log: Log, orders: str):
    """Every partition is listed; those with a cursor have the number of events after it."""
    assert [info.newest_available_offset for info in log.partitions(orders)] == ["001-0001--1"] * 3
    fill(log, orders, 100)
    found = log.partitions(orders, [CursorText("1", "BEGIN")])
    assert [info.partition for info in found] == ["0", "1", "2"]
    assert [info.unconsumed_events is None for info in found] == [True, False, True]
    assert offset(found[1].unconsumed_events - 1) == found[1].newest_available_offset
    assert {info.oldest_available_offset for info in found} == {offset(0)}


def test_lag_answers_for_the_asked_partitions(log: Log, single: str):
    """`lag` returns the number of events after each given cursor."""
    (info,) = log.lag(single, [CursorText("0", offset(3))])
    assert info.unconsumed_events == 6
    assert log.lag(single, []) == []


def test_distance_and_shift_agree(log: Log, single: str):
    """A shift by the distance of two cursors leads from one to the other, in both directions."""
    early, late = CursorText("0", offset(2)), CursorText("0", offset(8))
    there, back = log.distances(single, [DistanceQuery(early, late), DistanceQuery(late, early)])
    assert (there.distance, back.distance) == (6, -6)
    assert there.initial_cursor == early
    moved = log.shift(single, [ShiftedCursor("0", offset(2), 6), ShiftedCursor("0", offset(8), -6)])
    assert moved == [late, early]


def test_arithmetic_has_its_own_reasons(log: Log, orders: str):
    """Errors of cursor arithmetic have their own reasons."""
    fill(log, orders, 50)
    one, other = CursorText("0", offset(0)), CursorText("1", offset(0))
    for query, reason in (
        (DistanceQuery(one, other), "CURSORS_WITH_DIFFERENT_PARTITION"),
        (DistanceQuery(one, CursorText("0", "x")), "CURSOR_FORMAT_EXCEPTION"),
        (DistanceQuery(one, CursorText("0", "001-0009-000000000000000000")), "TIMELINE_NOT_FOUND"),
    ):
        with pytest.raises(InvalidCursor) as caught:
            log.distances(orders, [query])
        assert caught.value.reason == reason
    with pytest.raises(InvalidCursor):
        log.shift(orders, [ShiftedCursor("0", offset(0), -5)])
