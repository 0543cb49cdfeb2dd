"""Archivers are killed or paused at every step: each record is in exactly one published file.

A test uses one directory for several hours: a process fails in one hour, and the next process recovers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from archive_worker import REPLACED, live, place

from services import DEADLINE_S, is_stopped, until
from strandline.archive.model import HOUR_MS
from strandline.archive.verify import verify
from strandline.clock import parse_rfc3339

NOON = parse_rfc3339("2024-05-01T12:00:00Z")

#: Every step at which a process can fail: the name of a failpoint, and how often a process that has worked for a
#: while hits it before it fails.
FAILPOINTS = {
    "claim": 1,
    "staging": 9,
    "collected": 7,
    "barrier": 1,
    "rewrite": 2,
    "decide": 2,
    "decided": 2,
    "publish": 3,
    "late": 1,
    "publish-all": 1,
    "published": 3,
    "sweep": 2,
    "flag": 2,
    "flagged": 2,
    "write": 4,
    "confirm": 2,
    "period": 2,
    "period-write": 2,
    "period-confirm": 2,
}
#: Failpoints that also run in the short form.
SHORT = {"decide", "decided", "publish", "late", "write", "period-write"}
#: Failpoints at which a process is paused until another one has taken over, as above.
NAPS = {
    "collected": 7,
    "barrier": 1,
    "decide": 1,
    "decided": 1,
    "publish": 3,
    "publish-all": 1,
    "flag": 2,
    "flagged": 2,
    "write": 4,
    "confirm": 2,
}
SHORT_NAPS = {"decide", "publish", "write"}


@pytest.fixture(scope="module")
def forked() -> Iterator[Any]:
    """A context that forks processes which have all modules imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["archive_worker"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Python before 3.13 does not pass on sys.path
        yield context


def start(forked: Any, folder: Path, hour_ms: int, failpoint: str = "", time: int = 1) -> Any:
    process = forked.Process(target=live, args=(folder, hour_ms, failpoint, time))
    process.start()
    return process


def run(forked: Any, folder: Path, hour_ms: int, failpoint: str = "", time: int = 1) -> int | None:
    process = start(forked, folder, hour_ms, failpoint, time)
    process.join(DEADLINE_S)
    return process.exitcode


@pytest.fixture
def folder(tmp_path: Path, forked: Any) -> Path:
    """A directory with an hour that is archived and flagged."""
    return prepared(tmp_path, forked)


def prepared(folder: Path, forked: Any) -> Path:
    archive = place(folder, NOON)
    archive.create(partitions=2)
    archive.close()
    assert run(forked, folder, NOON) == 0
    return folder


def records(archive: Any) -> set[tuple[int, int, int]]:
    """All records of the log, by partition, timeline and offset."""
    return {
        (int(batch.partition), batch.timeline, offset)
        for batch in archive.platform.log.read("orders")
        for offset in batch.records["offset"].to_pylist()
    }


def check(folder: Path, now_ms: int, *, whole: bool) -> dict[str, bytes]:
    """Check the invariants, with `whole` those after a clean run as well. Returns all flags by path."""
    archive = place(folder, now_ms)
    rows = [*archive.rows(), *archive.quarantined()]
    found = Counter((row["partition"], row["timeline"], row["offset"]) for row in rows)
    assert set(found.values()) <= {1}, "a record is published twice"
    assert found.keys() <= records(archive)
    listed = listed_files(archive, now_ms)
    published = [*archive.root.rglob("*.parquet"), *archive.root.rglob("*.quarantined")]
    there = {str(path.relative_to(archive.root)) for path in published}
    assert there <= {*listed}, "a published file is not in the ledger"
    if whole:
        assert found.keys() == records(archive)
        assert there == {path for path, published in listed.items() if published}
        assert all(listed.values())
        counts = archive.counts()
        assert (counts.balanced, counts.read) == (True, len(found))
        assert archive.staged() == []
        check_hours(archive, now_ms)
    flags = {str(path.relative_to(archive.root)): path.read_bytes() for path in archive.root.rglob("_READY")}
    archive.close()
    return flags


def listed_files(archive: Any, now_ms: int) -> dict[str, bool]:
    """Whether each file of the ledger is published. Files in quarantine have the hour -1."""
    hours = [-1, *range(NOON - 2 * HOUR_MS, now_ms + HOUR_MS, HOUR_MS)]
    done = {file.path: True for hour_ms in hours for file in archive.ledger.files("orders", hour_ms)}
    return done | {file.path: False for file in archive.ledger.publishing("orders")}


def check_hours(archive: Any, now_ms: int) -> None:
    """Every hour that has ended is flagged, matches its manifest, and is in the flag above."""
    hours = range(NOON, now_ms - now_ms % HOUR_MS, HOUR_MS)
    for hour_ms in hours:
        assert verify(archive.files, archive.ledger, archive.layout("orders"), hour_ms).problems == ()
        path = archive.layout("orders").directory(hour_ms)
        above = archive.period(path.rsplit("/", 1)[0])
        assert above["children"] == {path: archive.flag(hour_ms)["revision"]}


def cases(names: Iterable[str], short: set[str]) -> list[Any]:
    return [pytest.param(name, id=name, marks=[] if name in short else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", cases(FAILPOINTS, SHORT))
def test_a_process_is_killed_at_a_step(folder, forked, name):
    """A process is killed at a step, and again two hours later; the next process recovers each time."""
    kill(folder, forked, name)


@pytest.mark.parametrize("name", cases(FAILPOINTS, {"decided"}))
def test_a_process_with_its_ledger_in_postgresql_is_killed_at_a_step(tmp_path, postgres, forked, name):
    """A process with its ledger in PostgreSQL is killed at a step; the next process recovers."""
    (tmp_path / "ledger.url").write_text(postgres.url(postgres.new_database()))
    kill(prepared(tmp_path, forked), forked, name)


def kill(folder: Path, forked: Any, name: str) -> None:
    for hour, time in ((1, 1), (3, FAILPOINTS[name])):
        hour_ms = NOON + hour * HOUR_MS
        assert run(forked, folder, hour_ms, f"archive.{name}:kill", time) == -signal.SIGKILL
        check(folder, hour_ms + 2 * HOUR_MS, whole=False)
        assert run(forked, folder, hour_ms + HOUR_MS) == 0
        check(folder, hour_ms + 2 * HOUR_MS, whole=True)


@pytest.mark.parametrize("name", cases(NAPS, SHORT_NAPS))
def test_a_process_sleeps_while_another_one_takes_over(folder, forked, name):
    """A paused process changes no file, row or flag after another one has taken over."""
    hour_ms = NOON + HOUR_MS
    sleeper = start(forked, folder, hour_ms, f"archive.{name}:stop", NAPS[name])
    until(lambda: is_stopped(sleeper.pid), "the pause")
    for later in (1, 2):
        assert run(forked, folder, hour_ms + later * HOUR_MS) == 0
    flags = check(folder, hour_ms + 3 * HOUR_MS, whole=True)
    os.kill(sleeper.pid, signal.SIGCONT)
    sleeper.join(DEADLINE_S)
    assert sleeper.exitcode == REPLACED
    assert check(folder, hour_ms + 3 * HOUR_MS, whole=True) == flags
