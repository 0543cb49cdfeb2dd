"""The PostgreSQL engine: atomic transactions, clear outcomes, and a pool that reconnects by itself."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from lossy_proxy import LossyProxy
from services import DEADLINE_S, free_port, until
from services.postgres import GUARDED, PostgresServer
from strandline.engine import postgres as engine
from strandline.engine.database import Session
from strandline.engine.postgres import PostgresDatabase
from strandline.errors import Conflict, Invalid, OutcomeUnknown, StorageFull, Unavailable

COMMIT = b"COMMIT\0"
INSERT = "INSERT INTO notes VALUES (%(text)s)"
LOCK = "SELECT 1 FROM notes WHERE note = %(text)s FOR UPDATE"
END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
FAIL = "DO $$ BEGIN RAISE EXCEPTION 'as the test wants it' USING ERRCODE = '{}'; END $$"


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    name = postgres.new_database()
    postgres.execute("CREATE SCHEMA strandline; CREATE TABLE strandline.notes (note TEXT PRIMARY KEY)", name)
    return name


@pytest.fixture
def db(postgres: PostgresServer, database: str) -> Iterator[PostgresDatabase]:
    opened = PostgresDatabase(postgres.url(database))
    yield opened
    opened.close()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[LossyProxy]:
    made = LossyProxy(postgres.port)
    yield made
    made.close()


@pytest.fixture
def behind(postgres: PostgresServer, database: str, proxy: LossyProxy) -> Iterator[PostgresDatabase]:
    """The same database, through the lossy proxy."""
    opened = PostgresDatabase(postgres.url(database, port=proxy.port))
    yield opened
    opened.close()


def note(text: str, db: Session) -> None:
    db.execute(INSERT, {"text": text})


def notes(db: PostgresDatabase) -> list[str]:
    return [text for (text,) in db.fetch("SELECT note FROM notes ORDER BY note", {})]


# -- transactions


def test_a_transaction_is_all_or_nothing(db):
    """Any error rolls back the writes of the transaction."""

    def work(session: Session) -> None:
        note("a", session)
        raise Conflict("no")

    with pytest.raises(Conflict):
        db.transaction(work)
    assert notes(db) == []
    db.transaction(lambda session: note("b", session))
    assert notes(db) == ["b"]


def test_many_rows_go_in_one_call(db):
    """`execute_many` writes all rows or none."""
    db.transaction(lambda session: session.execute_many(INSERT, [{"text": "a"}, {"text": "b"}]))
    with pytest.raises(Unavailable, match="duplicate key"):
        db.transaction(lambda session: session.execute_many(INSERT, [{"text": "c"}, {"text": "a"}]))
    assert notes(db) == ["a", "b"]


def test_rows_are_loaded_all_or_none(db):
    """`load` copies rows in binary form. Any text can be a value."""
    copy = "COPY notes (note) FROM STDIN (FORMAT BINARY)"
    texts = ["a", "", "\\", '"', "{NULL}", "\t\n", "ö🦈"]
    db.transaction(lambda session: session.load(copy, [(text,) for text in texts]))
    assert sorted(notes(db)) == sorted(texts)
    with pytest.raises(Unavailable, match="duplicate key"):
        db.transaction(lambda session: session.load(copy, [("c",), ("a",)]))
    assert sorted(notes(db)) == sorted(texts)


def test_columns_of_rows_are_arrays(db):
    """`execute_each` runs a statement once. Any text and number can be a value, and NULL."""
    found = []
    statement = "SELECT n.*, %(one)s::int FROM unnest(%(texts)s::text[], %(numbers)s::bigint[]) AS n"
    rows = [("a", 1), ("", -(2**63)), ("NULL", None), (None, 0), ('\\ " { } ,', 2), ("\n ö🦈", 3)]

    def work(session: Session) -> None:
        execute = session.execute
        session.execute = lambda *given: found.extend(execute(*given))
        session.execute_each(statement, {"one": 7}, ("texts", "numbers"), rows)

    db.transaction(work)
    assert found == [(*row, 7) for row in rows]


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("text", ["a", "", "NULL", None, '\\ " {} ,', "\n\t ö🦈", "'"]),
        ("text", ["a", "b,c", '"', "\\"]),
        ("bigint", [1, None, -(2**63), 2**63 - 1]),
        ("double precision", [1.5, None, float("inf")]),
        ("boolean", [True, None, False]),
        ("bytea", [b"", b"\\x00", None, bytes(range(256)), b"NULL"]),
        ("text", [None, None]),
        ("bigint", []),
    ],
)
def test_a_list_arrives_as_it_is(db, kind, items):
    """Our text of an array is read back by the server as the same values."""
    assert db.fetch(f"SELECT %(items)s::{kind}[]", {"items": items}) == [(items,)]


def test_a_list_with_a_zero_byte_is_refused(db):
    """PostgreSQL would end the text there, and store other values."""
    with pytest.raises(Unavailable, match="zero byte"):
        db.fetch("SELECT %(items)s::text[]", {"items": ["a\0b", "c"]})


# -- prepared statements


def test_a_percent_sign_is_not_a_parameter(db):
    """A statement can use a parameter twice, and others in any order."""
    statement = "SELECT %(b)s::int %% 10, %(a)s::text, %(b)s::int"
    assert db.fetch(statement, {"a": "%(b)s", "b": 42, "unused": 1}) == [(2, "%(b)s", 42)]


def test_a_value_may_have_another_type_each_time(db):
    """A statement is prepared once for all values of the same types."""
    values = [None, 1, 2**31, 2**62, -1, 1, None]
    assert [db.fetch("SELECT %(one)s::bigint", {"one": value}) for value in values] == [[(one,)] for one in values]


def test_a_connection_keeps_a_limited_number_of_prepared_statements(db, monkeypatch):
    """Those that were not used for the longest time are given up, and prepared again."""
    monkeypatch.setattr(engine, "_MOST_PREPARED", 3)

    def work(session: Session) -> int:
        for number in [1, 2, 3, 1, 4, 1, 5, 2]:
            assert session.execute(f"SELECT {number} + %(one)s", {"one": 1}) == [(number + 1,)]
        return session.execute("SELECT count(*) FROM pg_prepared_statements")[0][0]

    assert db.transaction(work) == 3


def test_a_prepared_statement_that_the_server_has_lost_is_prepared_again(db):
    """A pooler or an administrator can remove them. Nothing was done by then, so the work begins again."""

    def note_all(session: Session) -> None:
        note("a", session)
        note("b", session)

    db.transaction(note_all)
    db.transaction(lambda session: session.execute("DELETE FROM notes"))
    db.transaction(lambda session: session.execute("DEALLOCATE ALL"))
    db.transaction(note_all)
    assert notes(db) == ["a", "b"]


def test_a_table_that_another_process_changes(db):
    """As a migration by a newer node does: the prepared statement is prepared again."""
    statement, values = "SELECT * FROM notes WHERE note = %(text)s", {"text": "a"}
    db.transaction(lambda session: note("a", session))
    assert db.fetch(statement, values) == [("a",)]
    with closing(db._connect()) as other:
        other.run("ALTER TABLE strandline.notes ADD COLUMN more INT")
    assert db.fetch(statement, values) == [("a", None)]


def test_a_statement_that_cannot_be_prepared_fails_again(db):
    for _ in range(2):
        with pytest.raises(Unavailable, match="does not exist"):
            db.fetch("SELECT * FROM missing WHERE note = %(text)s", {"text": "a"})
    db.transaction(lambda session: session.execute("CREATE TABLE strandline.missing (note TEXT)"))
    assert db.fetch("SELECT * FROM missing WHERE note = %(text)s", {"text": "a"}) == []


# -- snapshots


def test_a_snapshot_does_not_see_later_commits(db):
    db.transaction(lambda session: note("a", session))
    with db.snapshot() as session:
        assert session.execute("SELECT note FROM notes") == [("a",)]
        db.transaction(lambda session: note("b", session))
        assert session.execute("SELECT note FROM notes") == [("a",)]
        with pytest.raises(Unavailable, match="read-only"), db.snapshot() as other:
            other.execute("DELETE FROM notes")
    assert notes(db) == ["a", "b"]


def test_open_snapshots_do_not_hold_up_other_calls(db):
    """They have connections of their own. One more than there can be is refused after a while."""
    with ExitStack() as held:
        for _ in range(engine._SNAPSHOTS):
            held.enter_context(db.snapshot()).execute("SELECT 1")
        db._snapshots.timeout = 0.1
        with pytest.raises(Unavailable, match="busy"), db.snapshot():
            pass
        db.transaction(lambda session: note("a", session))
    with db.snapshot() as session:
        assert session.execute("SELECT note FROM notes") == [("a",)]


def test_a_snapshot_after_the_server_restarted(postgres, db):
    with db.snapshot() as session:
        session.execute("SELECT 1")
    postgres.kill()
    postgres.bring_back()
    with db.snapshot() as session:
        assert session.execute("SELECT 1") == [(1,)]


def test_transactions_that_block_each_other_both_go_through(db):
    """The server aborts one of two transactions in a deadlock, and the engine retries it."""
    db.transaction(lambda s: s.execute_many(INSERT, [{"text": "a"}, {"text": "b"}]))
    runs = []
    both = threading.Barrier(2)

    def cross(first: str, second: str) -> None:
        met = []

        def work(session: Session) -> None:
            runs.append(first)
            session.execute(LOCK, {"text": first})
            if not met:
                met.append(both.wait(DEADLINE_S))
            session.execute(LOCK, {"text": second})
            note(f"{first} then {second}", session)

        db.transaction(work)

    threads = [threading.Thread(target=cross, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes(db) == ["a", "a then b", "b", "b then a"]
    assert len(runs) == 3


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_collisions_are_tried_again_a_few_times(db, state):
    """After the last retry a collision is Unavailable, with the driver's error as the cause."""
    runs = []

    def work(session: Session, failures: int) -> None:
        runs.append(1)
        note(f"run {len(runs)} of {failures}", session)
        if len(runs) <= failures:
            session.execute(FAIL.format(state))

    db.transaction(lambda session: work(session, 3))
    assert notes(db) == ["run 4 of 3"]
    runs.clear()
    with pytest.raises(Unavailable, match="busy") as caught:
        db.transaction(lambda session: work(session, 9))
    assert isinstance(caught.value.__cause__, psycopg.errors.OperationalError)
    assert len(runs) == 4
    assert notes(db) == ["run 4 of 3"]


def test_a_full_disk_is_said_to_be_full(db):
    """A full disk is StorageFull: nothing was written, and the caller can free space."""
    with pytest.raises(StorageFull) as caught:
        db.transaction(lambda session: session.execute(FAIL.format("53100")))
    assert isinstance(caught.value.__cause__, psycopg.errors.DiskFull)


def test_who_sleeps_in_a_transaction_does_not_hold_up_others_for_long(postgres, database, monkeypatch):
    """The server ends an idle transaction, so others continue, and the engine retries it."""
    monkeypatch.setitem(engine._SETTINGS, "idle_in_transaction_session_timeout", 300)
    db = PostgresDatabase(postgres.url(database))
    db.transaction(lambda session: note("a", session))
    locked, other_is_done = threading.Event(), threading.Event()

    def sleepy(session: Session) -> None:
        session.execute("UPDATE notes SET note = note || '!'")
        if not locked.is_set():
            locked.set()
            other_is_done.wait(DEADLINE_S)

    sleeper = threading.Thread(target=lambda: db.transaction(lambda s: (sleepy(s), note("late", s))))
    sleeper.start()
    assert locked.wait(DEADLINE_S)
    db.transaction(lambda session: session.execute("UPDATE notes SET note = 'b'"))
    other_is_done.set()
    sleeper.join()
    assert notes(db) == ["b!", "late"]
    db.close()


# -- lost answers


def test_a_lost_answer_to_the_commit_is_an_unknown_outcome(db, behind, proxy):
    """The outcome is unknown to the client, and the commit happened."""
    proxy.lose_answer_to(COMMIT)
    with pytest.raises(OutcomeUnknown) as caught:
        behind.transaction(lambda session: note("a", session))
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert notes(db) == ["a"]
    assert notes(behind) == ["a"], "the pool has reconnected"


def test_a_lost_commit_is_an_unknown_outcome(db, behind, proxy):
    """The outcome is unknown to the client, and the commit did not happen."""
    proxy.lose_request(COMMIT)
    with pytest.raises(OutcomeUnknown):
        behind.transaction(lambda session: note("a", session))
    assert notes(db) == []


def test_what_is_lost_before_the_commit_is_done_again(db, behind, proxy):
    """A transaction that loses its connection before the commit is retried, without an error to the caller."""
    for lose in (proxy.lose_answer_to, proxy.lose_request):
        text = lose.__name__
        lose(text.encode())  # a value: the statement may be prepared already
        behind.transaction(lambda session, text=text: note(text, session))
        assert proxy.lost.is_set()
    lose(b"SELECT note")
    assert notes(behind) == notes(db) == ["lose_answer_to", "lose_request"]


# -- servers that stop, restart and do not answer


def test_connections_that_died_are_replaced(postgres, database, db):
    """After the server closes all connections, the next call of every thread succeeds."""
    threads = [threading.Thread(target=notes, args=(db,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(3):
        postgres.execute(END_ALL, database)
        assert notes(db) == []


def test_a_silent_server_is_given_up_after_a_while(postgres, db, monkeypatch):
    """If the server does not answer, a read is Unavailable and the outcome of a commit is unknown."""
    monkeypatch.setattr(engine, "_ANSWER_SECONDS", 0.4)
    monkeypatch.setattr(db._pool, "timeout", 0.4)
    monkeypatch.setitem(db._parameters, "connect_timeout", 2)

    def work(session: Session) -> None:
        note("a", session)
        postgres.pause()

    try:
        with pytest.raises(OutcomeUnknown, match="no answer"):
            db.transaction(work)
        with pytest.raises(Unavailable):
            notes(db)
    finally:
        postgres.bring_back()
    assert notes(db) == ["a"]


def test_a_server_that_is_down_is_unavailable_until_it_is_back(postgres, db, monkeypatch):
    """The error has the reason and `retry_after`; calls succeed after the server restarts."""
    monkeypatch.setattr(db._pool, "timeout", 0.3)
    db.transaction(lambda session: note("a", session))
    postgres.kill()
    try:
        for act in (lambda: notes(db), lambda: db.transaction(lambda session: note("b", session))):
            with pytest.raises(Unavailable, match=r"cannot be reached at 127\.0\.0\.1") as caught:
                act()
            assert caught.value.retry_after > 0
            assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    finally:
        postgres.bring_back()
    assert notes(db) == ["a"]


def test_nobody_there_is_said_at_once():
    """The error names the address."""
    port = free_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        PostgresDatabase(f"postgresql://me@127.0.0.1:{port}/none")


def test_of_several_hosts_the_one_that_answers_is_taken(postgres, database):
    """Of several hosts the engine uses one that answers and, with replicas, the one that accepts writes."""
    url = postgres.url(database).replace("@", f"@127.0.0.1:{free_port()},")
    db = PostgresDatabase(url)
    assert notes(db) == []
    db.close()


@pytest.fixture
def signals(db):
    sending, receiving = db.signals("news"), db.signals("news")
    yield sending, receiving
    for one in (sending, receiving):
        one.interrupt()
        one.close()


def test_a_signal_reaches_those_who_listen(signals):
    sending, receiving = signals
    sending.send("lost: nobody listens yet")
    assert receiving.receive(0) == []
    sending.send("one")
    sending.send("")
    found = []
    until(lambda: found.extend(receiving.receive(1)) or len(found) == 2, "both signals")
    assert found == ["one", ""]


def test_a_signal_does_not_wait_for_the_disk(db, signals):
    """Its connection is not durable; other connections are."""
    sending, _ = signals
    sending.send("a")
    assert sending._sender.run("SHOW synchronous_commit") == [("off",)]
    assert db.transaction(lambda session: session.execute("SHOW synchronous_commit")) == [("on",)]


def test_signals_go_on_after_their_connections_were_lost(postgres, database, signals):
    sending, receiving = signals
    receiving.receive(0)
    sending.send("one")
    until(lambda: receiving.receive(1) == ["one"], "the first signal")
    postgres.execute(END_ALL, database)
    with pytest.raises(Unavailable):
        sending.send("two")
    with pytest.raises(Unavailable):
        until(lambda: receiving.receive(1), "the lost connection")
    assert receiving.receive(0) == []
    sending.send("three")
    until(lambda: receiving.receive(1) == ["three"], "the third signal")


def test_a_wait_for_signals_can_be_interrupted(signals):
    """Otherwise the test would take as long as the wait."""
    _, receiving = signals
    receiving.receive(0)
    thread = threading.Thread(target=receiving.receive, args=(DEADLINE_S,))
    thread.start()
    receiving.interrupt()
    thread.join()


def test_closed_is_unavailable(db):
    """A closed database is Unavailable; close is idempotent."""
    db.close()
    db.close()
    with pytest.raises(Unavailable, match="closed"):
        notes(db)


# -- settings


@pytest.mark.parametrize(("given", "ours"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_commits_wait_for_the_disk_at_least(postgres, database, given, ours):
    """The engine overrides a weaker default of the database."""
    postgres.execute(f"ALTER DATABASE {database} SET synchronous_commit = {given}")
    db = PostgresDatabase(postgres.url(database))
    assert db.fetch("SELECT current_setting('synchronous_commit')", {}) == [(ours,)]
    db.close()


def test_a_password_comes_from_the_environment(postgres, database, monkeypatch, caplog):
    """The password of the variable is used, and no error or log shows it."""
    postgres.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD 'right-one'")
    url = postgres.url(database, user=f"{GUARDED}:env:SOME_PASSWORD")
    monkeypatch.setenv("SOME_PASSWORD", "right-one")
    db = PostgresDatabase(url)
    assert db.fetch("SELECT current_user", {}) == [(GUARDED,)]
    db.close()
    monkeypatch.setenv("SOME_PASSWORD", "wrong-one")
    with pytest.raises(Unavailable, match="password authentication failed") as caught:
        PostgresDatabase(url)
    assert "wrong-one" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:s3cret@host/db", "by reference"),
        ("postgresql://me@host/db?password=s3cret", "by reference"),
        ("postgresql://me@host/db?sslpassword=s3cret", "by reference"),
        ("postgresql://me:env:NOT_THERE@host/db", "NOT_THERE, which is not set"),
        ("postgresql://me@host/db?options=-cfsync%3Ds3cret", "'options'"),
        ("postgresql://me:s3cret/@host/db", "must look like"),
        ("postgresql://me:53437/s3cret@host/db", "must look like"),
        ("postgresql://me@host", "must look like"),
        ("mysql://me:s3cret@host/db", "must look like"),
        ("host=here dbname=db password=s3cret", "must look like"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused(url, says):
    """The error says what to do instead and shows no secret."""
    with pytest.raises(Invalid, match=says) as caught:
        PostgresDatabase(url)
    assert "s3cret" not in str(caught.value)


def test_without_the_driver_it_says_what_to_install():
    """The error has the exact install command."""
    code = "import sys; sys.modules['psycopg'] = None; import strandline.engine.postgres"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'strandline[postgres]'" in done.stderr


@pytest.fixture
def many_files() -> Iterator[None]:
    """As in a process with so many connections that new file descriptors are above 1,024."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_files")
def test_signals_arrive_in_a_process_with_many_open_files(db: PostgresDatabase) -> None:
    signals = db.signals("news")
    try:
        assert signals.receive(0) == []
        signals.send("fresh")
        assert until(lambda: signals.receive(1), "the signal") == ["fresh"]
    finally:
        signals.interrupt()
        signals.close()
