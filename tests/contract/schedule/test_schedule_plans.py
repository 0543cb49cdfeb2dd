"""How the statements find their rows, and what the databases are told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from schedule_place import MEGABYTE, NOON, SchedulePlace, everything, made, message, open_database

from lossy_proxy import LossyProxy
from services import until
from strandline.engine import sql
from strandline.engine.postgres import PostgresDatabase
from strandline.errors import OutcomeUnknown, Unavailable
from strandline.schedule import forecast
from strandline.schedule.model import Body, Moment, NewMessage
from strandline.schedule.storage.rows import GIVEN, Given, columns
from strandline.schedule.storage.sql import SqlSchedules

PACKAGE = ("strandline.schedule.storage", "schedule.sql")
SQLITE, POSTGRES = sql.load(*PACKAGE, "sqlite"), sql.load(*PACKAGE, "postgres")
OPERATIONS = ["lease", "hand_back", "give_back", "extend", "release", "delete_held", "delete_owned", "delete_dead"]
OPERATIONS += ["move", "put_back"]
DAY = 86_400_000
YEAR = 365 * DAY


@pytest.mark.parametrize("name", sorted(SQLITE.keys() - {"create", "nodes", "remove_nodes", "kept_schedules"}))
def test_no_statement_of_sqlite_reads_a_whole_table(tmp_path, name):
    """A million waiting messages cost nothing: each statement uses an index or reads its own items."""
    place = SchedulePlace(f"sqlite:{tmp_path / 'schedule.db'}")
    place.open()
    values = dict.fromkeys(re.findall(r":(\w+)", SQLITE[name]), "[]")
    with closing(open_database(place.address)) as database:
        steps = [row[3] for row in database.fetch(f"EXPLAIN QUERY PLAN {SQLITE[name]}", values)]
    place.close()
    tables = "messages|message_bodies|schedule_slots|schedules|schedule_consumers|schedule_nodes"
    assert [step for step in steps if re.match(rf"SCAN ({tables})\b", step)] == []


@pytest.fixture
def server(postgres):
    """A database with the schedule `s`, without any statistics."""
    url = postgres.url(postgres.new_database())
    with closing(open_database(url)) as database:
        made(SqlSchedules(database))
    return url


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_finds_its_messages_by_their_key(server, name):
    """Also in an empty table: the server keeps the plan while the table grows."""
    values = {"schedule": "s", "now_ms": None, "offset_ms": 0, **columns(GIVEN, [Given("a", 0)])}
    with closing(open_database(server)) as database:
        plan = "\n".join(row[0] for row in database.fetch(f"EXPLAIN {POSTGRES[name]}", values))
    assert "Index Scan using messages_pkey on messages" in plan
    assert "Seq Scan" not in plan
    assert "messages_due" not in plan


def counting(from_ms: int, to_ms: int, step_ms: int) -> dict[str, object]:
    """The values of the statement `counts`."""
    plan = forecast.plan(from_ms, to_ms, step_ms, NOON)
    times = {"from_ms": from_ms, "to_ms": to_ms, "step_ms": step_ms, "at_ms": NOON}
    return {"schedule": "s", **times, "hours": plan.hours, "minutes": plan.minutes}


@pytest.mark.parametrize("name", ["lease", "hand_back"])
def test_the_body_of_a_leased_message_is_found_by_its_id(server, name):
    """Once for both of its columns, and with either index of the bodies."""
    values = {"schedule": "s", "now_ms": None, "offset_ms": 0, **columns(GIVEN, [Given("a", 0)])}
    with closing(open_database(server)) as database:
        plan = [row[0] for row in database.fetch(f"EXPLAIN {POSTGRES[name]}", values)]
    (place,) = [number for number, line in enumerate(plan) if "on message_bodies" in line]
    assert "Index Scan" in plan[place]
    assert "(id = changed.id)" in plan[place + 1]


def test_counts_find_held_messages_and_new_parts_by_their_indexes(server):
    """Also in an empty table: with the plan of another index, counts would read every message as it grows."""
    values = counting(NOON + 1, NOON + YEAR, 30 * DAY)
    with closing(open_database(server)) as database:
        plan = "\n".join(row[0] for row in database.fetch(f"EXPLAIN {POSTGRES['counts']}", values))
    for index in ("messages_held on messages", "schedule_slots_new on schedule_slots"):
        assert f"Index Scan using {index}" in plan
    assert "Seq Scan" not in plan


def test_counts_do_not_read_every_message(server):
    """Only held messages and those of the minutes in which a step begins; no lane of an empty minute."""
    waiting = [message(f"m{n}", NOON + n * (YEAR // 2000)) for n in range(1, 2000)]
    values = counting(NOON + 1, NOON + YEAR, 30 * DAY)
    with closing(open_database(server)) as database:
        store = SqlSchedules(database, lambda: NOON)
        store.messages.create("s", [*waiting, message("held", NOON)])
        store.due.lease("s", [everything()], MEGABYTE)
        store.fold()
        assert store.messages.counts("s", NOON + 1, NOON + YEAR, 30 * DAY).total == 2000
        analyze = f"EXPLAIN (ANALYZE, FORMAT JSON) {POSTGRES['counts']}"
        explained = database.fetch(analyze, values)[0][0][0]
    used = [node for node in nodes_of(explained["Plan"]) if node.get("Relation Name") == "messages"]
    assert sum(rows_of(node) for node in used) < 100
    assert sum(node["Actual Loops"] for node in used) < 100


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def rows_of(node: dict[str, Any]) -> int:
    return (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]


def test_the_server_is_the_clock(server):
    """The time of the machine does not matter; a test shifts the server's."""
    shift = 0
    with closing(open_database(server)) as database:
        store = SqlSchedules(database, offset=lambda: shift)
        before = store.now_ms()
        store.messages.create("s", [NewMessage("a", "shop", Body(b"x"), Moment(3_600_000, relative=True))])
        created = store.messages.get("s", "a")
        assert before <= created.created_ms <= store.now_ms()
        assert created.at_ms == created.created_ms + 3_600_000
        assert store.due.lease("s", [everything()], 1).leases == []
        shift = 3_600_000
        until(lambda: store.due.lease("s", [everything()], 1).leases)


def test_a_change_whose_answer_got_lost_is_unknown_and_can_be_repeated(postgres, server):
    """The repeated create says that the first one succeeded."""
    proxy = LossyProxy(postgres.port)
    behind = server.replace(f":{postgres.port}/", f":{proxy.port}/")
    with closing(open_database(behind)) as database:
        store = SqlSchedules(database)
        proxy.lose_answer_to(b"unique-id")
        with pytest.raises(OutcomeUnknown):
            store.messages.create("s", [message("unique-id", NOON)])
        (again,) = store.messages.create("s", [message("unique-id", NOON)])
        assert again.code == "already_exists"
        assert again.version is not None
    proxy.close()


def test_a_connection_that_was_lost_while_idle_is_replaced(postgres, server):
    """Nothing was sent, so the outcome is known: the change is made on a new connection."""
    with closing(PostgresDatabase(server, fixed_plans=True)) as database:
        store = SqlSchedules(database)
        name = server.rpartition("/")[2]
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        postgres.execute(f"SELECT pg_terminate_backend(pid) {others}", name)
        until(lambda: postgres.execute(f"SELECT count(*) {others}", name) == [(0,)])
        assert store.messages.create("s", [message("a")])[0].status == "ok"


def test_a_newer_layout_is_refused(place, store):
    """The error says what to do, and nothing is changed."""
    with closing(open_database(place.address)) as database:
        database.change("UPDATE layouts SET version = 99 WHERE room = 'schedule'", {})
    with pytest.raises(Unavailable, match=r"the schedule in .*\(layout 99.*; upgrade"):
        place.open()
