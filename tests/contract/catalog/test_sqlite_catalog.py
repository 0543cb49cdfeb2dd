"""The contract of the SQLite catalog alone: processes that start at once, crashes, other tables in the file."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from catalog_place import FIRST, create

from services import until
from strandline.clock import ManualClock
from strandline.engine import sqlite
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.errors import Conflict, Unavailable
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.model import EventType, StorageInfo
from strandline.log.storage.registry import SqliteConfiguration
from strandline.platform import Platform
from strandline.settings import Settings

_OPEN = """
import sys
from pathlib import Path
from strandline.engine.sqlite_database import SqliteDatabase
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.model import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration
print("ready", flush=True)
sys.stdin.readline()
first = StorageInfo("default", "sqlite", sqlite_configuration=SqliteConfiguration("topics"))
print(len(SqlCatalog(SqliteDatabase(Path(sys.argv[1])), first).storages.list()), flush=True)
"""

_CREATE = """
import itertools, sys
import strandline
with strandline.open(sys.argv[1]) as platform:
    for number in itertools.count():
        platform.log.create(strandline.EventType(f"e{number}"))
        print(f"e{number}", flush=True)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_start_at_once_share_one_new_catalog(tmp_path):
    """No process reads a half-created file."""
    processes = [start(_OPEN, tmp_path / "catalog.db") for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=30)[0] for process in processes] == ["1\n"] * 4


def test_opening_again_adds_no_storage(tmp_path):
    """Only the first open adds its storage."""
    other = StorageInfo("other", "sqlite", sqlite_configuration=SqliteConfiguration("elsewhere"))
    with closing(SqliteDatabase(tmp_path / "catalog.db")) as database:
        SqlCatalog(database, FIRST)
        assert [info.id for info in SqlCatalog(database, other).storages.list()] == ["default"]


def topics(data: Path) -> set[str]:
    return {file.name.removesuffix(".db") for file in (data / "topics").glob("*.db")}


@pytest.mark.parametrize("round_", range(3))
def test_a_killed_creator_leaves_nothing_that_a_sweep_does_not_find(tmp_path, round_):
    """Every event type has its topic, and after the sweep every topic has its event type."""
    process = start(_CREATE, tmp_path)
    created = [process.stdout.readline().strip() for _ in range(3 + 5 * round_)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    clock = ManualClock(4_000_000_000_000)
    with Platform(tmp_path, Settings(), clock) as platform:
        owned = {platform.log.timelines(found.name)[0].topic for found in platform.log.event_types()}
        assert {found.name for found in platform.log.event_types()} >= set(created)
        assert topics(tmp_path) >= owned
        platform.log.upkeep.sweep()
        until(lambda: topics(tmp_path) == owned)
        for name in created:
            assert platform.log.publish(name, [{"a": 1}]).ok


def test_a_topic_whose_creation_crashed_is_swept_after_its_time(tmp_path, monkeypatch):
    """The sweep waits, because the creator may only be slow."""
    clock = ManualClock()
    with Platform(tmp_path, Settings(), clock) as platform:
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "create", lambda *_: sys.exit("killed"))
            with pytest.raises(SystemExit):
                platform.log.create(EventType("a"))
        assert len(topics(tmp_path)) == 1
        platform.log.upkeep.sweep()
        assert len(topics(tmp_path)) == 1
        clock.advance(600_000)
        platform.log.upkeep.sweep()
        assert topics(tmp_path) == set()
        platform.log.create(EventType("a"))
        assert platform.log.publish("a", [{"a": 1}]).ok


def test_a_creation_of_unknown_outcome_keeps_its_topic(tmp_path, monkeypatch):
    """If the commit reached the file and its answer was lost, the event type keeps its topic."""
    clock = ManualClock()
    real = SqlCatalog.create

    def commits_and_fails(*arguments: object) -> None:
        real(*arguments)
        raise Unavailable("the answer got lost")

    with Platform(tmp_path, Settings(), clock) as platform:
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "create", commits_and_fails)
            with pytest.raises(Unavailable):
                platform.log.create(EventType("a"))
        clock.advance(10**9)
        platform.log.upkeep.sweep()
        assert platform.log.publish("a", [{"a": 1}]).ok


def test_a_refused_creation_leaves_no_topic(tmp_path):
    """If the name is taken, the topic that was created for it is deleted at once."""
    with Platform(tmp_path, Settings(), ManualClock()) as platform:
        platform.log.create(EventType("a"))
        with pytest.raises(Conflict):
            platform.log.create(EventType("a"))
        assert len(topics(tmp_path)) == 1
        platform.log.delete("a")
        assert topics(tmp_path) == set()


def test_other_tenants_of_the_file_are_no_news(tmp_path):
    """Frequent commits of the subscriptions to the same file do not change the catalog's version."""
    with closing(SqliteDatabase(tmp_path / "catalog.db")) as database:
        catalog = SqlCatalog(database, FIRST, ManualClock().now_ms)
        before = catalog.version()
        with closing(sqlite.SqliteConnection(tmp_path / "catalog.db")) as tenant:
            tenant.execute("CREATE TABLE others (n)")
            for n in range(3):
                tenant.execute("INSERT INTO others VALUES (?)", (n,))
                assert catalog.version() == before
        create(catalog, "a")
        assert catalog.version() != before
