"""The contract of the PostgreSQL catalog alone: several machines, a server that crashes, lost answers."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from catalog_place import FIRST, CatalogPlace, create, effect, switch_of

from lossy_proxy import LossyProxy
from peers import Peer
from services import until
from services.postgres import PostgresServer
from strandline.engine.postgres import PostgresDatabase
from strandline.errors import Conflict, Invalid, OutcomeUnknown, StrandlineError, Unavailable
from strandline.log.catalog import Catalog
from strandline.log.catalog.sql import SqlCatalog
from strandline.log.model import StorageInfo
from strandline.log.storage.registry import SqliteConfiguration
from strandline.log.switching import State


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database)


@pytest.fixture
def place(url: str) -> Iterator[CatalogPlace]:
    made = CatalogPlace(url)
    yield made
    made.close()


@pytest.fixture
def others(url: str) -> Iterator[list[Peer]]:
    made = [Peer(Path(__file__).with_name("catalog_worker.py"), url) for _ in range(2)]
    yield made
    for other in made:
        other.kill()


def raced(others: list[Peer], *calls: str) -> list[str]:
    """The answers to concurrent calls, one per process; for an error, the name of its class."""
    for other, call in zip(others, calls, strict=True):
        other.send(*call.split())
    return [answer(other) for other in others]


def answer(other: Peer) -> str:
    try:
        return str(other.receive())
    except StrandlineError as error:
        return type(error).__name__


# -- starting


def test_processes_that_start_at_once_make_one_catalog(url, others):
    """Two processes start on an empty database, eight connections follow, and the tables are created once."""
    with ThreadPoolExecutor(8) as pool:
        databases = list(pool.map(lambda _: PostgresDatabase(url), range(8)))
        catalogs = list(pool.map(SqlCatalog, databases))
    assert {catalog.version() for catalog in catalogs} == {0}
    for database in databases:
        database.close()


def test_once_it_is_made_a_role_without_the_right_to_make_tables_can_use_it(postgres, database, url):
    """An administrator may create the tables and grant the nodes a role with fewer rights."""
    mine = CatalogPlace(url)
    mine.open()
    mine.close()
    role = f"role_{uuid.uuid4().hex}"
    for statement in (
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA strandline TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA strandline TO {role}",
    ):
        postgres.execute(statement, database)
    mine = CatalogPlace(postgres.url(database, user=role))
    assert create(mine.open(), "a").event_type.name == "a"
    mine.close()


def test_it_begins_without_a_storage(url):
    """The first storage that is added becomes the default; a storage on one machine is refused."""
    database = PostgresDatabase(url)
    catalog = SqlCatalog(database)
    assert catalog.storages.list() == []
    with pytest.raises(Invalid, match="on one machine"):
        catalog.storages.add(StorageInfo("s", "sqlite", sqlite_configuration=SqliteConfiguration("s")))
    catalog.storages.add(FIRST)
    catalog.storages.add(msgspec.structs.replace(FIRST, id="second"))
    assert [(found.id, found.default) for found in catalog.storages.list()] == [
        ("default", True),
        ("second", False),
    ]
    database.close()


def test_a_definition_written_with_fewer_fields_can_be_updated(postgres, database, place):
    """An event type that an older release wrote with fewer fields can be updated."""
    catalog = place.open()
    create(catalog, "a")
    postgres.execute("""UPDATE strandline.event_types SET definition = '{"name":"a"}'""", database)
    entry = catalog.get("a")
    catalog.update(entry, msgspec.structs.replace(entry.event_type, labels={"k": "1"}))
    assert catalog.get("a").event_type.labels == {"k": "1"}
    with pytest.raises(Conflict):
        catalog.update(entry, entry.event_type)


def test_the_version_is_never_used_twice(postgres, database, place):
    """The version is new even after a restore of an older backup, so caches notice the lost changes."""
    catalog = place.open()
    before = postgres.execute("SELECT version FROM strandline.catalog", database)[0][0]
    create(catalog, "a")
    lost = catalog.version()
    postgres.execute(
        f"DELETE FROM strandline.event_types; UPDATE strandline.catalog SET version = {before}",  # noqa: S608
        database,
    )
    assert catalog.version() == before
    create(catalog, "b")
    assert catalog.version() not in {before, lost}


def test_delays_are_measured_on_the_clock_of_the_server(postgres, database, url):
    """The clocks of the nodes may differ, so they are not used."""
    with closing(PostgresDatabase(url)) as opened:
        catalog = SqlCatalog(opened)
        catalog.mark_for_deletion("default", "soon", 600_000)
        catalog.mark_for_deletion("default", "now")
        assert catalog.topics_to_delete() == [("default", "now")]
    ((left_ms,),) = postgres.execute(
        "SELECT after_ms - extract(epoch FROM clock_timestamp()) * 1000 FROM strandline.doomed_topics"
        " WHERE topic = 'soon'",
        database,
    )
    assert 0 < left_ms <= 600_000


def test_threads_that_ask_for_the_version_at_once_share_the_answer(place, monkeypatch):
    """An error is shared as well: while the server does not answer, no thread waits for more than two queries."""
    catalog = place.open()
    asked, looks = [], []

    def slow(_: str) -> list[tuple[int]]:
        looks.append(1)
        until(lambda: len(asked) == 8)
        time.sleep(0.3)  # by then all eight threads are inside the call
        raise Unavailable("no answer", retry_after=2)

    def ask() -> int:
        asked.append(1)
        return catalog.version()

    with monkeypatch.context() as patched, ThreadPoolExecutor(8) as pool:
        patched.setattr(catalog._tables, "fetch", slow)
        failures = [future.exception() for future in [pool.submit(ask) for _ in range(8)]]
    assert [failure.retry_after for failure in failures] == [2] * 8
    assert len(looks) <= 2
    assert catalog.version() == catalog.version()


# -- two processes, one switch


def test_of_two_processes_one_begins_a_switch(place, others):
    """Of two concurrent `begin` calls, exactly one succeeds and the other is a Conflict."""
    catalog = place.open()
    for number in range(20):
        create(catalog, f"e{number}")
        answers = raced(others, *(f"begin e{number} {uuid.uuid4()}" for _ in others))
        assert sorted(answers) == ["Conflict", "True"]
    assert len(catalog.switches.undecided()) == 20


@pytest.mark.parametrize(
    ("acts", "before", "allowed"),
    [
        # An abort may come before or after a close; the answer of the close depends on the order.
        (("close", "abort"), State.PREPARING, {("True", "True"), ("False", "True")}),
        (("close", "close"), State.PREPARING, {("True", "False"), ("False", "True")}),
        (("commit", "abort"), State.CLOSING, {("True", "False"), ("False", "True")}),
        (("commit", "commit"), State.CLOSING, {("True", "False"), ("False", "True")}),
    ],
)
def test_of_two_processes_one_decides_a_switch(place, others, acts, before, allowed):
    """The switch is done with its effect or aborted without it, and both answers match the outcome."""
    catalog = place.open()
    for number in range(20):
        entry = create(catalog, f"e{number}")
        switch = switch_of(entry)
        catalog.switches.begin(entry, switch)
        if before is State.CLOSING:
            assert catalog.switches.close(switch.token)
        answers = raced(others, *(f"{act} e{number} {switch.token}" for act in acts))
        assert tuple(answers) in allowed
        committed = ("commit", "True") in zip(acts, answers, strict=True)
        assert len(catalog.get(f"e{number}").timelines) == 1 + committed
        aborted = ("abort", "True") in zip(acts, answers, strict=True)
        assert (catalog.switches.get(switch.token).state is State.ABORTED) == aborted


# -- lost answers


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[LossyProxy]:
    made = LossyProxy(postgres.port)
    yield made
    made.close()


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_whose_answer_got_lost_is_unknown_and_can_be_looked_up(
    postgres, database, place, proxy, happened
):
    """The token of the switch shows whether the commit happened."""
    catalog = place.open()
    entry = create(catalog, "a")
    switch = switch_of(entry)
    catalog.switches.begin(entry, switch)
    catalog.switches.close(switch.token)
    lossy = PostgresDatabase(postgres.url(database, port=proxy.port))
    behind = SqlCatalog(lossy)
    (proxy.lose_answer_to if happened else proxy.lose_request)(b"COMMIT\0")
    with pytest.raises(OutcomeUnknown):
        behind.switches.commit(switch.token, effect(entry, switch))
    # If the server never received the commit, it needs a moment to notice the closed connection.
    until(lambda: behind.switches.get(switch.token).state is (State.DONE if happened else State.CLOSING))
    assert len(behind.get("a").timelines) == 1 + happened
    assert behind.switches.commit(switch.token, effect(entry, switch)) is not happened
    lossy.close()


# -- a server that crashes


class Life:
    """Creates, switches and deletes event types one after the other, and records the outcome of each step."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.catalog = catalog
        self.name = name
        self.created: set[str] = set()
        self.done: set[str] = set()
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()

    def live(self, stop: threading.Event) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            name = f"{self.name}.e{number}"
            try:
                self._one(name, delete=number % 3 == 2)
            except StrandlineError:
                self.unsure.add(name)

    def _one(self, name: str, *, delete: bool) -> None:
        entry = create(self.catalog, name)
        self.created.add(name)
        switch = switch_of(entry)
        self.catalog.switches.begin(entry, switch)
        assert self.catalog.switches.close(switch.token)
        assert self.catalog.switches.commit(switch.token, effect(entry, switch))
        self.done.add(name)
        if delete:
            self.catalog.delete(self.catalog.get(name))
            self.deleted.add(name)


def test_a_killed_server_leaves_nothing_half_done(postgres, place):
    """No acknowledged change is lost in three crashes during writes, and the pool reconnects by itself."""
    catalog = place.open()
    lives = [Life(catalog, f"l{number}") for number in range(4)]
    stop = threading.Event()
    threads = [threading.Thread(target=life.live, args=(stop,)) for life in lives]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            seen = [len(life.done) for life in lives]
            # Every thread has made progress before the next crash.
            until(lambda seen=seen: all(len(life.done) > n + 2 for life, n in zip(lives, seen, strict=True)))
            postgres.kill()
            postgres.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        postgres.bring_back()
    entries = {entry.event_type.name: entry for entry in catalog.entries()}
    for life in lives:
        sure = life.created - life.unsure
        assert not entries.keys() & (life.deleted - life.unsure)
        assert entries.keys() >= sure - life.deleted
        assert all(len(entries[name].timelines) == 2 for name in life.done - life.deleted - life.unsure)
    for entry in entries.values():
        is_done = entry.switch is not None and entry.switch.state is State.DONE
        assert len(entry.timelines) == 1 + is_done
        assert (entry.timelines[0].latest_position is not None) == is_done
        assert len(catalog.schemas(entry)) == 1
    owned = {found.topic for entry in entries.values() for found in entry.timelines}
    place.clock.advance(10**15)
    assert not owned & {topic for _, topic in catalog.topics_to_delete()}
    assert any(life.unsure for life in lives), "no write failed"
