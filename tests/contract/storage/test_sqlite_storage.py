"""The contract of the SQLite storage alone: offsets without gaps, purges, files, crashes, full disks."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from storage_place import DAY_MS, HOUR_MS, NOW_MS, Place, append, compact, read, records, values

from services import DEADLINE_S, until
from strandline.engine import checkpoints, sql
from strandline.engine.checkpoints import Limits
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import NotFound, Unavailable
from strandline.log.records import NewRecords
from strandline.log.storage import Bounds, stored_batches, topic_file
from strandline.log.storage.sqlite import SqliteStorage

DISK_WORKER = Path(__file__).with_name("disk_worker.py")


@pytest.fixture
def directory(tmp_path) -> Path:
    return tmp_path / "topics"


@pytest.fixture
def place(directory):
    made = Place(f"sqlite:{directory}")
    yield made
    made.close()


# -- offsets


def test_two_processes_append_without_gaps(place, storage, topic):
    """Concurrent appends to one partition get the offsets 0, 1, 2 …, and no record is lost."""
    workers = [place.start("append", topic, 0, name, 100) for name in ("left", "right")]
    mine = [append(storage, topic, {0: [b"here-%d" % number]})[0].offsets[0] for number in range(100)]
    lines = [line for worker in workers for line in worker.communicate(timeout=60)[0].splitlines()]
    answered = {int(offset): value.encode() for offset, value in (line.split() for line in lines)}
    answered.update({offset: b"here-%d" % number for number, offset in enumerate(mine)})
    assert len(answered) == 300
    assert read(storage, topic, 0) == sorted(answered.items())
    assert sorted(answered) == list(range(300))
    for name in (b"left", b"right", b"here"):
        own = [value for value in values(storage, topic, 0) if value.startswith(name)]
        assert own == [b"%b-%d" % (name, number) for number in range(100)]


@pytest.mark.parametrize("compacted", [False, True])
def test_purging_takes_whole_batches_and_counts_records(storage, topic, compacted):
    """All expired batches of each partition are deleted, and its first offset moves."""
    for step in range(4):
        append(storage, topic, {0: [b"%d" % step] * 2}, at=NOW_MS + step * HOUR_MS)
    append(storage, topic, {1: [b"young"]}, at=NOW_MS + 9 * HOUR_MS)
    if compacted:
        compact(storage, topic)
    assert storage.purge(topic, NOW_MS) == 0
    assert storage.purge(topic, NOW_MS + 2 * HOUR_MS) == 4
    assert storage.purge(topic, NOW_MS + 2 * HOUR_MS) == 0
    assert storage.bounds(topic) == [Bounds(4, 7), Bounds(0, 0), Bounds(0, -1)]
    assert storage.purge(topic, NOW_MS + 100 * HOUR_MS) == 5
    assert storage.bounds(topic) == [Bounds(8, 7), Bounds(1, 0), Bounds(0, -1)]
    assert append(storage, topic, {0: [b"next"]})[0].offsets[0] == 8


def test_purging_much_lets_appends_in_between(monkeypatch, storage, topic):
    """A large purge runs in parts, so that appends do not wait for all of it."""
    monkeypatch.setattr(topic_file, "_GROUP_BYTES", 20_000)
    for _ in range(20):
        append(storage, topic, {0: [b"old" * 1000], 1: [b"old"]})
    purge_part = topic_file.TopicFile._purge_part
    parts: list[int] = []

    def and_append(file: topic_file.TopicFile, before_ms: int, until: Mapping[int, int] | None) -> int:
        parts.append(purge_part(file, before_ms, until))
        append(storage, topic, {2: [b"new"]}, at=NOW_MS + 1)
        return parts[-1]

    monkeypatch.setattr(topic_file.TopicFile, "_purge_part", and_append)
    assert storage.purge(topic, NOW_MS + 1) == 40
    assert sum(parts) == 40
    assert max(parts) < 20
    assert storage.bounds(topic) == [Bounds(20, 19), Bounds(20, 19), Bounds(0, len(parts) - 1)]


def test_an_old_batch_behind_a_young_one_stays(storage, topic):
    """A clock that went back causes no gap in the offsets."""
    for hour in (5, 50, 5, 60):
        append(storage, topic, {0: [b"%d" % hour]}, at=hour * HOUR_MS)
    assert storage.purge(topic, 10 * HOUR_MS) == 1
    assert values(storage, topic, 0) == [b"50", b"5", b"60"]
    assert storage.purge(topic, 55 * HOUR_MS) == 2
    assert values(storage, topic, 0) == [b"60"]


def test_finding_by_time_when_the_clock_went_back(storage, topic):
    """`find` returns the first record at or after the time."""
    for moment in (5, 50, 5, 60):
        append(storage, topic, {0: [b"%d" % moment]}, at=moment)
    assert [storage.find(topic, 0, moment) for moment in (0, 6, 50, 51, 61)] == [0, 1, 1, 3, 4]


def test_a_large_append_is_spread_over_several_rows(monkeypatch, storage, topic):
    """An append may be larger than a row; its offsets have no gap, and its parts stay together."""
    monkeypatch.setattr(stored_batches, "_ROW_BYTES", 10_000)
    large = [bytes([number % 256]) * 4_000 for number in range(50)]
    keys = [b"%d" % number for number in range(50)]
    placed = storage.append(topic, {0: NewRecords(NOW_MS, large, keys), 1: records(b"small")}).result(30)
    assert list(placed[0].offsets) == list(range(50))
    batch = storage.read(topic, 0, 0, max_records=100, max_bytes=1 << 30)
    assert batch["value"].to_pylist() == large
    assert batch["key"].to_pylist() == keys
    assert storage.purge(topic, NOW_MS + 1) == 51


def test_every_statement_finds_its_rows_by_an_index(directory, storage, topic):
    """No statement scans or sorts a table of batches, however many there are."""
    with closing(SqliteConnection(directory / f"{topic}.db")) as file:
        for name, statement in sql.load("strandline.log.storage", "topic_file.sql", "sqlite").items():
            if name == "create" or name.startswith("migration_"):
                continue
            numbered = [int(number) for number in re.findall(r"\?(\d)", statement)]
            count = max(numbered, default=statement.count("?"))
            plan = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", (0,) * count)]
            slow = [
                step
                for step in plan
                if re.search(r"SCAN (?!p\b|seal|stored|CONSTANT)|TEMP B-TREE|AUTOMATIC", step)
            ]
            assert slow == [], name


# -- crashes


@pytest.mark.parametrize("round_", range(3))
def test_a_killed_writer_loses_nothing_it_was_told(place, storage, topic, round_):
    """After a SIGKILL every acknowledged record exists, and other processes append at once."""
    append(storage, topic, {0: [b"first"]})
    with place.start("append", topic, 0, "doomed", 0) as process:
        acknowledged = [process.stdout.readline().split() for _ in range(20 + 15 * round_)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.split() for line in process.stdout.read().splitlines() if len(line.split()) == 2]
    assert process.returncode == -signal.SIGKILL
    found = dict(read(storage, topic, 0))
    for offset, value in acknowledged:
        assert found[int(offset)] == value.encode()
    assert sorted(found) == list(range(len(found)))
    assert append(storage, topic, {0: [b"after"]})[0].offsets[0] == len(found)


def test_a_half_made_topic_is_completed(directory, storage):
    """`create_topic` completes a topic whose creation crashed."""
    (directory / "half.db").touch()
    with pytest.raises(Unavailable):
        append(storage, "half", {0: [b"a"]})
    storage.create_topic("half", 2, DAY_MS)
    assert append(storage, "half", {1: [b"a"]})[1].complete


def test_deleting_leaves_no_file(directory, storage, topic):
    """The WAL and the lock file are deleted too."""
    append(storage, topic, {0: [b"a"]})
    assert list(directory.iterdir())
    storage.delete_topic(topic)
    assert list(directory.iterdir()) == []


def test_deleting_while_others_read_and_append_leaves_no_file(directory, storage, topic):
    """Using a deleted topic does not create it again."""
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            try:
                append(storage, topic, {0: [b"a"]})
                values(storage, topic, 0)
            except (NotFound, Unavailable):
                continue

    with ThreadPoolExecutor(4) as pool:
        users = [pool.submit(use) for _ in range(4)]
        until(lambda: storage.bounds(topic)[0].last > 20)
        storage.delete_topic(topic)
        with pytest.raises(NotFound):
            storage.bounds(topic)
        stop.set()
        for user in users:
            user.result(30)
    assert list(directory.iterdir()) == []


# -- open files


def test_only_so_many_files_stay_open(directory):
    """The least recently used file is closed; all topics still work."""
    storage = SqliteStorage(directory, max_open_topics=2)
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        storage.create_topic(topic, 1, DAY_MS)
    for round_ in range(3):
        for topic in topics:
            append(storage, topic, {0: [b"%d" % round_]})
            assert len(storage._open) <= 2
    assert [values(storage, topic, 0) for topic in topics] == [[b"0", b"1", b"2"]] * 6
    assert len(open_files(directory)) <= 2 * 7
    storage.close()
    assert open_files(directory) == []


def test_files_in_use_are_not_evicted(directory):
    """Concurrent appends to many topics work with a limit of one open file."""
    storage = SqliteStorage(directory, max_open_topics=1)
    topics = [f"t{number}" for number in range(8)]
    for topic in topics:
        storage.create_topic(topic, 1, DAY_MS)
    futures = [storage.append(topic, {0: records(b"x")}) for _ in range(20) for topic in topics]
    assert all(future.result(30)[0].complete for future in futures)
    assert [len(values(storage, topic, 0)) for topic in topics] == [20] * 8
    storage.close()


def test_watchers_of_more_topics_than_may_be_open_hear_of_other_processes(directory):
    """Reopening a file does not hide appends of other processes."""
    place = Place(f"sqlite:{directory}")
    storage = SqliteStorage(directory, poll_interval_ms=5, max_open_topics=1)
    calls = {f"t{number}": 0 for number in range(3)}

    def watch(topic: str) -> None:
        def callback() -> None:
            calls[topic] += 1

        storage.watch(topic, callback)

    for topic in calls:
        storage.create_topic(topic, 1, DAY_MS)
        watch(topic)
    until(lambda: all(calls.values()))
    with place.start("append", "t1", 0, "other", 0) as process:
        for _ in range(5):
            before = calls["t1"]
            assert process.stdout.readline()
            until(lambda before=before: calls["t1"] > before)
        process.kill()
    storage.close()


def test_no_append_waits_until_the_logs_of_other_topics_are_copied(directory, monkeypatch):
    """Slow checkpoints of other topics, however many, do not block an append."""
    limits, leave = Limits(least_bytes=1, commits=1), threading.Event()
    monkeypatch.setattr(checkpoints, "Limits", lambda: limits)
    monkeypatch.setattr(checkpoints.OPEN, "sync", lambda _: leave.wait(10 * DEADLINE_S))
    storage = SqliteStorage(directory)
    topics = [f"t{number}" for number in range(20)]
    for topic in topics:
        storage.create_topic(topic, 1, DAY_MS)
    try:
        for topic in topics:
            assert storage.append(topic, {0: records(b"x")}).result(DEADLINE_S)[0].complete
    finally:
        leave.set()
        storage.close()


def open_files(directory: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue
    return [name for name in found if name.startswith(str(directory))]


def test_tidying_frees_the_space_of_a_deleted_file(place, directory, storage, topic):
    """The disk space is in use as long as a process has the file open."""
    append(storage, topic, {0: [b"a"]})
    place.open().delete_topic(topic)
    assert open_files(directory)
    storage.tidy()
    assert not open_files(directory)


@contextmanager
def no_more_descriptors():
    """Make every attempt to open a file fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_free = os.dup(0)
    os.close(next_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_descriptors_left_is_not_a_missing_topic(place, topic):
    """A lack of descriptors is Unavailable, not NotFound."""
    storage = place.open()
    with no_more_descriptors():
        for act in (
            lambda: storage.bounds(topic),
            lambda: append(storage, topic, {0: [b"a"]}),
            lambda: storage.create_topic("new", 1, DAY_MS),
        ):
            with pytest.raises(Unavailable):
                act()
    assert append(storage, topic, {0: [b"a"]})[0].complete


# -- disks


def on_a_disk_of_its_own(tmp_path: Path, act: str) -> dict[str, object]:
    """Run `disk_worker.py` with private mounts."""
    command = ["unshare", "--map-root-user", "--mount"]
    probe = [*command, "true"]
    if not shutil.which("unshare") or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow private mounts")
    done = subprocess.run(
        [*command, sys.executable, str(DISK_WORKER), act, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_file_that_becomes_writable_is_written_again(tmp_path):
    """All writes succeed as soon as the file is writable, without a restart; before that it can be read."""
    report = on_a_disk_of_its_own(tmp_path, "writable_later")
    assert report.pop("append") == [[0, "Unavailable"], [0, "done"]]
    assert [*report] == ["seal", "unseal", "grow", "purge"]
    assert all(outcomes == [[1, "Unavailable"], [1, "done"]] for outcomes in report.values())


def test_a_file_with_new_permissions_is_written_again():
    """The files that SQLite creates beside a read-only file become writable with it."""
    with TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        command = [sys.executable, str(DISK_WORKER), "made_writable", directory]
        done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert json.loads(done.stdout) == [0, "Unavailable", "done", 1]


def test_a_full_disk_is_said_and_breaks_nothing(tmp_path):
    """A full disk is StorageFull, loses no acknowledged record, and accepts appends after space is freed."""
    report = on_a_disk_of_its_own(tmp_path, "fill")
    assert report["error"] == "StorageFull"
    assert report["acknowledged"] > 10
    assert report["found"] == report["acknowledged"]
    assert report["found_after_reopening"] == report["acknowledged"]
    assert report["integrity"] == "ok"
    assert report["offset_after_making_room"] == report["acknowledged"]


def test_a_read_only_disk_is_unavailable_not_missing(tmp_path):
    """Writes to a read-only disk are Unavailable; only an unknown topic is NotFound."""
    report = on_a_disk_of_its_own(tmp_path, "read_only")
    assert report == {"create": "Unavailable", "append": "Unavailable", "unknown": "NotFound"}


def test_a_place_that_is_no_directory_is_unavailable(tmp_path):
    """A path below a file is Unavailable."""
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable):
        SqliteStorage(tmp_path / "file" / "topics")
