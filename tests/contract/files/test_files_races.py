"""Concurrent, paused and killed processes: no file is lost, overwritten or partly visible."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from files_place import Place
from files_worker import stage

from peers import Peer
from services import until
from strandline.archive.files import Files
from strandline.errors import Conflict, NotFound, StrandlineError, Unavailable

FLAG = "hour/_READY"
TARGET = "hour/data/0.parquet"
STAGED = "_staging/run/0.part"
AT_ONCE = 8


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except StrandlineError as error:
        return type(error).__name__
    return "done"


def together(calls: list[Callable[[], object]]) -> list[str]:
    """The outcomes of calls that begin at the same time."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], object]) -> str:
        barrier.wait()
        return outcome(call)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def names(files: Files, path: str) -> list[str]:
    return [entry.name for entry in files.entries(path)]


class TestAtTheSameMoment:
    def test_one_of_many_contents_is_published(self, guarded):
        """One publish succeeds with a complete file; the others are a Conflict."""
        files = guarded.open()
        contents = [f"{number} ".encode() * 50_000 for number in range(AT_ONCE)]
        parts = [f"_staging/run/{number}.part" for number in range(AT_ONCE)]
        digests = [stage(files, content, part) for content, part in zip(contents, parts, strict=True)]
        results = together(
            [
                lambda part=part, digest=digest: files.publish(part, TARGET, digest)
                for part, digest in zip(parts, digests, strict=True)
            ]
        )
        assert Counter(results) == {"done": 1, "Conflict": AT_ONCE - 1}
        assert files.read(TARGET) == contents[results.index("done")]

    def test_many_publish_the_same_file(self, guarded):
        """Concurrent publishes of the same file succeed, as for a driver and its replacement."""
        files = guarded.open()
        digest = stage(files, b"rows " * 50_000)
        assert together([lambda: files.publish(STAGED, TARGET, digest)] * AT_ONCE) == ["done"] * AT_ONCE
        assert files.digest(TARGET) == digest

    @pytest.mark.parametrize("before", [b"", b"old"])
    def test_one_of_many_replaces_a_flag(self, guarded, before):
        """Of concurrent replaces of an existing or a missing flag, exactly one succeeds."""
        files = guarded.open()
        if before:
            files.replace(FLAG, before, None)
        seen = files.look(FLAG)
        expected = seen.version if seen else None
        contents = [f"new {number}".encode() for number in range(AT_ONCE)]
        results = together(
            [lambda content=content: files.replace(FLAG, content, expected) for content in contents]
        )
        assert Counter(results) == {"done": 1, "Conflict": AT_ONCE - 1}
        assert files.look(FLAG).data == contents[results.index("done")]
        assert names(files, "hour") == ["_READY"]

    def test_no_replacement_gets_lost(self, guarded):
        """No increment of a flag by two processes is lost; a reader never sees an older or a missing flag."""
        files = guarded.open()
        others = [guarded.other() for _ in range(2)]
        files.replace(FLAG, b"0 by nobody", None)
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(watch, guarded.open(), stop)
            for other in others:
                other.send("count", FLAG, 5)
            for other in others:
                other.receive()
            stop.set()
            seen = reader.result()
        assert files.look(FLAG).data.startswith(b"10 by ")
        assert seen == sorted(seen)
        assert names(files, "hour") == ["_READY"]

    def test_readers_find_nothing_or_all(self, guarded):
        """While a large file is published, a reader sees either no file or all of it."""
        files, reader = guarded.open(), guarded.open()
        content = bytes(range(256)) * 80_000
        digest = stage(files, content)
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            sizes = pool.submit(collect_sizes, reader, stop)
            files.publish(STAGED, TARGET, digest)
            until(lambda: reader.size(TARGET) is not None)
            stop.set()
            assert sizes.result() <= {None, len(content)}
        assert reader.digest(TARGET) == digest


def watch(files: Files, stop: threading.Event) -> list[int]:
    found = []
    while not stop.is_set():
        try:
            seen = files.look(FLAG)
        except Unavailable:  # HDFS may have removed the blocks of a file that was replaced since it was opened
            continue
        assert seen is not None
        found.append(int(seen.data.split()[0]))
    return found


def collect_sizes(files: Files, stop: threading.Event) -> set[int | None]:
    found: set[int | None] = set()
    while not stop.is_set():
        found.add(files.size(TARGET))
    return found


class TestAsleep:
    """A process is paused during a call, others make changes, and then the process continues."""

    def test_it_does_not_overwrite_a_newer_flag(self, guarded):
        """A late replace with a stale version is a Conflict."""
        files = guarded.open()
        files.replace(FLAG, b"revision 1", None)
        first = files.look(FLAG).version
        sleeper = asleep(guarded, "files.checked", "replace", FLAG, b"revision 2, too late", first)
        files.replace(FLAG, b"revision 2", first)
        files.replace(FLAG, b"revision 3", files.look(FLAG).version)
        sleeper.wake()
        with pytest.raises(Conflict):
            sleeper.receive()
        assert files.look(FLAG).data == b"revision 3"
        assert names(files, "hour") == ["_READY"]

    def test_it_does_not_overwrite_a_new_flag(self, guarded):
        """A late replace that expects no flag is a Conflict."""
        files = guarded.open()
        sleeper = asleep(guarded, "files.checked", "replace", FLAG, b"revision 1, too late", None)
        files.replace(FLAG, b"revision 1", None)
        sleeper.wake()
        with pytest.raises(Conflict):
            sleeper.receive()
        assert files.look(FLAG).data == b"revision 1"
        assert names(files, "hour") == ["_READY"]

    def test_it_replaces_what_nobody_touched(self, guarded):
        """A late replace succeeds if the flag has not changed."""
        files = guarded.open()
        files.replace(FLAG, b"revision 1", None)
        sleeper = asleep(guarded, "files.checked", "replace", FLAG, b"revision 2", files.look(FLAG).version)
        sleeper.wake()
        assert sleeper.receive() is None
        assert files.look(FLAG).data == b"revision 2"

    def test_it_publishes_what_others_have_published(self, guarded):
        """A late publish succeeds if the file is already published and staging was deleted."""
        files = guarded.open()
        digest = stage(files, b"rows")
        sleeper = asleep(guarded, "files.publish", "publish", STAGED, TARGET, digest)
        files.publish(STAGED, TARGET, digest)
        files.delete_tree("_staging")
        sleeper.wake()
        assert sleeper.receive() is None
        assert files.read(TARGET) == b"rows"

    def test_it_does_not_publish_over_another_content(self, guarded):
        """A late publish is a Conflict if other content was published."""
        files = guarded.open()
        sleeper = asleep(guarded, "files.publish", "publish", STAGED, TARGET, stage(files, b"late"))
        files.publish("_staging/1.part", TARGET, stage(files, b"rows", "_staging/1.part"))
        sleeper.wake()
        with pytest.raises(Conflict):
            sleeper.receive()
        assert files.read(TARGET) == b"rows"


def asleep(place: Place, failpoint: str, *call: object) -> Peer:
    other = place.other(f"{failpoint}:stop")
    other.send(*call)
    other.wait_until_stopped()
    return other


class TestKilled:
    """A process is killed by SIGKILL during a call."""

    @pytest.mark.parametrize("before", [None, b"old"])
    def test_the_flag_is_as_it_was(self, guarded, before):
        """A killed replace changes nothing; the next one succeeds and deletes the leftovers."""
        files = guarded.open()
        if before:
            files.replace(FLAG, before, None)
        seen = files.look(FLAG)
        expected = seen.version if seen else None
        # On S3 a replace is one request without a step in between.
        for failpoint in (
            ("files.checked",) if guarded.url.startswith("s3:") else ("files.claimed", "files.checked")
        ):
            killed = guarded.other(f"{failpoint}:kill")
            killed.send("replace", FLAG, b"never", expected)
            assert killed.ended() == signal.SIGKILL
            assert files.look(FLAG) == seen
        files.replace(FLAG, b"new", expected)
        assert files.look(FLAG).data == b"new"
        assert names(files, "hour") == ["_READY"]

    def test_publishing_goes_on(self, guarded):
        """After a killed publish the file is missing or complete, and a retry completes it."""
        files = guarded.open()
        middle = {"s3": "files.copied", "hdfs": ""}.get(guarded.url.partition(":")[0], "files.linked")
        for failpoint in filter(None, ("files.publish", middle)):
            target = f"hour/data/{failpoint}.parquet"
            digest = stage(files, b"rows " * 100_000, f"_staging/{failpoint}.part")
            killed = guarded.other(f"{failpoint}:kill")
            killed.send("publish", f"_staging/{failpoint}.part", target, digest)
            assert killed.ended() == signal.SIGKILL
            assert files.size(target) in {None, digest.size}
            files.publish(f"_staging/{failpoint}.part", target, digest)
            assert files.digest(target) == digest
            assert f"{failpoint}.parquet" in names(files, "hour/data")

    def test_a_half_written_file_is_no_data(self, guarded):
        """An unfinished file is not visible as data and can be deleted."""
        files = guarded.open()
        writer = guarded.other()
        writer.send("write_for_ever", STAGED, 4_000_000)
        while writer.receive() < 30_000_000:
            pass
        writer.kill()
        assert names(files, "_staging") == ["run"]
        assert not [name for name in names(files, "_staging/run") if name.endswith(".parquet")]
        with pytest.raises((NotFound, Conflict)):
            files.publish(STAGED, TARGET, stage(files, b"other", "_staging/other.part"))
        assert files.size(TARGET) is None
        files.delete_tree("_staging")
        assert files.entries() == []

    @pytest.mark.parametrize("published", [1, 5])
    def test_all_that_is_published_is_whole(self, guarded, published):
        """Every published file is complete, whenever the publisher is killed."""
        files = guarded.open()
        publisher = guarded.other()
        publisher.send("publish_for_ever", "run")
        while publisher.receive() < published:
            pass
        publisher.kill()
        found = names(files, "data")
        assert len(found) >= published
        assert [f"{files.digest(f'data/{name}').sha256}.parquet" for name in found] == found
