"""Small appends become Arrow batches in the background. Nobody who reads or appends can tell."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from storage_place import HOUR_MS, NOW_MS, Place, append, compact, read, store_as, values

from services import until
from strandline.engine.sqlite import SqliteConnection
from strandline.log.records import NewRecords
from strandline.log.storage import Bounds, compaction, topic_file

LIMITS = {"max_records": 1000, "max_bytes": 1 << 20}
FAILPOINTS = ["encoded", "deleted", "replaced", "committed"]


@pytest.fixture
def directory(tmp_path) -> Path:
    return tmp_path / "topics"


@pytest.fixture
def place(directory):
    made = Place(f"sqlite:{directory}")
    yield made
    made.close()


@pytest.fixture
def uncompacted(monkeypatch) -> None:
    """Nothing is compacted unless the test does it."""
    store_as("small batches", monkeypatch)


def batches(directory: Path, topic: str) -> tuple[list[int], int]:
    """The number of records of each Arrow batch, and the number of small batches."""
    with closing(SqliteConnection(directory / f"{topic}.db")) as file:
        arrow = file.execute("SELECT records FROM batches ORDER BY partition, first_offset")
        small = file.execute("SELECT count(*) FROM small_batches")
    return [number for (number,) in arrow], small[0][0]


def one_by_one(storage, topic: str, count: int, start: int = 0, *, partition: int = 0) -> list[bytes]:
    made = [b"%d" % number for number in range(start, start + count)]
    for value in made:
        append(storage, topic, {partition: [value]})
    return made


# -- when


def test_many_small_appends_are_compacted_at_once(monkeypatch, directory, storage, topic):
    """After a number of them, while more are appended."""
    monkeypatch.setattr(compaction, "_IDLE_SECONDS", 1_000_000)
    monkeypatch.setattr(topic_file, "_MANY_SMALL", 20)
    monkeypatch.setattr(topic_file, "_FEW_SMALL", 10)
    made = one_by_one(storage, topic, 100)
    until(lambda: batches(directory, topic)[1] < 40, "a compaction")
    assert values(storage, topic, 0) == made


def test_the_rest_is_compacted_when_the_topic_is_idle(monkeypatch, directory, storage, topic):
    """However little it is, in every partition, and also what is appended later."""
    monkeypatch.setattr(compaction, "_IDLE_SECONDS", 0.05)
    made = one_by_one(storage, topic, 5)
    append(storage, topic, {1: [b"a"], 2: [b"b", b"c"]})
    until(lambda: batches(directory, topic) == ([5, 1, 2], 0), "three Arrow batches")
    made += one_by_one(storage, topic, 3, start=5)
    until(lambda: batches(directory, topic) == ([8, 1, 2], 0), "larger Arrow batches")
    assert values(storage, topic, 0) == made
    assert values(storage, topic, 2) == [b"b", b"c"]


def test_upkeep_finds_what_a_killed_process_left(monkeypatch, place, directory, storage, topic):
    """The next purge of any process has it compacted."""
    with place.start("append", topic, 0, "left", 0) as process:
        for _ in range(10):
            assert process.stdout.readline()
        process.kill()
    assert batches(directory, topic)[1] >= 10
    monkeypatch.setattr(compaction, "_IDLE_SECONDS", 0.05)
    storage.purge(topic, 0)
    until(lambda: batches(directory, topic)[1] == 0, "a compaction")


def test_large_appends_are_not_compacted(directory, storage, topic):
    """They are Arrow batches at once."""
    append(storage, topic, {0: [b"x"] * 100, 1: [b"y" * 100_000]})
    assert batches(directory, topic) == ([100, 1], 0)


@pytest.mark.usefixtures("uncompacted")
def test_a_closed_storage_leaves_small_batches_to_the_next(place, directory, storage, topic):
    """They are part of the topic like any other batch."""
    made = one_by_one(storage, topic, 10)
    storage.close()
    assert batches(directory, topic) == ([], 10)
    again = place.open()
    assert values(again, topic, 0) == made
    assert again.bounds(topic)[0] == Bounds(0, 9)
    assert append(again, topic, {0: [b"next"]})[0].offsets[0] == 10


# -- what


@pytest.mark.usefixtures("uncompacted")
def test_full_batches_are_not_written_again(directory, storage, topic):
    """Later small batches are merged with the last batch only while it has few records."""
    for number in range(90):
        append(storage, topic, {0: [b"%d" % number] * 10})
    compact(storage, topic)
    assert batches(directory, topic) == ([900], 0)
    for _ in range(3):
        append(storage, topic, {0: [b"x"] * 10})
        compact(storage, topic)
    assert batches(directory, topic) == ([900, 30], 0)


@pytest.mark.usefixtures("uncompacted")
def test_records_of_different_hours_stay_in_different_batches(directory, storage, topic):
    """Purging deletes whole batches, so a batch must not keep its oldest record for much longer."""
    for step in range(6):
        append(storage, topic, {0: [b"%d" % step]}, at=NOW_MS + step // 2 * HOUR_MS)
    compact(storage, topic)
    assert batches(directory, topic) == ([2, 2, 2], 0)
    assert storage.purge(topic, NOW_MS + HOUR_MS) == 2
    assert storage.find(topic, 0, NOW_MS + HOUR_MS + 1) == 4


@pytest.mark.usefixtures("uncompacted")
def test_compaction_keeps_every_part_of_a_record(storage, topic):
    """Timestamps, keys, values and headers, between and inside small and large appends."""
    appends = [
        NewRecords(NOW_MS, [b"plain"]),
        NewRecords(NOW_MS + 1, [b"", b"\xff"], [b"k", None]),
        NewRecords(NOW_MS + 2, [b"h"], None, [[("name", b"1"), ("name", b"")]]),
        NewRecords(NOW_MS + 3, [b"many"] * 100, [b"key"] * 100),
        NewRecords(NOW_MS + 4, [b"both", b"none"], [b"", None], [None, []]),
        NewRecords(NOW_MS + 5, [b"last"]),
    ]
    for new in appends:
        storage.append(topic, {1: new}).result(30)
    before = storage.read(topic, 1, 0, **LIMITS)
    compact(storage, topic)
    assert storage.read(topic, 1, 0, **LIMITS) == before
    assert before["timestamp"].to_pylist() == [new.timestamp_ms for new in appends for _ in new.values]
    assert before["key"].to_pylist() == [key for new in appends for key in new.keys or [None] * len(new)]
    assert [storage.find(topic, 1, NOW_MS + step) for step in range(7)] == [0, 1, 3, 4, 104, 106, 107]


@pytest.mark.usefixtures("uncompacted")
def test_a_compaction_of_much_lets_appends_in_between(monkeypatch, directory, storage, topic):
    """It has many short transactions."""
    monkeypatch.setattr(compaction, "_TURN_RECORDS", 10)
    monkeypatch.setattr(compaction, "_RUN_RECORDS", 4)
    made = one_by_one(storage, topic, 40)
    turns = 0
    with storage._using(topic) as opened:
        for _ in opened.file.compact(everything=True):
            turns += 1
            append(storage, topic, {1: [b"between"]})
    assert turns >= 3
    assert values(storage, topic, 0) == made
    assert values(storage, topic, 1) == [b"between"] * turns
    assert max(batches(directory, topic)[0]) == 4


# -- beside others


@pytest.mark.usefixtures("uncompacted")
def test_a_reader_in_the_middle_of_a_partition_sees_every_record_once(storage, topic):
    """Wherever it is when the batches before, at and after its position are merged."""
    made = one_by_one(storage, topic, 30)
    found: list[bytes] = []
    while rows := storage.read(topic, 0, len(found), max_records=7, max_bytes=1 << 20)["value"].to_pylist():
        found += rows
        compact(storage, topic)
        if len(made) < 60:
            made += one_by_one(storage, topic, 10, start=len(made))
    assert found == made


@pytest.mark.usefixtures("uncompacted")
@pytest.mark.parametrize("other", ["compacts", "purges", "appends and compacts"])
def test_a_run_that_another_process_has_changed_is_left_alone(monkeypatch, place, storage, topic, other):
    """Between the reading and the replacing of a run."""
    made = one_by_one(storage, topic, 10)
    elsewhere, replace = place.open(), compaction.Compaction._replace

    def disturbed(self, runs):
        monkeypatch.setattr(compaction.Compaction, "_replace", replace)
        if other == "purges":
            assert elsewhere.purge(topic, NOW_MS + HOUR_MS) == 10
            made.clear()
        elif other == "appends and compacts":
            made.extend(one_by_one(elsewhere, topic, 5, start=10))
        compact(elsewhere, topic)
        replace(self, runs)

    monkeypatch.setattr(compaction.Compaction, "_replace", disturbed)
    compact(storage, topic)
    assert values(storage, topic, 0) == made
    assert append(storage, topic, {0: [b"next"]})[0].offsets[0] == (15 if "appends" in other else 10)


@pytest.mark.usefixtures("uncompacted")
@pytest.mark.parametrize("step", FAILPOINTS)
def test_a_process_that_is_killed_while_it_compacts_loses_nothing(place, directory, storage, topic, step):
    """Every acknowledged record is there once, before and after the next compaction, and appends go on."""
    for partition in (0, 1):
        one_by_one(storage, topic, 20, partition=partition)
    with place.start("compact", topic, failpoint=f"compaction.{step}:kill") as process:
        lines = [line.split() for line in process.stdout]
    assert process.returncode == -signal.SIGKILL
    assert len(lines) == 20
    made = {p: {n: b"%d" % n for n in range(20)} for p in (0, 1)}
    for partition, offset, value in lines:
        made[int(partition)][int(offset)] = value.encode()
    assert batches(directory, topic)[1] == (0 if step == "committed" else 60)
    for _ in range(2):
        assert [dict(read(storage, topic, p)) for p in (0, 1)] == [made[0], made[1]]
        compact(storage, topic)
        assert batches(directory, topic) == ([30, 30], 0)
    assert append(storage, topic, {0: [b"next"]})[0].offsets[0] == 30


def test_processes_that_append_and_compact_one_file_disturb_no_reader(monkeypatch, place, storage, topic):
    """Every reader sees every record once and in order, while two other processes and this one compact."""
    monkeypatch.setattr(topic_file, "_MANY_SMALL", 8)
    monkeypatch.setattr(topic_file, "_FEW_SMALL", 2)
    stop = threading.Event()

    def follow(partition: int) -> list[tuple[int, bytes]]:
        """All records, in small steps."""
        found: list[tuple[int, bytes]] = []
        while True:
            ended = stop.is_set()
            batch = storage.read(topic, partition, len(found), max_records=5, max_bytes=1 << 20)
            found += zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
            if ended and not batch.num_rows:
                return found

    def read_again(partition: int) -> int:
        """Everything from the beginning, again and again: it only ever grows."""
        before: list[tuple[int, bytes]] = []
        while not stop.is_set():
            found = read(storage, topic, partition)
            assert found[: len(before)] == before
            before = found
        return len(before)

    with ThreadPoolExecutor(4) as pool:
        workers = [place.start("churn", topic, name, 300) for name in ("left", "right")]
        readers = [pool.submit(follow, p) for p in (0, 1)] + [pool.submit(read_again, p) for p in (0, 1)]
        mine = [(n % 2, append(storage, topic, {n % 2: [b"here-%d" % n]})[n % 2].offsets[0]) for n in range(300)]
        lines = [line.split() for worker in workers for line in worker.communicate(timeout=120)[0].splitlines()]
        stop.set()
        followed = [reader.result(60) for reader in readers[:2]]
        assert all(reader.result(60) >= 0 for reader in readers[2:])
    acknowledged = {(int(p), int(offset)): value.encode() for p, offset, value in lines}
    acknowledged.update({place: b"here-%d" % number for number, place in enumerate(mine)})
    assert len(acknowledged) == 900
    for partition in (0, 1):
        expected = sorted((offset, value) for (p, offset), value in acknowledged.items() if p == partition)
        assert followed[partition] == expected
        assert [offset for offset, _ in expected] == [*range(450)]
        compact(storage, topic)
        assert read(storage, topic, partition) == expected
