"""A data directory and a PostgreSQL database of the release before layouts had versions.

`tests/kept/data-0.1.zip` has two event types, one of them switched to a second storage, a subscription
with commits, and two archived hours; `tests/kept/postgres-0.1.sql` has rows in every table. The topics of
`tests/kept/data-0.1-layouts.zip` have the first layout with a version: no checksums, and every append is an Arrow
batch. It has an event type with two timelines, and 500 events that were published singly and in batches.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services import environment
from strandline import EventType
from strandline.archive.ledger.sql import SqlLedger
from strandline.archive.model import hour_name
from strandline.clock import ManualClock
from strandline.engine.postgres import PostgresDatabase
from strandline.engine.sqlite import SqliteConnection
from strandline.errors import Unavailable
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.cursors import Position
from strandline.log.records import NewRecords
from strandline.log.subscriptions.sql import SqlSubscriptions
from strandline.platform import Platform
from strandline.settings import Settings

KEPT = Path(__file__).parents[2] / "kept"
TEN, TWELVE = 1767261600000, 1767268800000  # 2026-01-01, 10:00 and 12:00 UTC
ROOMS = {"catalog": "catalog.db", "subscriptions": "catalog.db", "archive": "archive.db"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with zipfile.ZipFile(KEPT / "data-0.1.zip") as kept:
        kept.extractall(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def platform(data: Path) -> Iterator[Platform]:
    with Platform(data, Settings(), ManualClock(TWELVE + 3_600_000)) as opened:
        yield opened


def numbers(platform: Platform) -> list[int]:
    return sorted(event["n"] for batch in platform.log.read("orders", "BEGIN") for event in batch.events)


def test_events_of_both_timelines_are_read_and_more_can_be_published(platform):
    """Topic files of the old layout are migrated when they are opened."""
    assert [timeline.order for timeline in platform.log.timelines("orders")] == [1, 2]
    assert numbers(platform) == [*range(30)]
    platform.log.publish("orders", [{"customer": "c", "n": 30}]).raise_for_failed()
    platform.log.admin.switch("orders", "default")
    platform.log.publish("orders", [{"customer": "c", "n": 31}]).raise_for_failed()
    assert numbers(platform) == [*range(32)]


def test_an_old_topic_takes_records_without_values(platform):
    """Which no release wrote at that time."""
    timeline = platform.log.timelines("orders")[-1]
    storage = platform.log._storages.get(timeline.storage_id)
    before = storage.end(timeline.topic, 0)
    for new in (NewRecords(1, [None], [b"k"]), NewRecords(1, [None, b""] * 200)):
        assert storage.append(timeline.topic, {0: new}).result(30)[0].complete
    found = storage.read(timeline.topic, 0, before, max_records=1000, max_bytes=1 << 20)
    assert found["value"].to_pylist() == [None, *[None, b""] * 200]
    assert storage.read(timeline.topic, 0, 0, max_records=1000, max_bytes=1 << 20).num_rows == before + 401


def test_a_subscription_goes_on_from_its_committed_cursors(platform):
    """The subscription is found by its owner and gets exactly the ten uncommitted events."""
    (found,) = platform.log.subscriptions.search(event_types=["orders"])
    assert found.consumer_group == "billing"
    assert platform.log.subscriptions.search(found.owning_application) == [found]
    received: list[int] = []
    with platform.log.subscriptions.consume(str(found.id)) as consumer:
        while len(received) < 10:
            batch = consumer.receive(60)
            assert batch is not None
            received += [event["n"] for event in batch.events]
            consumer.commit(batch)
    assert sorted(received) == [*range(20, 30)]


def test_the_archive_knows_its_hours_and_goes_on(platform):
    """Flagged hours are unchanged, their files pass verification, and a new event is archived."""
    ledger = platform.archive.ledger
    flagged = [(hour.event_type, hour.hour_ms) for hour in ledger.hours.between(TEN, TWELVE) if hour.revision == 1]
    assert flagged == [(name, hour) for name in ("orders", "visits") for hour in (TEN, TEN + 3_600_000)]
    checks = platform.archive.verify("orders", hour_name(TEN), hour_name(TWELVE))
    assert [check.problems for check in checks] == [(), ()]
    platform.log.publish("orders", [{"customer": "c", "n": 30}]).raise_for_failed()
    platform.archive.process().once()
    standing = ledger.standing("orders")
    assert standing is not None
    assert standing.counts.archived == 31


@pytest.mark.parametrize("room", ROOMS)
def test_a_newer_layout_is_refused_by_its_room(platform, data, room):
    """The error says what to do, and nothing is changed."""
    assert platform.archive.ledger.terms()
    platform.close()
    with closing(SqliteConnection(data / ROOMS[room])) as file:
        file.execute("UPDATE layouts SET version = 99 WHERE room = ?", (room,))
    with (
        pytest.raises(Unavailable, match=rf"the {room} in .*\(layout 99.*; upgrade"),
        Platform(data, Settings(), ManualClock(TWELVE)) as newer,
    ):
        newer.archive.ledger.terms()


def test_a_newer_topic_file_is_refused(platform, data):
    """A topic file of a newer layout is neither read nor written."""
    platform.log.publish("visits", [{"page": "/"}]).raise_for_failed()
    platform.close()
    (path,) = (data / "topics").glob("visits*.db")
    with closing(SqliteConnection(path)) as file:
        file.execute("PRAGMA user_version = 99")
    with Platform(data, Settings(), ManualClock(TWELVE)) as again:
        with pytest.raises(Unavailable, match=r"layout 99.*; upgrade"):
            [*again.log.read("visits", "BEGIN")]
        with pytest.raises(Unavailable, match=r"layout 99.*; upgrade"):
            again.log.publish("visits", [{"page": "/"}])


@pytest.mark.parametrize("step", range(1, 11))
def test_a_start_that_is_killed_while_it_migrates_is_harmless(data, step):
    """A start after a crash at any step of the migration finds all data."""
    program = "import sys, strandline; strandline.open(sys.argv[1]).archive.ledger.terms()"
    done = subprocess.run(
        [sys.executable, "-c", program, str(data)],
        env=environment(
            STRANDLINE_TEST_FAILPOINT=f"layouts.migrated:kill:{step}", PYTHONPATH=os.pathsep.join(sys.path)
        ),
        check=False,
    )
    assert done.returncode in {-9, 0}
    assert (done.returncode == -9) == (step <= 9), (
        "the catalog has four migrations, the subscriptions two, the archive three"
    )
    with Platform(data, Settings(), ManualClock(TWELVE)) as platform:
        assert numbers(platform) == [*range(30)]
        assert len(platform.log.subscriptions.search(event_types=["orders"])) == 1
        assert len(platform.archive.ledger.terms()) == 2


def shape(path: Path) -> set[tuple[object, ...]]:
    """The columns and indexes of a SQLite file's tables, without index names, types and order."""
    with closing(SqliteConnection(path)) as file:
        columns = file.execute(
            'SELECT t.name, c.name, c."notnull", c.pk FROM pragma_table_list t, pragma_table_info(t.name) c'
            " WHERE t.schema = 'main' AND t.name NOT LIKE 'sqlite%'"
        )
        indexes = file.execute(
            'SELECT i.tbl_name, x."unique", (SELECT group_concat(name) FROM pragma_index_info(i.name)), i.sql'
            " FROM sqlite_schema i JOIN pragma_index_list(i.tbl_name) x ON x.name = i.name WHERE i.type = 'index'"
        )
        views = file.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'view'")
    conditions = [" ".join((made or "").partition("WHERE")[2].split()) for *_, made in indexes]
    return {*columns, *views, *((*index[:3], when) for index, when in zip(indexes, conditions, strict=True))}


@pytest.mark.parametrize("file", ["catalog.db", "archive.db", "coordination.db"])
def test_a_migrated_file_has_the_layout_of_a_new_one(platform, data, tmp_path, file):
    """The statements that create tables and those that migrate them must agree."""
    with Platform(tmp_path / "new", Settings(), ManualClock(TWELVE)) as new:
        for opened in (new, platform):
            assert opened.archive.ledger.terms() is not None
            opened.log.start()
    platform.close()
    assert shape(data / file) == shape(tmp_path / "new" / file)


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    with zipfile.ZipFile(KEPT / "data-0.1-layouts.zip") as kept:
        kept.extractall(tmp_path / "clicks")
    return tmp_path / "clicks"


def clicked(platform: Platform) -> list[int]:
    return sorted(event["n"] for batch in platform.log.read("clicks", "BEGIN") for event in batch.events)


def test_topics_without_checksums_are_read_and_written(clicks):
    """Events that are published singly lie beside the old batches, and both become larger batches."""
    with Platform(clicks, Settings(), ManualClock(TWELVE)) as platform:
        assert clicked(platform) == [*range(500)]
        for number in range(500, 540):
            platform.log.publish("clicks", [{"user": "u", "n": number}]).raise_for_failed()
        assert clicked(platform) == [*range(540)]
        platform.log.admin.switch("clicks", "default")
        platform.log.publish("clicks", [{"user": "u", "n": 540}]).raise_for_failed()
        assert list(platform.log.upkeep.find_damage(["default"])) == []
    for _ in range(2):
        with Platform(clicks, Settings(), ManualClock(TWELVE)) as platform:
            assert clicked(platform) == [*range(541)]


def test_a_migrated_topic_has_the_layout_of_a_new_one(clicks, platform, data):
    """From the layout without a version, and from the one with version 1."""
    with Platform(clicks, Settings(), ManualClock(TWELVE)) as opened:
        assert clicked(opened) == [*range(500)]
        opened.log.create(EventType("new"))
    assert numbers(platform) == [*range(30)]
    platform.close()
    (new,) = (clicks / "topics").glob("new.*.db")
    migrated = [*(data / "topics").glob("orders.*.db"), *(clicks / "topics").glob("clicks.*.db")]
    assert len(migrated) == 3
    for file in migrated:
        assert shape(file) == shape(new)
        with closing(SqliteConnection(file)) as connection:
            assert connection.execute("PRAGMA user_version") == [(3,)]


@pytest.mark.parametrize("step", [1, 2])
def test_a_kill_while_a_topic_is_migrated_is_harmless(clicks, step):
    """The next reader finds the old layout and migrates it."""
    program = "import sys, strandline; [*strandline.open(sys.argv[1]).log.read('clicks')]"
    variables = {
        "STRANDLINE_TEST_FAILPOINT": f"layouts.migrated:kill:{step}", "PYTHONPATH": os.pathsep.join(sys.path)
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program, str(clicks)], env=environment(**variables), check=False)
    assert done.returncode == -9
    with Platform(clicks, Settings(), ManualClock(TWELVE)) as platform:
        assert clicked(platform) == [*range(500)]


def test_a_migrated_postgresql_database_has_the_layout_of_a_new_one(postgres):
    """In PostgreSQL the statements agree as well."""
    kept, new = postgres.new_database(), postgres.new_database()
    postgres.execute((KEPT / "postgres-0.1.sql").read_text(encoding="utf-8"), kept)
    found = []
    for name in (kept, new):
        with closing(PostgresDatabase(postgres.url(name))) as database:
            SqlCatalog(database)
            SqlSubscriptions(database, lease_ms=6_000)
            SqlLedger(database, lease_ms=6_000)
        columns = postgres.execute(
            "SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default"
            " FROM information_schema.columns WHERE table_schema = 'strandline'",
            name,
        )
        indexes = postgres.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = 'strandline'", name)
        found.append({*columns, *indexes})
    assert found[0] == found[1]


def test_a_postgresql_database_is_taken_over(postgres):
    """The first node of this release migrates every room; the second start changes nothing."""
    name = postgres.new_database()
    postgres.execute((KEPT / "postgres-0.1.sql").read_text(encoding="utf-8"), name)
    for _ in range(2):
        with closing(PostgresDatabase(postgres.url(name))) as database:
            catalog = SqlCatalog(database)
            assert [entry.event_type.name for entry in catalog.entries()] == ["orders", "visits"]
            assert len(catalog.entries()[0].timelines) == 2
            assert catalog.topics_to_delete() == [("default", "left.over")]
            store = SqlSubscriptions(database, lease_ms=6_000)
            (found,) = store.search(owner="shop", event_types=["orders"])
            shares, _ = store.layout(str(found.id))
            assert [share.position for share in shares] == [Position(1, 9), Position(1, -1)]
            ledger = SqlLedger(database, lease_ms=6_000)
            (hour,) = ledger.hours.between(TEN, TWELVE)
            assert (hour.event_type, hour.revision) == ("orders", 1)
            assert [file.rows for file in ledger.files("orders", TEN)] == [10]
            ledger.leases.renew("worker-2", "[]")
            assert ledger.leases.take("worker-2", "visits")
