"""The contract of every storage, as stated in `strandline/log/storage/port.py`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from storage_place import DAY_MS, HOUR_MS, NOW_MS, append, read, records, values

from services import until
from strandline.errors import NotFound, Unavailable
from strandline.log.records import READ, NewRecords
from strandline.log.storage import FAILED, Bounds

LIMITS = {"max_records": 1000, "max_bytes": 1 << 20}


# -- topics


def test_a_new_topic_is_empty(storage, topic):
    """Every partition of a new topic has first offset 0 and last offset −1."""
    assert storage.bounds(topic) == [Bounds(0, -1)] * 3
    assert [values(storage, topic, partition) for partition in range(3)] == [[], [], []]


def test_creating_a_topic_again_is_harmless(storage, topic):
    """`create_topic` is idempotent and keeps the records."""
    append(storage, topic, {0: [b"a"]})
    storage.create_topic(topic, 3, DAY_MS)
    assert values(storage, topic, 0) == [b"a"]


def test_a_topic_can_be_created_by_many_at_once(place, storage):
    """Concurrent creates of one topic by threads and processes all succeed."""
    workers = [place.start("create", "shared", 2) for _ in range(2)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    with ThreadPoolExecutor(8) as pool:
        for made in [pool.submit(storage.create_topic, "shared", 2, DAY_MS) for _ in range(8)]:
            made.result()
    assert [worker.communicate(timeout=30)[0] for worker in workers] == ["created\n"] * 2
    assert append(storage, "shared", {0: [b"a"], 1: [b"b"]})[1].complete


def test_deleting_removes_the_records(storage, topic):
    """A deleted topic is NotFound."""
    append(storage, topic, {0: [b"a"]})
    storage.delete_topic(topic)
    with pytest.raises(NotFound):
        storage.bounds(topic)


def test_deleting_a_missing_topic_is_fine(storage, topic):
    """`delete_topic` is idempotent."""
    storage.delete_topic("never-made")
    storage.delete_topic(topic)
    storage.delete_topic(topic)


def test_deleting_while_it_is_used_hurts_nobody(storage, topic):
    """A running append succeeds or fails cleanly, and the topic is deleted."""
    started = [storage.append(topic, {0: records(b"x")}) for _ in range(50)]
    storage.delete_topic(topic)
    for future in started:
        assert isinstance(future.exception(30), (type(None), NotFound, Unavailable))
    with pytest.raises(NotFound):
        append(storage, topic, {0: [b"late"]})


def is_gone(storage, topic) -> bool:
    storage.tidy()
    try:
        storage.bounds(topic)
    except NotFound:
        return True
    return False


def test_tidying_lets_go_of_what_others_deleted(place, storage, topic):
    """After `tidy` a topic that another process deleted is NotFound; other topics are unchanged.

    A topic that is in use at that moment, also by the storage itself, is released by a later call.
    """
    storage.create_topic("kept", 1, DAY_MS)
    for name in (topic, "kept"):
        append(storage, name, {0: [b"a"]})
    place.open().delete_topic(topic)
    until(lambda: is_gone(storage, topic), "the release of the topic")
    assert values(storage, "kept", 0) == [b"a"]


def test_topics_do_not_touch_each_other(storage, topic):
    """Records and deletions affect one topic only."""
    storage.create_topic("other", 1, DAY_MS)
    append(storage, topic, {0: [b"a"]})
    append(storage, "other", {0: [b"b"]})
    storage.delete_topic("other")
    assert values(storage, topic, 0) == [b"a"]


@pytest.mark.parametrize(
    "act",
    [
        lambda storage: storage.append("none", {0: records(b"a")}).result(30),
        lambda storage: storage.read("none", 0, 0, **LIMITS),
        lambda storage: storage.bounds("none"),
        lambda storage: storage.find("none", 0, 0),
        lambda storage: storage.end("none", 0),
        lambda storage: storage.purge("none", 1, {0: 1}),
        lambda storage: storage.grow("none", 2),
    ],
)
def test_a_missing_topic_is_not_found(storage, act):
    """No call creates a missing topic."""
    for _ in range(2):
        with pytest.raises(NotFound):
            act(storage)


# -- appending


def test_placed_records_are_found_at_their_offsets(storage, topic):
    """The result of each partition has the offset of each record, in order."""
    placed = append(storage, topic, {0: [b"a", b"b", b"c"], 2: [b"d"]})
    assert set(placed) == {0, 2}
    for partition, expected in ((0, [b"a", b"b", b"c"]), (2, [b"d"])):
        assert placed[partition].complete
        assert read(storage, topic, partition) == list(zip(placed[partition].offsets, expected, strict=True))
    assert read(storage, topic, 1) == []


def test_a_record_keeps_all_its_parts(storage, topic):
    """Timestamp, key, value and headers are returned unchanged, also if empty or missing."""
    new = NewRecords(
        NOW_MS,
        [b"", b"\x00\xff", b"v" * 100_000],
        [b"k", None, b""],
        [[("h", b"1"), ("h", b"\xff")], None, []],
    )
    storage.append(topic, {1: new}).result(30)
    storage.append(topic, {1: records(b"bare", at=NOW_MS + 5)}).result(30)
    batch = storage.read(topic, 1, 0, **LIMITS)
    assert batch.schema == READ
    assert batch["timestamp"].to_pylist() == [NOW_MS] * 3 + [NOW_MS + 5]
    assert batch["key"].to_pylist() == [b"k", None, b"", None]
    assert batch["value"].to_pylist() == [*new.values, b"bare"]
    headers = batch["headers"].to_pylist()
    assert headers[0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": b"\xff"}]
    assert not any(headers[1:])


@pytest.mark.parametrize("number", [1, 5, 40, 700])
def test_a_value_may_be_missing(place, storage, topic, number):
    """It is not the same as an empty value, in appends of any size and whether or not all values are missing."""
    mixed = [(None, b"", b"x", None)[at % 4] for at in range(number)]
    for new in (NewRecords(NOW_MS, mixed), NewRecords(NOW_MS, [None] * number, [b"k"] * number)):
        assert storage.append(topic, {0: new}).result(30)[0].complete
    for opened in (storage, place.open()):
        batch = opened.read(topic, 0, 0, max_records=10_000, max_bytes=1 << 20)
        assert batch["value"].to_pylist() == [*mixed, *[None] * number]
    assert opened.read(topic, 0, 0, max_records=10_000, max_bytes=1).num_rows > 0


def test_appends_of_one_thread_keep_their_order(storage, topic):
    """Appends that do not wait for each other stay in order in every partition."""
    started = [
        storage.append(topic, {0: records(b"%d" % number), number % 2 + 1: records(b"%d" % number)})
        for number in range(500)
    ]
    for future in started:
        assert all(part.complete for part in future.result(30).values())
    assert values(storage, topic, 0) == [b"%d" % number for number in range(500)]
    assert values(storage, topic, 1) == [b"%d" % number for number in range(0, 500, 2)]
    assert values(storage, topic, 2) == [b"%d" % number for number in range(1, 500, 2)]


def test_offsets_grow(storage, topic):
    """A later append never gets a smaller offset."""
    offsets = [o for n in range(20) for o in append(storage, topic, {0: [b"x"] * (n % 3 + 1)})[0].offsets]
    assert offsets == sorted(set(offsets))


def test_sixty_four_appenders_at_once_lose_nothing(storage, topic):
    """Every record is stored once, at its returned offset, and the records of each thread are in order."""

    def publish(who: int) -> list[tuple[int, int, bytes]]:
        answers = []
        for number in range(10):
            batches = {p: records(b"%d/%d/%d" % (p, who, number)) for p in range(3)}
            for partition, part in storage.append(topic, batches).result(60).items():
                answers.append((partition, part.offsets[0], batches[partition].values[0]))
        return answers

    with ThreadPoolExecutor(64) as pool:
        answers = [answer for found in pool.map(publish, range(64)) for answer in found]
    assert len(answers) == 64 * 10 * 3
    for partition in range(3):
        acknowledged = sorted((offset, value) for p, offset, value in answers if p == partition)
        assert read(storage, topic, partition) == acknowledged
    for who in range(64):
        mine = [value for value in values(storage, topic, 0) if value.startswith(b"0/%d/" % who)]
        assert mine == [b"0/%d/%d" % (who, number) for number in range(10)]


def test_records_for_an_unknown_partition_fail_alone(storage, topic):
    """Other partitions of the same append and of concurrent appends are stored."""
    futures = [storage.append(topic, {0: records(b"%d" % n), 3: records(b"x", b"y")}) for n in range(5)]
    for number, future in enumerate(futures):
        placed = future.result(30)
        assert placed[0].complete, number
        assert list(placed[3].offsets) == [FAILED, FAILED]
        assert isinstance(placed[3].error, NotFound)
        assert not placed[3].complete
    assert values(storage, topic, 0) == [b"%d" % n for n in range(5)]


def test_appending_nothing_is_harmless(storage, topic):
    """An append without records succeeds and stores nothing."""
    assert storage.append(topic, {}).result(30) == {}
    assert list(storage.append(topic, {0: records()}).result(30)[0].offsets) == []
    append(storage, topic, {0: [b"a"]})
    assert storage.append(topic, {0: records(), 1: records(b"b")}).result(30)[0].complete
    assert values(storage, topic, 0) == [b"a"]
    assert values(storage, topic, 1) == [b"b"]


def test_a_started_append_cannot_be_cancelled(storage, topic):
    """Cancelling the future stops neither its append nor later ones."""
    futures = [storage.append(topic, {0: records(b"%d" % number)}) for number in range(20)]
    for future in futures:
        future.cancel()
    append(storage, topic, {0: [b"last"]})
    assert values(storage, topic, 0) == [b"%d" % number for number in range(20)] + [b"last"]


def test_records_survive_reopening(place, topic, storage):
    """Offsets continue after a reopen."""
    first = append(storage, topic, {0: [b"a"]})[0].offsets[0]
    storage.close()
    again = place.open()
    assert append(again, topic, {0: [b"b"]})[0].offsets[0] > first
    assert values(again, topic, 0) == [b"a", b"b"]


# -- reading


@pytest.fixture
def five(storage, topic) -> list[int]:
    """Offsets of five records in partition 0, stored in two batches."""
    first = append(storage, topic, {0: [b"r0", b"r1", b"r2"]}, at=NOW_MS)
    second = append(storage, topic, {0: [b"r3", b"r4"]}, at=NOW_MS + 10)
    return [*first[0].offsets, *second[0].offsets]


@pytest.mark.parametrize("most", range(1, 7))
@pytest.mark.parametrize("start", range(5))
def test_a_read_starts_anywhere_and_keeps_its_number(storage, topic, five, start, most):
    """A read may start inside a batch and returns at most `max_records`."""
    batch = storage.read(topic, 0, five[start], max_records=most, max_bytes=1 << 20)
    assert 1 <= batch.num_rows <= most
    assert batch["offset"].to_pylist() == five[start : start + batch.num_rows]
    assert batch["value"].to_pylist() == [b"r%d" % n for n in range(start, start + batch.num_rows)]


def test_a_read_gives_what_is_there_within_the_limits(storage, topic, five):
    """A read returns all records if the limits allow it."""
    assert storage.read(topic, 0, five[0], **LIMITS).num_rows == 5


def test_a_read_keeps_its_bytes_but_gives_at_least_one_record(storage, topic):
    """The first record is returned even if it exceeds `max_bytes`; after it the limit applies."""
    append(storage, topic, {0: [b"x" * 5000] * 10})
    append(storage, topic, {0: [b"y" * 5000] * 10})
    assert storage.read(topic, 0, 0, max_records=100, max_bytes=1).num_rows == 1
    for limit in (4_999, 12_000, 26_000, 60_000):
        batch = storage.read(topic, 0, 0, max_records=100, max_bytes=limit)
        assert 1 <= batch.num_rows <= max(1, limit // 5000)
    assert len(values(storage, topic, 0)) == 20


def test_a_read_at_the_end_is_empty(storage, topic, five):
    """An empty read has the columns of a full one."""
    for offset in (five[-1] + 1, five[-1] + 100):
        batch = storage.read(topic, 0, offset, **LIMITS)
        assert (batch.num_rows, batch.schema) == (0, READ)


def test_a_read_of_an_unknown_partition_is_refused(storage, topic):
    """An unknown partition is NotFound, not an empty partition."""
    with pytest.raises(NotFound):
        storage.read(topic, 3, 0, **LIMITS)


def test_bounds_name_the_first_and_last_offset(storage, topic, five):
    """`bounds` returns the first and last offset of every partition."""
    found = storage.bounds(topic)
    assert found[0] == Bounds(five[0], five[-1])
    assert found[1:] == [Bounds(0, -1)] * 2


def test_the_end_is_the_next_offset(storage, topic, five):
    """Of one partition; a partition without records ends at 0."""
    assert storage.end(topic, 0) == five[-1] + 1
    assert storage.end(topic, 1) == 0
    with pytest.raises(NotFound, match="no partition 3"):
        storage.end(topic, 3)


def test_finding_by_time(storage, topic, five):
    """`find` returns the first record at or after a time, else the offset after the last."""
    for moment, expected in (
        (0, five[0]),
        (NOW_MS, five[0]),
        (NOW_MS + 1, five[3]),
        (NOW_MS + 10, five[3]),
        (NOW_MS + 11, five[4] + 1),
    ):
        assert storage.find(topic, 0, moment) == expected
    assert storage.find(topic, 1, NOW_MS) == 0


def test_finding_by_time_in_an_unknown_partition_is_refused(storage, topic):
    """`find` in an unknown partition is NotFound, like `read`."""
    with pytest.raises(NotFound):
        storage.find(topic, 3, 0)


# -- watching


def test_a_watcher_hears_of_appends_of_this_process(storage, topic):
    """The callback runs after an append; stopping the watch is idempotent."""
    heard = threading.Event()
    stop = storage.watch(topic, heard.set)
    heard.wait(1)  # a call without an append is allowed
    heard.clear()
    append(storage, topic, {0: [b"a"]})
    assert heard.wait(20)
    stop()
    stop()


def test_a_watcher_hears_of_appends_of_another_process(place, storage, topic):
    """The callback runs for every append, and watches share their threads."""
    calls: list[int] = []
    storage.watch(topic, lambda: calls.append(1))
    threads = threading.active_count()
    for _ in range(20):
        storage.watch(topic, lambda: None)
    assert threading.active_count() == threads
    with place.start("append", topic, 0, "other", 0) as process:
        for _ in range(5):
            before = len(calls)
            assert process.stdout.readline()
            until(lambda before=before: len(calls) > before)
        process.kill()


def test_a_watcher_that_came_after_the_append_is_called(place, storage, topic):
    """An append just before `watch` is not missed."""
    place.run("append", topic, 0, "other", 1)
    heard = threading.Event()
    storage.watch(topic, heard.set)
    assert heard.wait(20)


def test_stopping_one_watcher_leaves_the_others(storage, topic):
    """Stopping one watch, even twice, keeps the other watches of the same callback."""
    calls: list[int] = []

    def callback() -> None:
        calls.append(1)

    stop = storage.watch(topic, callback)
    storage.watch(topic, callback)
    stop()
    stop()
    until(lambda: calls)
    before = len(calls)
    append(storage, topic, {0: [b"a"]})
    until(lambda: len(calls) > before)


def test_a_callback_that_fails_does_not_silence_the_others(storage, topic, caplog):
    """The error of a callback is logged, and the other callbacks run."""

    def broken() -> None:
        raise ValueError("broken")

    heard = threading.Event()
    storage.watch(topic, broken)
    storage.watch(topic, heard.set)
    append(storage, topic, {0: [b"a"]})
    assert heard.wait(20)
    heard.clear()
    append(storage, topic, {0: [b"a"]})
    assert heard.wait(20)
    assert "callback failed" in caplog.text


# -- upkeep


def test_purging_leaves_no_hole_and_takes_nothing_too_young(storage, topic):
    """A purge leaves the newest records without a gap; an engine that expires records itself deletes none."""
    for step in range(4):
        append(storage, topic, {0: [b"%d" % step] * 2}, at=NOW_MS + step)
    before = read(storage, topic, 0)
    removed = storage.purge(topic, NOW_MS + 2)
    left = read(storage, topic, 0)
    assert left == before[removed:]
    assert removed <= 4
    assert storage.bounds(topic)[0].first <= left[0][0]
    assert read(storage, topic, 0, 0) == left


def test_offsets_go_on_after_everything_was_purged(storage, topic):
    """A cursor never points to a different record later."""
    last = append(storage, topic, {0: [b"old"] * 3})[0].offsets[-1]
    storage.purge(topic, NOW_MS + 1)
    bounds = storage.bounds(topic)[0]
    assert bounds.last == last
    assert bounds.first <= last + 1
    assert append(storage, topic, {0: [b"new"]})[0].offsets[0] > last
    assert values(storage, topic, 0)[-1:] == [b"new"]


def test_a_changed_retention_takes_nothing_at_once(storage, topic):
    """A shorter retention time deletes no record at once."""
    append(storage, topic, {0: [b"a"]})
    for retention_ms in (2 * DAY_MS, DAY_MS, DAY_MS):
        storage.retain(topic, retention_ms)
    assert values(storage, topic, 0) == [b"a"]


def test_reads_before_the_first_offset_start_at_the_first(storage, topic):
    """A reader before the first offset gets the oldest record."""
    append(storage, topic, {0: [b"old"]}, at=NOW_MS)
    append(storage, topic, {0: [b"new"]}, at=NOW_MS + 5)
    storage.purge(topic, NOW_MS + 1)
    found = storage.read(topic, 0, 0, **LIMITS)
    assert found["offset"][0].as_py() == storage.bounds(topic)[0].first
    assert found["value"].to_pylist()[-1] == b"new"


def test_purging_up_to_an_offset_takes_only_what_is_old(storage, topic):
    """Of the given partitions alone."""
    for partition in (0, 1):
        for at in (NOW_MS, NOW_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS):
            storage.append(topic, {partition: records(b"x" * 20_000, at=at)}).result(30)
    assert storage.purge(topic, NOW_MS + DAY_MS, {}) == 0
    assert storage.purge(topic, NOW_MS + DAY_MS, {0: 0, 9: 5}) == 1
    assert storage.purge(topic, NOW_MS + HOUR_MS, {0: 3}) == 1
    assert storage.bounds(topic)[:2] == [Bounds(2, 3), Bounds(0, 3)]
    assert storage.purge(topic, NOW_MS + DAY_MS, {0: 100, 1: 1}) == 4
    assert storage.bounds(topic)[:2] == [Bounds(4, 3), Bounds(2, 3)]
    assert append(storage, topic, {0: [b"y"]})[0].offsets[0] == 4


def test_growing_adds_empty_partitions(storage, topic):
    """`grow` keeps the records of the old partitions, is idempotent and never shrinks."""
    append(storage, topic, {0: [b"a"]})
    storage.grow(topic, 5)
    assert append(storage, topic, {4: [b"e"]})[4].complete
    for count in (5, 2):
        storage.grow(topic, count)
    assert len(storage.bounds(topic)) == 5
    assert values(storage, topic, 0) == [b"a"]
    assert values(storage, topic, 4) == [b"e"]


# -- closing


def test_closing_finishes_what_was_started(place, storage, topic):
    """Close completes every append, and every placed record is stored."""
    started = [storage.append(topic, {0: records(b"%d" % number)}) for number in range(300)]
    storage.close()
    assert all(future.done() for future in started)
    placed = [future for future in started if future.exception() is None]
    assert len(values(place.open(), topic, 0)) == len(placed)


def test_a_closed_storage_is_unavailable(storage, topic):
    """Every call on a closed storage is Unavailable; close is idempotent."""
    storage.close()
    storage.close()
    for act in (
        lambda: storage.create_topic("new", 1, DAY_MS),
        lambda: storage.delete_topic(topic),
        lambda: append(storage, topic, {0: [b"a"]}),
        lambda: storage.read(topic, 0, 0, **LIMITS),
        lambda: storage.bounds(topic),
        lambda: storage.find(topic, 0, 0),
        lambda: storage.watch(topic, lambda: None),
        lambda: storage.purge(topic, 0),
        lambda: storage.retain(topic, DAY_MS),
        lambda: storage.grow(topic, 5),
    ):
        with pytest.raises(Unavailable):
            act()


def test_closing_while_others_append_loses_nothing(place, storage, topic):
    """An append during close is stored or Unavailable; it neither hangs nor fails otherwise."""
    stored: list[bytes] = []

    def publish(who: int) -> None:
        for number in range(10_000):
            future = storage.append(topic, {0: records(b"%d/%d" % (who, number))})
            if isinstance(future.exception(30), Unavailable):
                return
            future.result()
            stored.append(b"%d/%d" % (who, number))

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(publish, who) for who in range(8)]
        until(lambda: len(stored) > 50)
        storage.close()
        for worker in workers:
            worker.result(60)
    assert sorted(values(place.open(), topic, 0)) == sorted(stored)


def test_the_bounds_of_several_topics_are_read_in_one_go(storage, topic):
    """The bounds are in the order of the given topics; a missing topic is NotFound."""
    other = f"{topic}.other"
    storage.create_topic(other, 1, 3_600_000)
    storage.append(other, {0: records(b"a", b"b")}).result(30)
    storage.append(topic, {2: records(b"c")}).result(30)
    both = [[Bounds(0, 1)], [Bounds(0, -1), Bounds(0, -1), Bounds(0, 0)]]
    assert storage.bounds_of([other, topic]) == both
    assert storage.bounds_of([topic, other]) == both[::-1]
    assert storage.bounds_of([]) == []
    with pytest.raises(NotFound):
        storage.bounds_of([topic, f"{topic}.missing"])


def test_a_storage_says_whether_it_can_be_used(storage):
    """`check_ready` returns while the engine answers, and raises Unavailable after `close`."""
    storage.check_ready()
    storage.close()
    with pytest.raises(Unavailable):
        storage.check_ready()
